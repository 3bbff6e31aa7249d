// Package client is the Go client of hapax servers: it issues in this process, from ranges
// that it leases, or one call at a time.
//
//	c, err := client.Dial(ctx, client.Options{}, "http://127.0.0.1:8080")
//	orders, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
//	id, err := orders.Next(ctx) // no call, mostly
//
// To the library a Client is one more store: it implements driver.Store, and each
// lease that an issuer asks for is forwarded to the server's store. Issuers on a
// Client issue at the speed of memory, fetch ahead, and go on through an outage
// of every server as long as what is leased lasts.
//
// With several servers a call that one of them does not answer goes on to the
// next. A lease whose reply was lost is abandoned and never used, so that this
// leaves a gap and never a duplicate. All servers must share one store; one that
// has another is refused.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/wire"
)

// DefaultTimeout is how long one server may take to answer.
const DefaultTimeout = 2500 * time.Millisecond

const (
	maxServers   = 100
	maxReply     = 64 << 20 // bytes
	dialTimeout  = 2 * time.Second
	idleTimeout  = 90 * time.Second
	maxIdleConns = 64 // for each server
	closeTimeout = 5 * time.Second
)

// Options tune a [Client]. The zero value suits servers that ask for no
// credentials.
type Options struct {
	// Token is sent with every call. Use it with https:// only, or on loopback.
	Token string

	// TLS is used for https:// addresses; default the system's roots.
	TLS *tls.Config

	// Timeout is how long one server may take to answer a call before the next
	// is asked; default 2.5 s, which is more than servers wait themselves by
	// default. A call's own deadline shortens it, so that all servers get a turn.
	Timeout time.Duration

	// Once has every call fail with the first error, where it would wait and ask
	// again while servers are in trouble, and Dial ask nobody. It suits a command
	// that somebody waits for.
	Once bool
}

// Stats count what a [Client] did. Numbers that issuers take from leases are
// counted by the issuers' own Stats.
type Stats struct {
	Calls     int64 // calls sent to a server
	Failures  int64 // calls that a server did not answer, or could not fulfil just now
	Failovers int64 // times a call went on to another server
	Leases    int64 // leases of numbers, and leases and extensions of workers
	Renewals  int64 // times a server confirmed that leased numbers may still be used
	Dropped   int64 // times leased numbers were given up because that ended
}

// A Client talks to one or several servers. Its methods are safe for concurrent
// use. It implements driver.Store and driver.Clock; tags are administered
// with its methods CreateTag (with hapax.CreateExplicit), UpdateTag and
// DeleteTag.
type Client struct {
	opts      Options
	servers   []*server
	preferred atomic.Int64 // index of the server that answered last
	transport *http.Transport
	began     time.Time // what leases' validity is counted from
	asleep    func() time.Duration
	slept     time.Duration // what asleep said when the client began

	calls, failures, failovers, leases, renewals, dropped atomic.Int64

	joints joints // callers of Next
	fences fences

	life     context.Context // ends with Close
	stop     context.CancelFunc
	children sync.WaitGroup

	mu      sync.Mutex              // guards the fields below; never held while waiting
	closing bool                    // no issuers are kept any more
	closed  bool                    // no calls are made any more
	storeID string                  // of the one store behind all servers; empty before it is known
	open    map[hapax.Issuer]*lease // issuers to close with the client
}

// A server is one of the addresses.
type server struct {
	url      string
	issue    hapaxv1connect.IssueServiceClient
	lease    hapaxv1connect.LeaseServiceClient
	admin    hapaxv1connect.AdminServiceClient
	verified atomic.Bool            // has the right store, as far as is known since its last trouble
	product  atomic.Pointer[string] // what it says it is, such as "hapax/0.1.0"
}

// Dial returns a client of the servers at the given addresses, such as
// "http://127.0.0.1:8080", of which one must answer before the context ends.
// Close must be called.
//
// Errors: ErrInvalidArgument; ErrUnauthenticated and ErrPermissionDenied; a
// *hapax.WaitError that matches ErrStoreUnavailable when the context ends, so
// give it a deadline.
func Dial(ctx context.Context, opts Options, urls ...string) (*Client, error) {
	c, err := newClient(opts, urls)
	if err != nil {
		return nil, err
	}
	if !opts.Once {
		if _, err := persist(ctx, c, c.StoreID); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	c.children.Go(c.watch)
	return c, nil
}

func newClient(opts Options, urls []string) (*Client, error) {
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.Timeout < time.Millisecond || opts.Timeout > time.Hour {
		return nil, outOfRange("timeout", opts.Timeout, "1ms to 1h")
	}
	if strings.ContainsFunc(opts.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, outOfRange("token", "(not shown)", "ASCII without spaces and control characters")
	}
	if len(urls) < 1 || len(urls) > maxServers {
		return nil, outOfRange("urls", len(urls), fmt.Sprintf("1 to %d addresses", maxServers))
	}
	c := &Client{opts: opts, began: time.Now(), asleep: asleep, open: map[hapax.Issuer]*lease{}}
	c.slept = c.asleep()
	c.transport = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:     opts.TLS,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     idleTimeout,
	}
	for _, given := range urls {
		base, err := parseURL(given)
		if err != nil {
			return nil, err
		}
		options := []connect.ClientOption{connect.WithReadMaxBytes(maxReply), connect.WithAcceptCompression("gzip", nil, nil)}
		s := &server{url: base}
		caller := &http.Client{Transport: transport{c, s}}
		s.issue = hapaxv1connect.NewIssueServiceClient(caller, base, options...)
		s.lease = hapaxv1connect.NewLeaseServiceClient(caller, base, options...)
		s.admin = hapaxv1connect.NewAdminServiceClient(caller, base, options...)
		c.servers = append(c.servers, s)
	}
	// At random, so that many clients do not all begin with the first address.
	c.preferred.Store(rand.Int64N(int64(len(c.servers))))
	c.life, c.stop = context.WithCancel(context.Background())
	return c, nil
}

func parseURL(given string) (string, error) {
	u, err := url.Parse(given)
	if err == nil && u.Port() != "" {
		if port, portErr := strconv.Atoi(u.Port()); portErr != nil || port < 1 || port > 65535 {
			return "", outOfRange("server", u.Redacted(), "a URL whose port is 1 to 65535, such as http://127.0.0.1:8080")
		}
	}
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		shown := given
		// What cannot be parsed may hold a password as well.
		if u == nil || u.User != nil {
			shown = "(not shown)"
		}
		return "", outOfRange("server", shown, "a URL of a scheme, a host and a port, such as http://127.0.0.1:8080")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// transport carries the calls of one server: it adds the token and the store
// that the client works with to every request, and checks that every reply comes
// from a server with that store. So a call that fails over to a server with
// another store, or meets one that was wiped since the last call, gets nothing.
//
// It refuses redirects: what they lead to would be shown the token, and asked for
// numbers of its own.
type transport struct {
	client *Client
	server *server
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if token := t.client.opts.Token; token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if id := t.client.knownStore(); id != "" {
		r.Header.Set(wire.StoreHeader, id)
	}
	r.Header.Set("User-Agent", strings.TrimSpace(product()+" "+r.Header.Get("User-Agent")))
	res, err := t.client.transport.RoundTrip(r)
	if err != nil {
		return nil, t.explain(r, err)
	}
	if isForTLS(r, res) {
		return nil, errors.Join(fmt.Errorf("it speaks TLS: give https://%s", r.URL.Host), res.Body.Close())
	}
	t.server.product.Store(new(res.Header.Get("Server")))
	if to, err := res.Location(); err == nil && res.StatusCode/100 == 3 {
		return nil, errors.Join(fmt.Errorf("it redirects to %s://%s, which is not followed; give that address if it is meant", to.Scheme, to.Host), res.Body.Close())
	}
	if id := res.Header.Get(wire.StoreHeader); id != "" {
		if err := t.client.checkStore(t.server, id); err != nil {
			return nil, errors.Join(err, res.Body.Close())
		}
	}
	return res, nil
}

// isForTLS reports whether an answer is that of a server that was asked without TLS, and has it.
func isForTLS(r *http.Request, res *http.Response) bool {
	if r.URL.Scheme != "http" || res.StatusCode != http.StatusBadRequest || strings.HasPrefix(res.Header.Get("Server"), "hapax/") {
		return false
	}
	const most = 1 << 10
	head, _ := io.ReadAll(io.LimitReader(res.Body, most)) // what is left of an error is read again below
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), res.Body), res.Body}
	return bytes.Contains(head, []byte("HTTPS"))
}

// explain says what an error of TLS means.
func (t transport) explain(r *http.Request, err error) error {
	if r.URL.Scheme != "https" {
		return err
	}
	const wants = "a server with tls_client_ca wants a client certificate that an authority in that file has signed"
	config := t.client.opts.TLS
	shows := config != nil && (len(config.Certificates) > 0 || config.GetClientCertificate != nil)
	switch {
	case isPlain(err):
		return fmt.Errorf("it speaks no TLS: give http://%s if that is meant: %w", r.URL.Host, err)
	case isRefused(err) && !shows:
		return fmt.Errorf("it refuses this client, which shows no certificate: %s: %w", wants, err)
	case isRefused(err):
		return fmt.Errorf("it refuses this client's certificate: %s: %w", wants, err)
	// With TLS 1.3 a server judges the certificate after the client has begun to write, so that its word may be lost.
	case shows && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)):
		return fmt.Errorf("it may refuse this client's certificate: %s: %w", wants, err)
	}
	return err
}

// isPlain reports whether a server has answered a TLS handshake in HTTP.
func isPlain(err error) bool {
	e, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok && string(e.RecordHeader[:]) == "HTTP/"
}

// isRefused reports whether a server has said that it does not accept a certificate, or lacks one.
func isRefused(err error) bool {
	_, said, ok := strings.Cut(err.Error(), "remote error: tls: ")
	return ok && strings.Contains(said, "certificate")
}

// product names this client and its version, as servers name themselves.
func product() string { return "hapax/" + hapax.Version() }

// Stats returns the client's counts.
func (c *Client) Stats() Stats {
	return Stats{
		Calls: c.calls.Load(), Failures: c.failures.Load(), Failovers: c.failovers.Load(),
		Leases: c.leases.Load(), Renewals: c.renewals.Load(), Dropped: c.dropped.Load(),
	}
}

// Close closes the issuers that the client made, which gives their worker IDs
// back if a server can be reached within 5 s, and then all connections. It is
// idempotent; other methods fail with hapax.ErrClosed from then on.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	issuers := make([]hapax.Issuer, 0, len(c.open))
	for issuer := range c.open {
		issuers = append(issuers, issuer)
	}
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards errs
		errs []error
	)
	for _, issuer := range issuers {
		wg.Go(func() {
			if err := issuer.Close(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()

	c.mu.Lock()
	// Only now: the issuers above have given back their worker IDs through this client.
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.joints.close()
	c.children.Wait()
	c.transport.CloseIdleConnections()
	return errors.Join(errs...)
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// order returns the servers as they are to be asked: the one that answered last
// comes first.
func (c *Client) order() []*server {
	first := int(c.preferred.Load())
	return slices.Concat(c.servers[first:], c.servers[:first])
}

// prefer has later calls begin with a server.
func (c *Client) prefer(s *server) {
	if i := slices.Index(c.servers, s); int64(i) != c.preferred.Load() {
		c.preferred.Store(int64(i))
	}
}

func outOfRange(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
