package leaf_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
)

// testOtherNodes: what others have under forever is never used, whatever it is.
func testOtherNodes(t *testing.T, e *tree) {
	for i := range 3 {
		e.put(t, fmt.Sprintf("10.0.0.%d:1-%010d", i, i), time.Now())
	}
	// Nodes whose numbers the counter has yet to reach: a tree that was copied.
	e.put(t, "10.1.1.1:1-0000000006", time.Now())
	e.put(t, "10.1.1.2:1-0000000008", time.Now())
	e.put(t, "no number-x", time.Now())
	tr := e.open(t, leaf.TreeOptions{})
	used := map[int64]bool{0: true, 1: true, 2: true, 6: true, 8: true}
	if used[tr.Worker()] {
		t.Errorf("worker ID is %d, which is another node's", tr.Worker())
	}
	for _, n := range e.children(t) {
		if strings.HasPrefix(n, address) && n != fmt.Sprintf("%s-%010d", address, tr.Worker()) {
			t.Errorf("node %s was left behind", n)
		}
	}
}

// testUsedUp: when 1,024 are used up the error tells how to free one, and nothing is
// left behind; once one is retired its number is used again, above its time.
func testUsedUp(t *testing.T, e *tree) {
	e.put(t, "10.9.0.0:1-0000000000", time.Now())
	var ops []any
	long := time.Now().AddDate(0, -1, 0)
	for i := 1; i < 1024; i++ {
		at := time.Now()
		if i == 700 {
			at = long
		}
		a := fmt.Sprintf("10.9.%d.%d:1", i/256, i%256)
		ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/%s-%010d", e.forever(), a, i), Data: leafData(a, at), Acl: zk.WorldACL(zk.PermAll)})
	}
	if _, err := e.conn.Multi(ops...); err != nil {
		t.Fatal(err)
	}
	_, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo", Address: address})
	const old = "10.9.2.188:1-0000000700"
	if !errors.Is(err, hapax.ErrNoWorker) || !strings.Contains(err.Error(), "longest "+old) || !strings.Contains(err.Error(), "Retire") {
		t.Fatalf("error is %v; want ErrNoWorker with the node that was silent longest", err)
	}
	if n := len(e.children(t)); n != 1024 {
		t.Errorf("%d nodes; want the 1,024 of the others", n)
	}
	helper, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	defer helper.Close()
	if _, err := helper.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: "default"}); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("acquiring without an address: %v; want ErrNotSupported", err)
	}
	if err := helper.Retire(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if n := len(e.children(t)); n != 1023 {
		t.Errorf("%d nodes; who looks on must make none", n)
	}
	tr := e.open(t, leaf.TreeOptions{})
	if tr.Worker() != 700 {
		t.Errorf("worker ID is %d; want the retired 700", tr.Worker())
	}
	req := request(tr, time.Now())
	lease, err := tr.AcquireWorker(t.Context(), req)
	if err != nil || req.Layout.TimeOf(lease.Grant.Lo).Before(long) {
		t.Errorf("granted %v, error %v; want above the time of the retired node", lease.Grant, err)
	}
	if got := e.get(t, address+"-0000000700"); !strings.Contains(got, `"port":"7777"`) {
		t.Errorf("the node holds %s", got)
	}
}

func testRetire(t *testing.T, e *tree) {
	now := time.Now()
	e.put(t, "10.0.0.1:1-0000000003", now.Add(-23*time.Hour))
	e.put(t, "10.0.0.2:1-0000000004", now.Add(-25*time.Hour))
	tr := e.open(t, leaf.TreeOptions{})
	for _, name := range []string{"10.0.0.1:1-0000000003", "x", "../x-1", "10.0.0.9:1-0000000001", strings.TrimPrefix(fmt.Sprintf("%s-%010d", address, tr.Worker()), "/")} {
		if err := tr.Retire(t.Context(), name); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v; want ErrInvalidArgument", name, err)
		}
	}
	if err := tr.Retire(t.Context(), "10.0.0.2:1-0000000004"); err != nil {
		t.Error(err)
	}
	workers, err := tr.Workers(t.Context(), "default")
	layout, _ := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil || len(workers) != 1 || workers[0].ID != 4 || layout.TimeOf(workers[0].Mark).Before(now.Add(-25*time.Hour)) {
		t.Errorf("workers are %+v, error %v; want a mark for the retired one", workers, err)
	}
	nodes, err := tr.Nodes(t.Context())
	if err != nil || len(nodes) != 2 {
		t.Errorf("nodes are %+v, error %v; want the own one and the one of 23 h ago", nodes, err)
	}
}
