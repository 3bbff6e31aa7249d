package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/bench/internal/host"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/store/memstore"
)

const connections = 50

// parts are what is compared: two servers on loopback, ours and the bare one, a client of ours, and
// the library in this process.
type parts struct {
	dir        string
	ours, bare *host.Server
	client     *client.Client
	library    *hapax.Segment
}

// newParts starts our server as it would run: durable, with a witness.
func newParts(ctx context.Context) (p *parts, err error) {
	p = &parts{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.dir, err = os.MkdirTemp("", "hapax-bench-rpc-"); err != nil {
		return p, err
	}
	if p.ours, err = host.StartHapax(ctx, p.dir); err != nil {
		return p, err
	}
	if p.bare, err = startBare(ctx); err != nil {
		return p, err
	}
	p.client, err = client.Dial(ctx, client.Options{}, "http://"+p.ours.HTTP)
	return p, err
}

func (p *parts) close() error {
	var errs []error
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	if p.library != nil {
		errs = append(errs, p.library.Close(context.Background()))
	}
	for _, s := range []*host.Server{p.ours, p.bare} {
		if s != nil {
			s.Stop()
		}
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// serve runs the bare server until it is interrupted. It has the time-outs of a server that is open
// to strangers.
func serve(ctx context.Context, address string) error {
	bare := http.NewServeMux()
	bare.Handle(hapaxv1connect.NewIssueServiceHandler(&counter{}, connect.WithCompressMinBytes(math.MaxInt))) // as ours
	bare.HandleFunc(numberRoute, writeCounter(new(atomic.Int64)))
	s := &http.Server{Addr: address, Handler: bare, Protocols: new(http.Protocols), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// startBare runs this program again, to serve.
func startBare(ctx context.Context) (*host.Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := host.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	s, err := host.Start(ctx, self, "-serve", "127.0.0.1:"+port)
	if err != nil {
		return nil, err
	}
	s.HTTP = "127.0.0.1:" + port
	if err := host.Await(ctx, s.HTTP); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// counter is the least that a server can do: count, with no tags and no store.
type counter struct {
	hapaxv1connect.UnimplementedIssueServiceHandler

	n atomic.Int64
}

// Next implements hapaxv1connect.IssueServiceHandler.
func (c *counter) Next(context.Context, *hapaxv1.NextRequest) (*hapaxv1.NextResponse, error) {
	return &hapaxv1.NextResponse{Ids: []int64{c.n.Add(1)}}, nil
}

func (p *parts) pairs(ctx context.Context) ([]pair, error) {
	segment, err := p.client.Segment(ctx, "orders", hapax.SegmentOptions{Step: 1_000_000, MaxStep: 1 << 30})
	if err != nil {
		return nil, err
	}
	library, err := hapax.NewSegment(ctx, memstore.New(), "orders", hapax.SegmentOptions{Step: 1_000_000, MaxStep: 1 << 30})
	if err != nil {
		return nil, err
	}
	p.library = library
	bare := new(bareAdd)
	add := func(n int) error { return bare.issue(n) }
	called := func(n int) error { return bare.issueCalled(n) }
	next := func(n int) error { return issue(ctx, segment, n) }
	local := func(n int) error { return issueLocally(ctx, library, n) }
	cores := runtime.GOMAXPROCS(0)
	list := []pair{
		{"client `Segment.Next`, 1 goroutine, beside a bare `atomic.Int64.Add`", "1.3 × the time, or 0.77 × the rate", "M/s", loop(1, add), loop(1, next)},
		{"client `Segment.Next`, 1 goroutine, beside that add behind a call", "as the first", "M/s", loop(1, called), loop(1, next)},
		{"client `Segment.Next`, 1 goroutine, beside the library's on a store in memory", "1: the client adds nothing", "M/s", loop(1, local), loop(1, next)},
		{"client `Segment.Next`, all cores, beside a bare `atomic.Int64.Add`", "as the first", "M/s", loop(cores, add), loop(cores, next)},
		{"client `Segment.Next`, all cores, beside that add behind a call", "as the first", "M/s", loop(cores, called), loop(cores, next)},
	}
	for _, proto := range []struct {
		name    string
		http    func() *http.Client
		options []connect.ClientOption
	}{
		{"Connect on HTTP/1.1", plain, nil},
		{"gRPC on one HTTP/2 connection", h2c, []connect.ClientOption{connect.WithGRPC()}},
	} {
		list = append(list, pair{
			"`IssueService.Next`, " + proto.name + ", 50 callers, beside a bare handler", "1.0", "k/s",
			calls(p.bare, nextBy(hapaxv1connect.NewIssueServiceClient(proto.http(), "http://"+p.bare.HTTP, proto.options...))),
			calls(p.ours, nextBy(hapaxv1connect.NewIssueServiceClient(proto.http(), "http://"+p.ours.HTTP, proto.options...))),
		})
	}
	joined := func(ctx context.Context) error {
		_, err := p.client.Next(ctx, "calls")
		return err
	}
	return append(list, pair{
		"client `Client.Next`, 50 callers of one tag, whose calls are joined, beside one caller", "20", "k/s",
		callsOf(p.ours, 1, joined), calls(p.ours, joined),
	}, pair{
		"`GET " + numberRoute + "`, 50 callers, beside a bare `net/http` handler that writes a counter", "0.95", "k/s",
		calls(p.bare, nextByGet(plain(), "http://"+p.bare.HTTP+numberRoute)), calls(p.ours, nextByGet(plain(), "http://"+p.ours.HTTP+numberRoute)),
	}), nil
}

// numberRoute is the REST route of one number.
const numberRoute = "/v1/tags/calls/next"

// writeCounter is the least that a number route can do.
func writeCounter(n *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var buf [20]byte
		_, _ = w.Write(strconv.AppendInt(buf[:0], n.Add(1), 10)) // the client is told by the connection
	}
}

func nextBy(c hapaxv1connect.IssueServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.Next(ctx, &hapaxv1.NextRequest{Tag: "calls"})
		return err
	}
}

func nextByGet(c *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		res, err := c.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	}
}

// bareAdd is an atomic word on a cache line of its own.
type bareAdd struct {
	_ [64]byte
	n atomic.Int64
	_ [64]byte
}

func (b *bareAdd) issue(n int) error {
	for range n {
		b.n.Add(1)
	}
	return nil
}

// issueCalled adds behind a call that is not inlined: the least that a function
// can do which issues a number.
func (b *bareAdd) issueCalled(n int) error {
	for range n {
		b.next()
	}
	return nil
}

//go:noinline
func (b *bareAdd) next() int64 { return b.n.Add(1) }

func issue(ctx context.Context, s *client.Segment, n int) error {
	for range n {
		if _, err := s.Next(ctx); err != nil {
			return err
		}
	}
	return nil
}

func issueLocally(ctx context.Context, s *hapax.Segment, n int) error {
	for range n {
		if _, err := s.Next(ctx); err != nil {
			return err
		}
	}
	return nil
}

func plain() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
}

func h2c() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p}}
}

// loop measures f, which issues n numbers, in several goroutines.
func loop(goroutines int, f func(n int) error) measurement {
	return func(_ context.Context, d time.Duration) (sample, error) {
		const chunk = 10_000
		var (
			wg    sync.WaitGroup
			total atomic.Int64
			errs  = make([]error, goroutines)
		)
		began := time.Now()
		for i := range goroutines {
			wg.Go(func() {
				for errs[i] == nil && time.Since(began) < d {
					errs[i] = f(chunk)
					total.Add(chunk)
				}
			})
		}
		wg.Wait()
		return sample{rate: float64(total.Load()) / time.Since(began).Seconds()}, errors.Join(errs...)
	}
}

// calls measures calls of a server for one number each, from as many callers as there are
// connections.
func calls(s *host.Server, next func(context.Context) error) measurement {
	return callsOf(s, connections, next)
}

// callsOf is calls from that many callers.
func callsOf(s *host.Server, callers int, next func(context.Context) error) measurement {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		var (
			wg        sync.WaitGroup
			latencies = make([][]time.Duration, callers)
			errs      = make([]error, callers)
		)
		began, cpu := time.Now(), s.CPUTime()
		for i := range callers {
			wg.Go(func() {
				for errs[i] == nil && time.Since(began) < d {
					at := time.Now()
					errs[i] = next(ctx)
					latencies[i] = append(latencies[i], time.Since(at))
				}
			})
		}
		wg.Wait()
		all := slices.Concat(latencies...)
		return sample{
			rate: float64(len(all)) / time.Since(began).Seconds(), latencies: all,
			cpu: float64((s.CPUTime() - cpu).Nanoseconds()) / 1e3 / float64(max(1, len(all))),
		}, errors.Join(errs...)
	}
}

// A stream is what one protocol carried in bulk.
type stream struct {
	name  string
	rates []float64 // numbers a second
}

// streams measures the bulk stream of a segment tag.
func (p *parts) streams(ctx context.Context, rounds int, each time.Duration) ([]stream, error) {
	url := "http://" + p.ours.HTTP
	_, err := p.client.CreateTag(ctx, hapax.Tag{Name: "bulk", Step: 1_000_000, MaxStep: 100_000_000}, hapax.CreateExplicit)
	if err != nil {
		return nil, err
	}
	list := []stream{{name: "Connect on HTTP/1.1"}, {name: "gRPC"}}
	clients := []hapaxv1connect.IssueServiceClient{
		hapaxv1connect.NewIssueServiceClient(plain(), url),
		hapaxv1connect.NewIssueServiceClient(h2c(), url, connect.WithGRPC()),
	}
	for range rounds {
		for i, c := range clients {
			rate, err := bulk(ctx, c, each)
			if err != nil {
				return nil, err
			}
			list[i].rates = append(list[i].rates, rate)
		}
	}
	return list, nil
}

func bulk(ctx context.Context, c hapaxv1connect.IssueServiceClient, d time.Duration) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.NextStream(ctx, &hapaxv1.NextStreamRequest{Tag: "bulk"})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	var last int64
	n, began := 0, time.Now()
	for time.Since(began) < d {
		if !s.Receive() {
			return 0, s.Err()
		}
		for _, id := range s.Msg().GetIds() { // as a caller would use them
			if id <= last {
				return 0, errors.New("numbers do not ascend")
			}
			last = id
		}
		n += len(s.Msg().GetIds())
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
