package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A cluster is three servers over one shared store, and for each server and tag
// one client, which asks when it is told to, or as fast as it is answered, for many
// numbers or for one.
//
// A request may fail only where the test knows why: while its server is dead; for
// want of a grant, after a server was started, until its first success; for want
// of a segment when the store is slower than the clients, or when it was killed,
// until every node has had grants after its return. That no request fails while numbers
// of a segment are left is tested by drain, which takes them to the last one.
type cluster struct {
	t     *testing.T
	store *testservers.Server
	step  int64       // of the segment tag, fixed, so that the store is asked often
	away  atomic.Bool // the store is dead, or not every node has had a grant since its return
	nodes []*node
}

type node struct {
	dir, data, address string
	args               []string
	server             *serving
	lives              atomic.Int64 // odd while the server is dead
	clients            []*client    // segment, snowflake
}

// A client takes the numbers of one tag from one node.
type client struct {
	c    *cluster
	node *node
	tag  string

	request sync.Mutex // held from a request to its verdict; guards ids
	ids     []hapax.ID

	count  atomic.Int64 // len(ids)
	pardon atomic.Bool  // a request may fail for want of a grant
}

const clusterBatch = 250 // numbers in a request for many

func newCluster(t *testing.T, store *testservers.Server, step int64) *cluster {
	c := &cluster{t: t, store: store, step: step}
	segment, snowflake, pool := unusedName("orders"), unusedName("events"), unusedName("pool")
	for i := range 3 {
		n := &node{dir: t.TempDir(), data: fmt.Sprint("node", i), address: freeAddress(t)}
		n.args = []string{
			"--store", store.URL, "--http", n.address, "--data", n.data,
			"--tags", fmt.Sprintf("{%s: {step: %d, max_step: %d}, %s: {kind: snowflake, pool: %s}}", segment, step, step, snowflake, pool),
			// Granted time outlasts every outage of this test, even where a store starts slowly.
			"--pools", fmt.Sprintf("{%s: {grant: 2m}}", pool),
		}
		n.server = serve(t, n.dir, nil, n.args...)
		for _, tag := range []string{segment, snowflake} {
			l := &client{c: c, node: n, tag: tag}
			l.pardon.Store(true)
			n.clients = append(n.clients, l)
		}
		c.nodes = append(c.nodes, n)
	}
	return c
}

// unusedName returns a name that nobody has used, also on a server that exists already.
func unusedName(prefix string) string { return prefix + strconv.FormatInt(time.Now().UnixNano(), 36) }

// run lets the clients ask until the returned function is called.
func (c *cluster) run() (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	for client := range c.clients {
		wg.Go(func() { client.run(ctx) })
	}
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// clients yields every client.
func (c *cluster) clients(yield func(*client) bool) {
	for _, n := range c.nodes {
		for _, client := range n.clients {
			if !yield(client) {
				return
			}
		}
	}
}

func (l *client) run(ctx context.Context) {
	for n := 1; ctx.Err() == nil && !l.c.t.Failed(); n++ {
		count := clusterBatch
		if n%4 == 0 {
			count = 1
		}
		l.request.Lock()
		life, pardoned, away := l.node.lives.Load(), l.pardon.Load(), l.c.away.Load()
		err := l.takeLocked(count)
		dead := life%2 == 1 || l.node.lives.Load() != life
		switch {
		case err == nil && pardoned && !away && !dead:
			l.pardon.Store(false)
		case err == nil, dead:
		case l == l.node.clients[0] && refused(err) == hapax.ErrRefillPending.Code():
		case l.pardon.Load() && wantsGrant(err):
		default:
			l.c.t.Errorf("%s of %s: %v\n%s", l.tag, l.node.address, err, tail(l.node.server.logged()))
		}
		l.request.Unlock()
		patience.Again() // others are to have their share
	}
}

// takeLocked takes so many numbers, which must be higher than all before.
func (l *client) takeLocked(count int) error {
	get := take
	if count == 1 {
		get = takeOne
	}
	ids, err := get(patient, "http://"+l.node.address, l.tag, count)
	for _, id := range ids {
		if n := len(l.ids); n > 0 && id <= l.ids[n-1] {
			l.c.t.Errorf("%s of %s: after %d came %d", l.tag, l.node.address, l.ids[n-1], id)
		}
		l.ids = append(l.ids, id)
	}
	l.count.Add(int64(len(ids)))
	return err
}

// takeOne asks for a number by the route for one.
func takeOne(web *http.Client, url, tag string, _ int) ([]hapax.ID, error) {
	resp, err := web.Get(url + "/v1/tags/" + tag + "/next")
	if err != nil {
		return nil, err
	}
	body, err := answer(resp)
	if err != nil {
		return nil, err
	}
	var id hapax.ID
	return []hapax.ID{id}, json.Unmarshal(body, &id)
}

// await waits until the clients together have so many numbers.
func (c *cluster) await(total int64) {
	c.t.Helper()
	for had := int64(-1); c.total() < total; { // for as long as there are more and more
		had = c.total()
		patience.Until(c.t, fmt.Sprintf("%d numbers, after %d", total, had), func() bool { return c.total() > had || c.t.Failed() })
		if c.t.Failed() {
			c.t.FailNow()
		}
	}
}

func (c *cluster) total() (n int64) {
	for l := range c.clients {
		n += l.count.Load()
	}
	return n
}

// awaitProgress waits until each client has so many more numbers.
func (c *cluster) awaitProgress(more int64) {
	c.t.Helper()
	for l := range c.clients {
		want := l.count.Load() + more
		patience.Until(c.t, fmt.Sprintf("%d more of %s from %s", more, l.tag, l.node.address), func() bool {
			return l.count.Load() >= want || c.t.Failed()
		})
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// outage kills the store in full work, has every node use up what it was
// granted, calls dry, starts the store again and waits until all is well. The
// snowflake clients go on all the while.
func (c *cluster) outage(dry func()) {
	c.t.Helper()
	c.away.Store(true)
	for _, n := range c.nodes {
		l := n.clients[0]
		l.request.Lock() // a success from before is over, and lifts no pardon
		l.pardon.Store(true)
		l.request.Unlock()
	}
	c.store.Kill()
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		wg.Go(func() { n.clients[0].drain() })
	}
	wg.Wait()
	dry()
	began := time.Now()
	c.store.Start()
	started := time.Now()
	c.awaitProgress(2 * c.step) // the first may be a grant whose answer came with the crash
	c.away.Store(false)
	c.t.Logf("the store took %v to start, every node had two new grants %v later", started.Sub(began), time.Since(started))
}

// drain takes exactly what the node says it was granted, of which no request may
// fail, and then one number more, which must be refused: the store is away.
func (l *client) drain() {
	l.request.Lock()
	defer l.request.Unlock()
	got := 0
	for !l.c.t.Failed() {
		granted := int(l.node.server.metric(fmt.Sprintf(`hapax_remaining{tag="%s"}`, l.tag)))
		for granted > 0 {
			count := min(granted, clusterBatch)
			if err := l.takeLocked(count); err != nil {
				l.c.t.Errorf("%s of %s: %d numbers are granted, and a request for %d fails: %v", l.tag, l.node.address, granted, count, err)
				return
			}
			granted -= count
			got += count
		}
		// An answer that arrived with the crash may have brought one more grant.
		if err := l.takeLocked(1); wantsGrant(err) {
			break
		} else if err != nil {
			l.c.t.Errorf("%s of %s: with no numbers left and no store: %v", l.tag, l.node.address, err)
			return
		}
	}
	l.c.t.Logf("%s of %s: %d numbers without the store", l.tag, l.node.address, got)
}

// crash kills the node in full work.
func (n *node) crash() {
	n.lives.Add(1)
	n.server.kill()
}

// restart starts the node again in its directory.
func (c *cluster) restart(n *node) {
	c.t.Helper()
	for _, l := range n.clients {
		l.pardon.Store(true)
	}
	n.server = serve(c.t, n.dir, nil, n.args...)
	n.lives.Add(1)
}

// take has every client take so many numbers; where its node waits for a grant, as soon as
// that has one.
func (c *cluster) take(count int) {
	c.t.Helper()
	for l := range c.clients {
		for got := 0; got < count; got += clusterBatch {
			patience.Until(c.t, fmt.Sprintf("%s from %s", l.tag, l.node.address), func() bool {
				l.request.Lock()
				defer l.request.Unlock()
				err := l.takeLocked(clusterBatch)
				if err != nil && !wantsGrant(err) {
					c.t.Fatalf("%s of %s: %v\n%s", l.tag, l.node.address, err, tail(l.node.server.logged()))
				}
				return err == nil
			}, l.node.server)
		}
	}
}

// finish checks what all have taken, and stops all nodes.
func (c *cluster) finish() {
	c.t.Helper()
	taken := map[string][]hapax.ID{}
	for l := range c.clients {
		taken[l.tag] = append(taken[l.tag], l.ids...)
	}
	for tag, ids := range taken {
		distinct(c.t, tag, ids)
		c.t.Logf("%s: %d numbers", tag, len(ids))
	}
	for _, n := range c.nodes {
		if code := n.server.stop(); code != 0 {
			c.t.Errorf("the exit code is %d: %s", code, n.server.logged())
		}
	}
}

// testNodes: three servers issue from one store through a crash of the store, and one of
// themselves. While the store is away each uses up what it was granted, of which no
// request may fail, and then refuses; snowflakes go on. No number comes twice.
func testNodes(t *testing.T, store *testservers.Server) {
	store.MustControl()
	c := newCluster(t, store, 2*clusterBatch)
	c.take(clusterBatch)
	store.Kill()
	for _, n := range c.nodes {
		n.clients[0].drain()
		if err := n.clients[1].takeLocked(clusterBatch); err != nil { // nobody else asks
			t.Errorf("%s of %s, which has granted time: %v", n.clients[1].tag, n.address, err)
		}
	}
	store.Start()
	c.take(4 * clusterBatch) // of which the first grant's answer may have come with the crash
	c.nodes[0].crash()
	c.restart(c.nodes[0])
	c.take(4 * clusterBatch)
	c.finish()
}

// testBusyNodes: the same in full work, again and again.
func testBusyNodes(t *testing.T, store *testservers.Server) {
	store.MustControl()
	const total = 1_000_000
	c := newCluster(t, store, 5000)
	stop := c.run()
	defer stop()
	c.await(total / 4)
	c.outage(func() {})
	c.await(total / 2)
	c.nodes[0].crash()
	c.restart(c.nodes[0])
	c.awaitProgress(2 * c.step)
	c.await(total * 3 / 4)
	c.outage(func() {
		c.nodes[1].crash() // it comes back before the store does
		c.restart(c.nodes[1])
		patience.Slow(3 * time.Second)
	})
	c.await(total)
	stop()
	c.finish()
}

// A store that has forgotten everything is refused by all who knew it. One of those is
// dead, and named until somebody speaks for it; then nothing is repeated.
func TestStoreThatForgets(t *testing.T) {
	t.Parallel()
	store := testservers.Redis(t, "--appendonly", "no")
	c := newCluster(t, store, 2*clusterBatch)
	c.take(4 * clusterBatch)
	for l := range c.clients {
		l.pardon.Store(true)
	}
	for _, n := range c.nodes {
		n.server.await(`"code":"not_durable"`)
		if warnings := n.server.metric(`hapax_store_warnings_total{code="not_durable"}`); warnings == 0 {
			t.Errorf("%s: no warning is counted", n.address)
		}
	}
	gone := c.nodes[1]
	gone.crash() // what it used nobody else knows, and the new store will know of no node that does not live
	living := []*node{c.nodes[0], c.nodes[2]}
	store.Kill()
	store.Start()

	for _, n := range living {
		l := n.clients[0]
		l.request.Lock()
		patience.Until(t, n.address+" refuses the store", func() bool {
			err := l.takeLocked(clusterBatch)
			code := refused(err)
			if err != nil && !wantsGrant(err) && code != hapax.ErrStoreReplaced.Code() && code != hapax.ErrStoreRolledBack.Code() && code != hapax.ErrFenced.Code() {
				t.Fatalf("%s: %v", n.address, err)
			}
			return err != nil && !wantsGrant(err)
		})
		l.request.Unlock()
	}

	name := filepath.Join(gone.dir, gone.data)
	for _, n := range living {
		patience.Until(t, n.address+" tells of the fence", func() bool { return n.server.metric("hapax_fenced") == 1 })
		n.server.await(name)
	}
	const floor = 10_000_000
	for want, args := range map[string][]string{
		name:                    nil,
		name + " ":              {"--dry-run"},
		"is known to have":      {"--floor", "17"},
		"to have reached; prop": {"--floor", "17", "--dry-run"},
	} {
		r := run(t, gone.dir, append([]string{"adopt", "--yes", "--server", "http://" + living[0].address}, args...)...)
		if r.code == 0 || !strings.Contains(r.err, strings.TrimSpace(want)) {
			t.Errorf("adopt %q: exit code %d, %s", args, r.code, r.err)
		}
	}
	row := missingNode(t, gone.dir, "http://"+living[1].address).Row
	if r := speak(t, gone.dir, "nodes", "settle", row, "--yes", "--server", "http://"+living[1].address, "--floor", strconv.Itoa(floor)); r.code != 0 {
		t.Fatalf("settle: exit code %d, %s", r.code, r.err)
	}
	c.restart(gone)
	for l := range c.clients {
		var err error
		t.Cleanup(func() {
			if err != nil {
				t.Logf("%s of %s: %v\n%s", l.tag, l.node.address, err, l.node.server.logged())
			}
		})
		patience.Until(t, l.node.address+" issues again", func() bool {
			l.request.Lock()
			defer l.request.Unlock()
			err = l.takeLocked(1)
			return err == nil
		})
	}
	c.take(4 * clusterBatch)
	var segments, snowflakes []hapax.ID
	for _, n := range c.nodes {
		for i, into := range []*[]hapax.ID{&segments, &snowflakes} {
			n.clients[i].request.Lock()
			*into = append(*into, n.clients[i].ids...)
			n.clients[i].request.Unlock()
		}
		n.clients[0].request.Lock()
		if last := n.clients[0].ids[len(n.clients[0].ids)-1]; last < floor {
			t.Errorf("%s: %d is below the floor", n.address, last)
		}
		n.clients[0].request.Unlock()
	}
	distinct(t, "segment", segments)
	distinct(t, "snowflake", snowflakes)
}
