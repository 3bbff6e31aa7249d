package witness_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// TestGivenBackElsewhere: what one node granted is not given back through
// another, so that neither takes the store for one that went back.
func TestGivenBackElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store, dir, used := memstore.New(), t.TempDir(), map[hapax.ID]string{}
		if _, err := store.CreateTag(ctx, hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		a := startNode(t, store, filepath.Join(dir, "a"), "a", used)
		b := startNode(t, store, filepath.Join(dir, "b"), "b", used)
		defer a.stop()
		defer b.stop()
		first, err := a.Allocate(ctx, "t", 100, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.HandBack(ctx, first, 1); err == nil {
			t.Error("handed back through another node")
		}
		second, err := b.Allocate(ctx, "t", 100, first.Key)
		if err != nil || second.From != second.Grant.Lo {
			t.Errorf("a run over two nodes: %+v, %v", second, err)
		}
		if err := b.HandBack(ctx, second, 1); err == nil {
			t.Error("handed back what another node granted")
		}

		layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
		if err != nil {
			t.Fatal(err)
		}
		term := func() hapax.Term {
			return hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: time.Minute, TTL: time.Hour}
		}
		req := hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 1}, Holder: "h", Term: term()}
		lease, err := a.AcquireWorker(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		begin, granted := lease.From, lease.Grant.Hi
		time.Sleep(time.Second)
		if lease, err = b.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: term()}); err != nil {
			t.Fatal(err)
		}
		if err := b.SealWorker(ctx, lease, begin); err != nil {
			t.Fatal(err)
		}
		if workers, err := store.Workers(ctx, "p"); err != nil || workers[0].Mark < granted {
			t.Errorf("what a granted was given back through b: %+v, %v; want a mark of %d or more", workers, err, granted)
		}
		time.Sleep(2 * time.Minute)
		for _, n := range []*testNode{a, b} {
			time.Sleep(time.Second)
			req.Term = term()
			if lease, err = n.AcquireWorker(ctx, req); err != nil {
				t.Fatalf("%s, after a seal through b: %v", n.name, err)
			}
			if err := n.SealWorker(ctx, lease, lease.From+1); err != nil {
				t.Fatal(err)
			}
			n.mustUse("t", 10)
		}
	})
}
