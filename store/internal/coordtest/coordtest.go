// Package coordtest tries the drivers for coordination services on real servers
// in trouble: killed, paused, cut off, emptied, rolled back.
package coordtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// A Driver is what is tested.
type Driver struct {
	Server  func(t testing.TB, args ...string) *testservers.Server // keeps its state in the directory "data"
	Shared  func(t testing.TB) *testservers.Server
	Cluster func(t testing.TB, n int) ([]*testservers.Server, string)
	Open    func(ctx context.Context, url string, warn func(code, message string)) (driver.Store, error)

	// Frame returns the length of the first frame that a client sends, 0 where too little has come,
	// and whether it begins a call's request.
	Frame func(sent []byte) (size int, request bool)
}

// soon is for calls that should fail, or may.
const soon = time.Second

// Run runs all tests.
func Run(t *testing.T, d Driver) {
	for name, test := range map[string]func(*testing.T){
		"killed": d.killed, "paused": d.paused, "lost answers": d.lostAnswers, "lost requests": d.lostRequests,
		"emptied": d.emptied, "rolled back": d.rolledBack, "overtaken": d.overtaken, "not there": d.notThere,
		"many handles": d.manyHandles, "secured": d.secured, "quorum": d.quorum, "warnings": d.warnings,
		"many tags": d.manyTags, "restarted": d.restarted, "elected": d.elected, "round trips": d.roundTrips,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
}

func (d Driver) open(t testing.TB, url string) driver.Store {
	t.Helper()
	s, err := d.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// own starts a server that the test controls.
func (d Driver) own(t *testing.T) *testservers.Server {
	t.Helper()
	server := d.Server(t)
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	return server
}

// shared returns a server for tests that put something before it, and the URL of a
// place there that nobody else uses.
func (d Driver) shared(t *testing.T) (server *testservers.Server, url string) {
	t.Helper()
	server = d.Shared(t)
	server.MustProxy()
	return server, server.URL + "/" + rand.Text()
}

func create(t testing.TB, s driver.Store, name string) {
	t.Helper()
	def, err := hapax.Tag{Name: name}.WithDefaults()
	if err == nil {
		_, err = s.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func allocate(t testing.TB, s driver.Store, name string, n int64) (hapax.Grant, error) {
	t.Helper()
	return allocateWithin(t, soon, s, name, n)
}

func allocateWithin(t testing.TB, limit time.Duration, s driver.Store, name string, n int64) (hapax.Grant, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	a, err := s.Allocate(ctx, name, n, "")
	return a.Grant, err
}

// eventually allocates until it succeeds, with no error but ErrStoreUnavailable
// meanwhile.
func eventually(t testing.TB, s driver.Store, name string, n int64) hapax.Grant {
	t.Helper()
	var g hapax.Grant
	var last error
	err := patience.Try("a grant", func() bool {
		g, last = allocate(t, s, name, n)
		return !errors.Is(last, hapax.ErrStoreUnavailable)
	})
	if err = errors.Join(err, last); err != nil {
		t.Fatalf("the store did not come back: %v", err)
	}
	return g
}

// refuses allocates until it is refused for the wanted reason, with no other
// error but ErrStoreUnavailable meanwhile and with no success.
func refuses(t testing.TB, s driver.Store, name string, want *hapax.Error) {
	t.Helper()
	patience.Await(t, fmt.Sprintf("refused with %v", want), func() (error, error) {
		g, err := allocate(t, s, name, 1)
		if err == nil {
			t.Fatalf("granted %v; want %v", g, want)
		}
		return err, nil
	}, func(err error) bool {
		if !errors.Is(err, want) && !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Fatalf("error is %v; want %v", err, want)
		}
		return errors.Is(err, want)
	})
}

func mark(t testing.TB, s driver.Store, name string) int64 {
	t.Helper()
	tag, err := s.Tag(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return tag.Mark
}

func disjoint(t testing.TB, grants []hapax.Grant, whole bool) {
	t.Helper()
	slices.SortFunc(grants, func(a, b hapax.Grant) int { return cmp.Compare(a.Lo, b.Lo) })
	for i, g := range grants {
		if i > 0 && (g.Lo < grants[i-1].Hi || whole && g.Lo > grants[i-1].Hi) {
			t.Errorf("[%d, %d) comes after [%d, %d)", g.Lo, g.Hi, grants[i-1].Lo, grants[i-1].Hi)
		}
	}
}

// killed: while several handles allocate, the server is killed and started
// again, twice. Nothing that was granted is granted again, and every handle goes
// on by itself.
func (d Driver) killed(t *testing.T) {
	server := d.own(t)
	create(t, d.open(t, server.URL), "t")
	const most = 20_000 // grants of one handle
	var count atomic.Int64
	var mu sync.Mutex // guards all
	var all []hapax.Grant
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		s := d.open(t, server.URL)
		wg.Go(func() {
			var mine []hapax.Grant
			for len(mine) < most {
				select {
				case <-stop:
					mine = append(mine, eventually(t, s, "t", 5))
					mu.Lock()
					defer mu.Unlock()
					all = append(all, mine...)
					return
				default:
				}
				g, err := allocate(t, s, "t", 5)
				switch {
				case err == nil:
					mine = append(mine, g)
					count.Add(1)
				case !errors.Is(err, hapax.ErrStoreUnavailable):
					t.Errorf("while the server was killed: %v", err)
				}
			}
		})
	}
	await := func(more int64) {
		want := count.Load() + more
		patience.Until(t, fmt.Sprint(more, " more grants"), func() bool { return count.Load() >= want })
	}
	for range 2 {
		await(50)
		server.Kill()
		server.Start()
	}
	await(50)
	close(stop)
	wg.Wait()
	if len(all) < 150 {
		t.Errorf("only %d grants", len(all))
	}
	disjoint(t, all, false)
	if last, now := all[len(all)-1].Hi, mark(t, d.open(t, server.URL), "t"); now < last {
		t.Errorf("the mark is %d; %d was granted", now, last)
	}
}

// paused: calls to a server that does not answer fail at their deadline, and
// succeed again once it does.
func (d Driver) paused(t *testing.T) {
	server := d.own(t)
	s := d.open(t, server.URL)
	create(t, s, "t")
	before := eventually(t, s, "t", 5)
	server.Pause()
	for what, call := range map[string]func(context.Context) error{
		"Allocate": func(ctx context.Context) error { _, err := s.Allocate(ctx, "t", 5, ""); return err },
		"Tag":      func(ctx context.Context) error { _, err := s.Tag(ctx, "t"); return err },
		"Ping":     s.Ping,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: error is %v; want ErrStoreUnavailable and the context's", what, err)
		}
	}
	server.Resume()
	if after := eventually(t, s, "t", 5); after.Lo < before.Hi {
		t.Errorf("%v was granted after %v", after, before)
	}
}

// behind opens a handle through a proxy and another one around it.
func (d Driver) behind(t *testing.T) (*testservers.Proxy, driver.Store, driver.Store) {
	t.Helper()
	server, url := d.shared(t)
	proxy := testservers.NewProxy(t, server.Addr)
	s := d.open(t, proxy.URL(url))
	create(t, s, "t")
	if g, err := allocateWithin(t, patience.Long, s, "t", 10); err != nil || g.Lo != 1 {
		t.Fatalf("the first grant is %v, error %v", g, err)
	}
	return proxy, s, d.open(t, url)
}

// lostAnswers: a write that was done although its answer was lost is a gap.
func (d Driver) lostAnswers(t *testing.T) {
	proxy, s, direct := d.behind(t)
	proxy.CutReply(testservers.Contains("tags/t"))
	if g, err := allocateWithin(t, patience.Long, s, "t", 10); !errors.Is(err, hapax.ErrStoreUnavailable) || proxy.Fired() != 1 {
		t.Fatalf("the grant whose answer was lost: %v, error %v, %d connections cut", g, err, proxy.Fired())
	}
	if m := mark(t, direct, "t"); m != 21 {
		t.Errorf("the mark after the lost answer is %d; want 21", m)
	}
	if g := eventually(t, s, "t", 10); g != (hapax.Grant{Lo: 21, Hi: 31}) {
		t.Errorf("the next grant is %v; want [21, 31)", g)
	}

	layout, err := hapax.ParseLayout("time:41,worker:10,sequence:12,epoch=0s")
	if err != nil {
		t.Fatal(err)
	}
	term := hapax.Term{Now: time.UnixMilli(0), Length: 100 * time.Millisecond, TTL: time.Hour}
	lease, err := s.AcquireWorker(t.Context(), hapax.AcquireRequest{
		Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: "me", Term: term,
	})
	if err != nil {
		t.Fatal(err)
	}
	term.Length = 200 * time.Millisecond
	proxy.CutReply(testservers.Contains("workers%2Fp"))
	if _, err = s.ExtendWorker(t.Context(), lease, layout, term); !errors.Is(err, hapax.ErrStoreUnavailable) || proxy.Fired() != 2 {
		t.Fatalf("the extension whose answer was lost: error %v, %d connections cut", err, proxy.Fired())
	}
	term.Length = 300 * time.Millisecond
	if lease, err = s.ExtendWorker(t.Context(), lease, layout, term); err != nil || lease.Grant != (hapax.Grant{Lo: 100, Hi: 300}) {
		t.Fatalf("the next extension grants %v, error %v; want [100, 300)", lease.Grant, err)
	}
	proxy.CutReply(testservers.Contains(`"token":2`)) // the write, not the read before it
	if err = s.SealWorker(t.Context(), lease, 250); !errors.Is(err, hapax.ErrStoreUnavailable) || proxy.Fired() != 3 {
		t.Fatalf("the seal whose answer was lost: error %v, %d connections cut", err, proxy.Fired())
	}
	if err = s.SealWorker(t.Context(), lease, 220); !errors.Is(err, hapax.ErrLeaseLost) {
		t.Errorf("the repeated seal: error is %v; want ErrLeaseLost", err)
	}
	rows, err := direct.Workers(t.Context(), "p")
	if err != nil || len(rows) != 1 || rows[0].Mark != 250 {
		t.Errorf("the workers are %+v, error %v; want the mark 250", rows, err)
	}
}

// lostRequests: a write that never arrived changes nothing, also not later.
func (d Driver) lostRequests(t *testing.T) {
	proxy, s, direct := d.behind(t)
	proxy.CutRequest(testservers.Contains("tags/t"))
	if g, err := allocateWithin(t, patience.Long, s, "t", 10); !errors.Is(err, hapax.ErrStoreUnavailable) || proxy.Fired() != 1 {
		t.Fatalf("the grant whose request was lost: %v, error %v, %d connections cut", g, err, proxy.Fired())
	}
	if g := eventually(t, s, "t", 10); g != (hapax.Grant{Lo: 11, Hi: 21}) {
		t.Errorf("the next grant is %v; want [11, 21)", g)
	}
	proxy.Cut()
	if g, err := allocate(t, s, "t", 10); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("without a network: %v, error %v", g, err)
	}
	proxy.Pass()
	if g := eventually(t, s, "t", 10); g != (hapax.Grant{Lo: 21, Hi: 31}) {
		t.Errorf("the grant after the network is back is %v; want [21, 31)", g)
	}
	if m := mark(t, direct, "t"); m != 31 {
		t.Errorf("the mark is %d; want 31", m)
	}
}

// manyHandles: handles that open an empty place at once find one store, and
// those that race for one tag all get their share.
func (d Driver) manyHandles(t *testing.T) {
	url := d.Shared(t).URL + "/" + rand.Text()
	const handles, rounds = 16, 10
	ids := make([]string, handles)
	grants := make([][]hapax.Grant, handles)
	var wg sync.WaitGroup
	for i := range handles {
		wg.Go(func() {
			s, err := d.Open(t.Context(), url, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if ids[i], err = s.StoreID(t.Context()); err != nil {
				t.Error(err)
			}
			def, err := hapax.Tag{Name: "t"}.WithDefaults()
			if err == nil {
				_, err = s.CreateTag(t.Context(), def, hapax.CreateFirstUse)
			}
			if err != nil && !errors.Is(err, hapax.ErrTagExists) {
				t.Error(err)
			}
			for range rounds {
				a, err := s.Allocate(t.Context(), "t", 3, "")
				if err != nil {
					t.Error(err)
					return
				}
				grants[i] = append(grants[i], a.Grant)
			}
		})
	}
	wg.Wait()
	if n := len(slices.Compact(slices.Sorted(slices.Values(ids)))); n != 1 || ids[0] == "" {
		t.Errorf("the handles found the stores %q", ids)
	}
	all := slices.Concat(grants...)
	if len(all) != handles*rounds {
		t.Errorf("%d grants; want %d", len(all), handles*rounds)
	}
	disjoint(t, all, true)
}

// secured: TLS with certificates on both sides; without the right ones there is
// no connection.
func (d Driver) secured(t *testing.T) {
	server, url := d.shared(t)
	front := testservers.NewTLSFront(t, server.Addr)
	scheme, rest, _ := strings.Cut(url, "://")
	_, path, _ := strings.Cut(rest, "/")
	plain := scheme + "://" + front.Addr + "/" + path
	ca, pair := "?ca="+front.Cert, "&cert="+front.Cert+"&key="+front.Key
	for _, url := range []string{plain + ca + pair + "&tls=true", scheme + "s://" + front.Addr + "/" + path + "-2" + ca + pair} {
		s := d.open(t, url)
		create(t, s, "t")
		eventually(t, s, "t", 1)
	}
	for _, url := range []string{plain, scheme + "s://" + front.Addr, plain + ca + "&tls=true", plain + "?tls=true" + pair} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		s, err := d.Open(ctx, url, nil)
		cancel()
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("%s: error is %v; want ErrStoreUnavailable", url, err)
		}
	}
}

// quorum: a cluster that lost a member goes on, without a quorum calls fail at
// their deadline, and nothing is granted twice.
func (d Driver) quorum(t *testing.T) {
	members, url := d.Cluster(t, 3)
	warn := func(code, message string) { t.Errorf("a warning about a cluster of three: %s: %s", code, message) }
	s, err := d.Open(t.Context(), url, warn)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	create(t, s, "t")
	var all []hapax.Grant
	goOn := func() {
		t.Helper()
		for range 10 {
			all = append(all, eventually(t, s, "t", 5))
		}
	}
	goOn()
	for _, m := range members { // the leader among them
		m.Kill()
		goOn()
		m.Start()
	}
	goOn()
	members[0].Kill()
	members[1].Kill()
	for range 3 {
		if g, err := allocate(t, s, "t", 5); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("without a quorum: granted %v, error is %v; want ErrStoreUnavailable", g, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), soon/4)
		if tag, err := s.Tag(ctx, "t"); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("without a quorum: the mark %d was read, error is %v; want ErrStoreUnavailable", tag.Mark, err)
		}
		cancel()
	}
	members[0].Start()
	goOn()
	if !slices.IsSortedFunc(all, func(a, b hapax.Grant) int { return cmp.Compare(a.Lo, b.Lo) }) {
		t.Errorf("the grants went back: %v", all)
	}
	disjoint(t, all, false)
	if last, now := all[len(all)-1].Hi, mark(t, s, "t"); now < last {
		t.Errorf("the mark is %d; %d was granted", now, last)
	}
}

// warnings: a server alone is told to the operator.
func (d Driver) warnings(t *testing.T) {
	_, url := d.shared(t)
	var codes []string
	s, err := d.Open(t.Context(), url, func(code, _ string) { codes = append(codes, code) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !slices.Equal(codes, []string{"few_members"}) {
		t.Errorf("the warnings are %q; want few_members", codes)
	}
}
