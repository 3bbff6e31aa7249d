package leaf_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// TestTree runs against one ensemble; each part has a chroot of its own.
func TestTree(t *testing.T) {
	server := testservers.ZooKeeper(t)
	host := strings.TrimPrefix(server.URL, "zk://")
	conn, events, err := zk.Connect(strings.Split(host, ","), 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range events {
		}
	}()
	t.Cleanup(conn.Close)
	for name, test := range map[string]func(*testing.T, *tree){
		"node":               testNode,
		"first starts":       testFirstStarts,
		"restart":            testRestart,
		"crash":              testCrash,
		"clock behind":       testClockBehind,
		"far future":         testFarFuture,
		"takes over":         testTakesOver,
		"leaf is alive":      testLeafIsAlive,
		"somebody writes":    testSomebodyWrites,
		"resume":             testResume,
		"disturbed":          testDisturbed,
		"node removed":       testNodeRemoved,
		"file":               testFile,
		"tree behind file":   testTreeBehindFile,
		"other nodes":        testOtherNodes,
		"used up":            testUsedUp,
		"retire":             testRetire,
		"same ID twice":      testSameIDTwice,
		"other layout":       testOtherLayout,
		"mark ahead":         testMarkAhead,
		"down":               testTreeDown,
		"clock back":         testClockBack,
		"closed":             testCloseTree,
		"closed meanwhile":   testCloseMeanwhile,
		"opened late":        testReopenLate,
		"leaf's own pattern": testPattern,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &tree{conn: conn, server: server, url: server.URL + "/" + strings.ReplaceAll(strings.ReplaceAll(name, " ", "_"), "'", ""), base: "/" + strings.ReplaceAll(strings.ReplaceAll(name, " ", "_"), "'", "")})
		})
	}
}

type tree struct {
	conn   *zk.Conn
	server *testservers.Server
	url    string
	base   string
}

func (e *tree) forever() string { return e.base + "/snowflake/demo/forever" }

// put makes a node under forever as a Leaf node does.
func (e *tree) put(t *testing.T, name string, at time.Time) {
	t.Helper()
	path := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(e.forever(), "/"), "/") {
		path += "/" + part
		if _, err := e.conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			t.Fatal(err)
		}
	}
	address, _, _ := strings.Cut(name, "-")
	if _, err := e.conn.Create(e.forever()+"/"+name, leafData(address, at), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
}

func leafData(address string, at time.Time) []byte {
	ip, port, _ := strings.Cut(address, ":")
	return fmt.Appendf(nil, `{"ip":"%s","port":"%s","timestamp":%d}`, ip, port, at.UnixMilli())
}

// get returns the data of a node under forever.
func (e *tree) get(t *testing.T, name string) string {
	t.Helper()
	raw, _, err := e.conn.Get(e.forever() + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (e *tree) set(t *testing.T, name string, raw []byte) {
	t.Helper()
	if _, err := e.conn.Set(e.forever()+"/"+name, raw, -1); err != nil {
		t.Fatal(err)
	}
}

func (e *tree) children(t *testing.T) []string {
	t.Helper()
	names, _, err := e.conn.Children(e.forever())
	if err != nil {
		t.Fatal(err)
	}
	return names
}

const address = "10.0.0.9:7777"

func (e *tree) open(t *testing.T, o leaf.TreeOptions) *leaf.Tree {
	t.Helper()
	if o.Name == "" {
		o.Name = "demo"
	}
	if o.Address == "" {
		o.Address = address
	}
	tr, err := leaf.OpenTree(t.Context(), e.url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// issuer returns an issuer on a tree.
func issuer(t *testing.T, tr *leaf.Tree, o hapax.SnowflakeOptions) *hapax.Snowflake {
	t.Helper()
	s, err := hapax.NewSnowflake(t.Context(), tr, tr.Snowflake(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// request asks for the tree's worker ID at a time.
func request(tr *leaf.Tree, now time.Time) hapax.AcquireRequest {
	o := tr.Snowflake(hapax.SnowflakeOptions{})
	return hapax.AcquireRequest{
		Pool: "default", Layout: o.Layout, Workers: o.Workers, Holder: o.Holder,
		Term: hapax.Term{Now: now, Length: 3 * time.Second, Ahead: 10 * time.Millisecond, TTL: 30 * time.Second},
	}
}

func worker(t *testing.T, id hapax.ID) int64 {
	t.Helper()
	l, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	w, _ := f.Get(hapax.FieldWorker)
	return w
}

// testNode: the node is a persistent sequential one with exactly Leaf's fields, its
// suffix is the worker ID, and nothing else is under forever.
func testNode(t *testing.T, e *tree) {
	e.put(t, "10.0.0.1:7777-0000000000", time.Now())
	tr := e.open(t, leaf.TreeOptions{})
	id, err := issuer(t, tr, hapax.SnowflakeOptions{}).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const name = address + "-0000000001"
	if got := e.get(t, name); !regexp.MustCompile(`^\{"ip":"10\.0\.0\.9","port":"7777","timestamp":\d{13}\}$`).MatchString(got) {
		t.Errorf("the node holds %s", got)
	}
	if names := e.children(t); len(names) != 2 {
		t.Errorf("forever has %q; want Leaf's node and ours", names)
	}
	if tr.Worker() != 1 || worker(t, id) != 1 {
		t.Errorf("worker ID is %d, in the number %d; want the suffix, 1", tr.Worker(), worker(t, id))
	}
	_, stat, err := e.conn.Get(e.forever() + "/" + name)
	if err != nil || stat.EphemeralOwner != 0 {
		t.Errorf("the node is ephemeral, error %v", err)
	}
}

// testFirstStarts: of Leaf's nodes that started at the same time, two took worker 0
// in nine of ten rounds.
func testFirstStarts(t *testing.T, e *tree) {
	const n = 8
	workers := make([]int64, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			tr, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo", Address: fmt.Sprintf("10.0.0.%d:1", i)})
			if err != nil {
				t.Error(err)
				return
			}
			workers[i] = tr.Worker()
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, w := range workers {
		seen[w] = true
	}
	if len(seen) != n {
		t.Errorf("worker IDs are %v; want %d different ones", workers, n)
	}
}

// testRestart: after a graceful stop the same worker ID goes on at once, above what
// was issued.
func testRestart(t *testing.T, e *tree) {
	var last hapax.ID
	for range 3 {
		tr := e.open(t, leaf.TreeOptions{})
		s := issuer(t, tr, hapax.SnowflakeOptions{})
		for range 5000 {
			id, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
		}
		if err := errors.Join(s.Close(t.Context()), tr.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(e.children(t)); n != 1 {
		t.Errorf("%d nodes; want the one", n)
	}
}

// testCrash: after a crash the next start is granted nothing that the last one was.
func testCrash(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	now := time.Now()
	lease, err := tr.AcquireWorker(t.Context(), request(tr, now))
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	tr = e.open(t, leaf.TreeOptions{})
	if l, err := tr.AcquireWorker(t.Context(), request(tr, now.Add(time.Second))); !errors.Is(err, hapax.ErrNoWorker) {
		t.Errorf("within the old grant: got %v, error %v; want ErrNoWorker", l.Grant, err)
	}
	next, err := tr.AcquireWorker(t.Context(), request(tr, now.Add(3100*time.Millisecond)))
	if err != nil || next.Grant.Lo < lease.Grant.Hi {
		t.Errorf("got %v after %v, error %v", next.Grant, lease.Grant, err)
	}
}

// testClockBehind: Leaf fell back to its local file, and started anyway.
func testClockBehind(t *testing.T, e *tree) {
	now := time.Now()
	e.put(t, address+"-0000000005", now)
	tr := e.open(t, leaf.TreeOptions{File: filepath.Join(t.TempDir(), "workerID.properties")})
	for _, behind := range []time.Duration{time.Hour, time.Minute, time.Second, 0} {
		_, err := tr.AcquireWorker(t.Context(), request(tr, now.Add(-behind)))
		e, ok := errors.AsType[*hapax.NoWorkerError](err)
		if !ok || e.NextFree.Before(now.Add(4*time.Second)) || !strings.Contains(err.Error(), "clock here") {
			t.Errorf("%v behind: %v; want to wait until the clock is past the node's timestamp", behind, err)
		}
	}
	lease, err := tr.AcquireWorker(t.Context(), request(tr, now.Add(6*time.Second)))
	if err != nil || lease.Worker != 5 {
		t.Errorf("when the clock is right: worker %d, error %v", lease.Worker, err)
	}
}

func testFarFuture(t *testing.T, e *tree) {
	reported := time.UnixMilli(time.Now().AddDate(3, 0, 0).UnixMilli())
	e.put(t, address+"-0000000005", reported)
	tr := e.open(t, leaf.TreeOptions{})
	for _, now := range []time.Time{time.Now(), reported.Add(-hapax.PoisonMargin - time.Millisecond)} {
		if _, err := tr.AcquireWorker(t.Context(), request(tr, now)); !errors.Is(err, hapax.ErrWorkerPoisoned) {
			t.Errorf("at %v, error is %v; want ErrWorkerPoisoned", now, err)
		}
	}
	if _, err := tr.AcquireWorker(t.Context(), request(tr, reported.Add(-hapax.PoisonMargin))); errors.Is(err, hapax.ErrWorkerPoisoned) || !errors.Is(err, hapax.ErrNoWorker) {
		t.Errorf("as far ahead as is waited for: %v; want ErrNoWorker", err)
	}
}

// testTakesOver: a worker ID that a Leaf node had is granted from 5 s after its last
// report on.
func testTakesOver(t *testing.T, e *tree) {
	at := time.Now().Add(-5200 * time.Millisecond)
	e.put(t, address+"-0000000039", at)
	tr := e.open(t, leaf.TreeOptions{})
	now := time.Now()
	req := request(tr, now)
	req.Term.Behind = time.Minute
	lease, err := tr.AcquireWorker(t.Context(), req)
	if err != nil || lease.Worker != 39 {
		t.Fatalf("worker %d, error %v; want 39", lease.Worker, err)
	}
	if lo := req.Layout.TimeOf(lease.Grant.Lo); lo.Before(at.Add(4999 * time.Millisecond)) {
		t.Errorf("granted from %v, %v after the report; want 5 s", lo, lo.Sub(at))
	}
}

// testLeafIsAlive: a node whose Leaf goes on reporting is never taken over.
func testLeafIsAlive(t *testing.T, e *tree) {
	now := time.Now()
	e.put(t, address+"-0000000007", now)
	tr := e.open(t, leaf.TreeOptions{})
	for range 10 {
		now = now.Add(3 * time.Second)
		e.set(t, address+"-0000000007", leafData(address, now))
		if l, err := tr.AcquireWorker(t.Context(), request(tr, now.Add(2900*time.Millisecond))); !errors.Is(err, hapax.ErrNoWorker) {
			t.Fatalf("got %v, error %v; want ErrNoWorker while its Leaf reports", l.Grant, err)
		}
	}
}

// testSomebodyWrites: a lease ends when another process reports under the same
// address.
func testSomebodyWrites(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	now := time.Now()
	req := request(tr, now)
	lease, err := tr.AcquireWorker(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.Term.Now = now.Add(2 * time.Second)
	if lease, err = tr.ExtendWorker(t.Context(), lease, req.Layout, req.Term); err != nil {
		t.Fatal(err)
	}
	e.set(t, address+"-0000000000", leafData(address, now))
	req.Term.Now = now.Add(4 * time.Second)
	if _, err = tr.ExtendWorker(t.Context(), lease, req.Layout, req.Term); !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("error is %v; want ErrStoreUnsafe", err)
	}
	if _, err = tr.ExtendWorker(t.Context(), lease, req.Layout, req.Term); !errors.Is(err, hapax.ErrLeaseLost) {
		t.Errorf("then: %v; want ErrLeaseLost", err)
	}
	if !strings.Contains(e.get(t, address+"-0000000000"), fmt.Sprint(now.UnixMilli())) {
		t.Error("the other process's report was written over")
	}
}

func testNodeRemoved(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	req := request(tr, time.Now())
	lease, err := tr.AcquireWorker(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.conn.Delete(e.forever()+"/"+address+"-0000000000", -1); err != nil {
		t.Fatal(err)
	}
	req.Term.Now = req.Term.Now.Add(2 * time.Second)
	if _, err := tr.ExtendWorker(t.Context(), lease, req.Layout, req.Term); !errors.Is(err, hapax.ErrStoreReplaced) {
		t.Errorf("extending: %v; want ErrStoreReplaced", err)
	}
	req.Term.Now = req.Term.Now.Add(time.Minute)
	if _, err := tr.AcquireWorker(t.Context(), req); !errors.Is(err, hapax.ErrStoreReplaced) {
		t.Errorf("acquiring: %v; want ErrStoreReplaced", err)
	}
}

// testFile: Leaf's local file carries no time; ours has the mark beside the ID, and
// what Leaf left there is understood.
func testFile(t *testing.T, e *tree) {
	file := filepath.Join(t.TempDir(), "a", "workerID.properties")
	tr := e.open(t, leaf.TreeOptions{File: file})
	req := request(tr, time.Now())
	lease, err := tr.AcquireWorker(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if want := fmt.Sprintf("workerID=0\ntimestamp=%d\n", req.Layout.TimeOf(lease.Grant.Hi).UnixMilli()); err != nil || string(raw) != want {
		t.Errorf("the file holds %q, error %v; want %q", raw, err, want)
	}
	if err := errors.Join(tr.SealWorker(t.Context(), lease, lease.Grant.Lo+100), tr.Close()); err != nil {
		t.Fatal(err)
	}
	tr = e.open(t, leaf.TreeOptions{File: file})
	again, err := tr.AcquireWorker(t.Context(), request(tr, req.Term.Now.Add(time.Second)))
	if err != nil || again.Grant.Lo < lease.Grant.Lo+100 {
		t.Errorf("after a seal: %v, error %v", again.Grant, err)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]error{
		"#Leaf wrote this\nworkerID=0\n":            nil,
		"workerID=9\n":                              hapax.ErrStoreReplaced,
		"workerID=x\n":                              hapax.ErrStoreCorrupt,
		"timestamp=5\n":                             hapax.ErrStoreCorrupt,
		strings.Repeat("#", 5000):                   hapax.ErrStoreCorrupt,
		"workerID=0\ntimestamp=99999999999999999\n": hapax.ErrStoreCorrupt,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tr, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo", Address: address, File: file})
		if err == nil {
			_ = tr.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("with %.40q: %v; want %v", text, err, want)
		}
	}
}

// testTreeBehindFile: a tree that was restored from a backup is behind the file.
func testTreeBehindFile(t *testing.T, e *tree) {
	file := filepath.Join(t.TempDir(), "workerID.properties")
	tr := e.open(t, leaf.TreeOptions{File: file})
	now := time.Now()
	lease, err := tr.AcquireWorker(t.Context(), request(tr, now))
	if err == nil {
		err = errors.Join(tr.SealWorker(t.Context(), lease, lease.Grant.Lo+1), tr.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	ahead := fmt.Sprintf("workerID=0\ntimestamp=%d\n", now.Add(time.Second).UnixMilli())
	if err := os.WriteFile(file, []byte(ahead), 0o600); err != nil {
		t.Fatal(err)
	}
	tr = e.open(t, leaf.TreeOptions{File: file})
	if l, err := tr.AcquireWorker(t.Context(), request(tr, now.Add(time.Minute))); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("got %v, error %v; want ErrStoreRolledBack", l.Grant, err)
	}
	_ = tr.Close()
	_, err = leaf.OpenTree(t.Context(), e.url+"/empty", leaf.TreeOptions{Name: "demo", Address: address, File: file})
	if !errors.Is(err, hapax.ErrStoreReplaced) {
		t.Errorf("an empty tree: %v; want ErrStoreReplaced", err)
	}
}

// testSameIDTwice: two processes that run as the same ip:port are granted disjoint
// time all the same.
func testSameIDTwice(t *testing.T, e *tree) {
	a := e.open(t, leaf.TreeOptions{})
	b := e.open(t, leaf.TreeOptions{})
	now := time.Now()
	first, err := a.AcquireWorker(t.Context(), request(a, now))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := b.AcquireWorker(t.Context(), request(b, now.Add(time.Second))); !errors.Is(err, hapax.ErrNoWorker) {
		t.Errorf("the second was granted %v, error %v; want ErrNoWorker", l.Grant, err)
	}
	second, err := b.AcquireWorker(t.Context(), request(b, now.Add(10*time.Second)))
	if err != nil || second.Grant.Lo < first.Grant.Hi {
		t.Fatalf("the second was granted %v after %v, error %v", second.Grant, first.Grant, err)
	}
	req := request(a, now.Add(2*time.Second))
	if l, err := a.ExtendWorker(t.Context(), first, req.Layout, req.Term); err == nil {
		t.Errorf("the first was granted %v too", l.Grant)
	}
}

func testOtherLayout(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	req := request(tr, time.Now())
	req.Workers = hapax.WorkerRange{Lo: 500, Hi: 501}
	if _, err := tr.AcquireWorker(t.Context(), req); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("other workers: %v", err)
	}
	// Leaf's numbers turn negative when its 41 bits of time are over.
	if l, err := tr.AcquireWorker(t.Context(), request(tr, req.Layout.Ends())); !errors.Is(err, hapax.ErrTimeExhausted) {
		t.Errorf("at the end of the layout's time: got %v, error %v; want ErrTimeExhausted", l.Grant, err)
	}
	var err error
	if req.Layout, err = hapax.ParseLayout(hapax.LayoutJSSafe53); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.AcquireWorker(t.Context(), req); !errors.Is(err, hapax.ErrLayoutMismatch) {
		t.Errorf("another layout: %v", err)
	}
}

// testMarkAhead: what the node tells is ahead of all that was issued, so that a
// small rollback across a restart repeats nothing, of Leaf either.
func testMarkAhead(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	s := issuer(t, tr, hapax.SnowflakeOptions{})
	l, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	var reported time.Time
	reports := 0 // that were seen, with that of the beginning
	patience.Until(t, "two more reports", func() bool {
		id, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at, err := l.Time(id)
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := tr.Nodes(t.Context())
		if err != nil || len(nodes) != 1 || !nodes[0].Reported.After(at) {
			t.Fatalf("nodes are %+v, error %v; want a timestamp above %v", nodes, err, at)
		}
		if nodes[0].Reported.After(reported) {
			reported = nodes[0].Reported
			reports++
		}
		return reports == 3
	})
}

func testTreeDown(t *testing.T, e *tree) {
	if e.server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	proxy := testservers.NewProxy(t, e.server.Addr)
	proxy.Blackhole()
	url := proxy.URL(e.url)
	_, err := leaf.OpenTree(t.Context(), url, leaf.TreeOptions{Name: "demo", Address: address, Timeout: 200 * time.Millisecond})
	if !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("error is %v; want ErrStoreUnavailable", err)
	}
	proxy.Pass()
	tr, err := leaf.OpenTree(t.Context(), url, leaf.TreeOptions{Name: "demo", Address: address})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	s := issuer(t, tr, hapax.SnowflakeOptions{})
	proxy.Cut()
	err = patience.Await(t, "an error, as what was granted is used up", func() (error, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Next(ctx)
		return err, nil
	}, func(err error) bool { return err != nil })
	if !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("without the tree: %v; want ErrStoreUnavailable", err)
	}
	proxy.Pass()
	if _, err := s.Next(t.Context()); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

// testPattern: whatever we write under forever Leaf can read: the part after the
// first dash is a number.
func testPattern(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	issuer(t, tr, hapax.SnowflakeOptions{})
	for _, name := range e.children(t) {
		if !regexp.MustCompile(`^[^-]+:\d+-\d{10}$`).MatchString(name) {
			t.Errorf("node %q", name)
		}
	}
}
