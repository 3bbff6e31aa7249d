package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// short returns the flags of a server whose grants last a second and whose tags
// take a hundred numbers at a time. It has the given worker IDs to choose from.
func short(storeURL, pool, workers string) []string {
	return []string{
		"--store", storeURL, "--store-timeout", "1s", "--max-wait", "300ms",
		"--tags", fmt.Sprintf("{%s-orders: {step: 100, max_step: 100}, %s-events: {kind: snowflake, pool: %s}}", pool, pool, pool),
		"--pools", fmt.Sprintf("{%s: {grant: 1s, max_grant: 1s, lease: 1s, workers: %s}}", pool, workers),
	}
}

// testOutage: the store is away for longer than the grants last. Requests
// fail as what they are, and succeed again by themselves when it is back.
func testOutage(t *testing.T, store *testservers.Server) {
	if store.Addr == "" {
		t.Skip("an existing server may have several addresses")
	}
	for name, lose := range map[string]func(*testservers.Proxy){"cut": (*testservers.Proxy).Cut, "silent": (*testservers.Proxy).Blackhole} {
		t.Run(name, func(t *testing.T) {
			proxy := testservers.NewProxy(t, store.Addr)
			pool := unusedName("outage")
			s := serve(t, t.TempDir(), nil, short(proxy.URL(store.URL), pool, "0-1023")...)
			tags := []string{pool + "-orders", pool + "-events"}
			for _, tag := range tags {
				takeSoon(t, s, tag, 10)
			}
			lose(proxy)
			taken := map[string][]hapax.ID{}
			for _, tag := range tags {
				taken[tag] = useUp(t, s, tag)
			}
			// What is not in use can be issued from until a call to the store has failed, too.
			patience.Until(t, "with nothing left to issue it is not ready", func() bool { return s.metric("hapax_ready") == 0 })
			back := time.Now()
			proxy.Pass()
			for _, tag := range tags {
				ids := takeSoon(t, s, tag, 1)
				t.Logf("%s is issued again after %v", tag, time.Since(back).Round(time.Millisecond))
				distinct(t, tag, append(taken[tag], ids...))
			}
		})
	}
}

// useUp takes numbers until the server says that the store is away.
func useUp(t *testing.T, s *serving, tag string) (taken []hapax.ID) {
	patience.Until(t, tag+" is used up", func() bool {
		ids, err := take(http.DefaultClient, s.url, tag, 10)
		taken = append(taken, ids...)
		if err != nil && !wantsGrant(err) {
			t.Errorf("%s without a store: %v", tag, err)
			return true
		}
		return refused(err) == hapax.ErrStoreUnavailable.Code()
	})
	return taken
}

// testPause: a server is stopped for longer than its grant and its lease, while
// another one takes its only worker over. When it goes on it finds out, issues
// nothing of the other's, and has the worker again when that is free.
func testPause(t *testing.T, store *testservers.Server) {
	pool := unusedName("pause")
	tag := pool + "-events"
	// Whoever merely waits for the processor keeps the worker: that takes seven seconds.
	args := append(short(store.URL, pool, "5"), "--pools", fmt.Sprintf("{%s: {grant: 2s, max_grant: 2s, lease: 5s, workers: 5}}", pool))
	sleeper := serve(t, t.TempDir(), nil, args...)
	taken := takeSoon(t, sleeper, tag, 100)
	if err := sleeper.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// These requests are under way when the sleeper wakes up.
	var asleep sync.WaitGroup
	late := make([][]hapax.ID, 4)
	for i := range late {
		asleep.Go(func() { late[i], _ = take(patient, sleeper.url, tag, 100) }) // it may be refused
	}
	other := serve(t, t.TempDir(), nil, args...)
	noWorker := hapax.ErrNoWorker.Code()
	taken = append(taken, takeSoon(t, other, tag, 100, noWorker)...)
	if err := sleeper.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	asleep.Wait()
	patience.Until(t, "the sleeper knows", func() bool {
		ids, err := take(http.DefaultClient, sleeper.url, tag, 100)
		taken = append(taken, ids...)
		taken = append(taken, takeSoon(t, other, tag, 100)...)
		return refused(err) == noWorker
	})
	sleeper.await(`"event":"worker_lost"`)
	for _, ids := range late {
		taken = append(taken, ids...)
	}
	if code := other.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, other.logged())
	}
	taken = append(taken, takeSoon(t, sleeper, tag, 100, noWorker)...)
	distinct(t, tag, taken)
}

// testClone: a data directory that was copied, with the identity of its node in
// it, is used beside its original. Both go on, also when either of them starts again,
// and nothing comes twice.
func testClone(t *testing.T, store *testservers.Server) {
	pool := unusedName("clone")
	args := short(store.URL, pool, "0-7")
	dir := t.TempDir()
	original := append(slices.Clip(args), "--data", "original")
	first := serve(t, dir, nil, original...)
	tags := []string{pool + "-orders", pool + "-events"}
	ids := map[string][]hapax.ID{}
	for _, tag := range tags {
		ids[tag] = takeSoon(t, first, tag, 1)
	}
	if err := os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(filepath.Join(dir, "original"))); err != nil {
		t.Fatal(err)
	}
	second := serve(t, dir, nil, append(args, "--data", "copy")...)
	bothIssue := func() {
		t.Helper()
		for _, s := range []*serving{first, second, first, second} {
			for _, tag := range tags {
				ids[tag] = append(ids[tag], takeSoon(t, s, tag, 50)...)
			}
		}
	}
	bothIssue()
	first.kill()
	first = serve(t, dir, nil, original...)
	bothIssue()
	for _, tag := range tags {
		distinct(t, tag, ids[tag])
	}
}

// testLatency: once it is warm, with two seconds' numbers in hand, a server
// whose store is 50 ms away issues at a steady rate without any request waiting
// for the store.
func testLatency(t *testing.T, store *testservers.Server) {
	if store.Addr == "" {
		t.Skip("an existing server may have several addresses")
	}
	const batch, rate, lasts = 1000, 100_000, 30 * time.Second
	proxy := testservers.NewProxy(t, store.Addr)
	tag := unusedName("latency")
	s := serve(t, t.TempDir(), nil, "--store", proxy.URL(store.URL))
	proxy.Delay(50*time.Millisecond, 0)
	refills := fmt.Sprintf(`hapax_refills_total{pool="",tag="%s"}`, tag)
	issued, warm := 0, false
	steadily := func(more func() bool) {
		over := time.Now().Add(patience.Long)
		for tick := time.Tick(time.Second * batch / rate); more(); <-tick {
			if time.Now().After(over) {
				t.Fatalf("%v refills within %v: %s", s.metric(refills), patience.Long, s.logged())
			}
			ids, err := take(http.DefaultClient, s.url, tag, batch)
			if err != nil && (warm || !wantsGrant(err)) {
				t.Fatalf("%v: %s", err, s.logged())
			}
			issued += len(ids)
		}
	}
	inHand := fmt.Sprintf(`hapax_remaining{tag="%s"}`, tag)
	steadily(func() bool { return s.metric(inHand) < 2*rate })
	const waits = `hapax_waits_total{for="store"}`
	warmUp, refilled, began := s.metric(waits), s.metric(refills), time.Now()
	issued, warm = 0, true
	steadily(func() bool {
		return time.Since(began) < lasts || issued%(10*batch) != 0 || s.metric(refills) == refilled
	})
	took := time.Since(began)
	if waited := s.metric(waits) - warmUp; waited != 0 {
		t.Errorf("%v requests waited for the store after the warm-up, %v during it", waited, warmUp)
	}
	t.Logf("%v waits and %v refills while warming up; then %.0f numbers/s, %v refills and no wait",
		warmUp, refilled, float64(issued)/took.Seconds(), s.metric(refills)-refilled)
}

// While the store does not answer, hapax nodes says so, and does not say that there are none.
func TestNodesWithoutTheStore(t *testing.T) {
	t.Parallel()
	store := testservers.Redis(t)
	proxy := testservers.NewProxy(t, store.Addr)
	dir := t.TempDir()
	s := serve(t, dir, nil, "--store", proxy.URL(store.URL))
	takeSoon(t, s, "orders", 1)
	if out := ok(t, dir, "nodes", "--server", s.url); !strings.Contains(out, "serving") {
		t.Errorf("the nodes: %s", out)
	}
	proxy.Blackhole()
	for _, more := range [][]string{{}, {"--json"}} {
		r := run(t, dir, append([]string{"nodes", "--server", s.url}, more...)...)
		if r.code != 1 || !strings.Contains(r.err, "cannot read now which nodes there are") {
			t.Errorf("nodes %q: exit code %d, %s%s", more, r.code, r.out, r.err)
		}
	}
}
