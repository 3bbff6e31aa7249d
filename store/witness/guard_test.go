package witness_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A testNode is a node on a store, as a server or an embedding program is one.
type testNode struct {
	*witness.Guarded
	t    *testing.T
	path string
	name string
	used map[hapax.ID]string // shared by the nodes of a test
}

func startNode(t *testing.T, store *memstore.Store, path, name string, used map[hapax.ID]string) *testNode {
	t.Helper()
	w, err := witness.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := witness.Guard(unclosed{store}, w, witness.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return &testNode{g, t, path, name, used}
}

// stop ends the node as a crash would: nothing is handed back, no row removed.
func (n *testNode) stop() {
	n.t.Helper()
	n.Kill()
	if err := n.Witness().Close(); err != nil {
		n.t.Error(err)
	}
}

// unclosed is a store that several nodes of a test share.
type unclosed struct{ *memstore.Store }

func (unclosed) Close() error { return nil }

// use takes n numbers of the tag and notes them; a number that was used before
// fails the test.
func (n *testNode) use(tag string, count int64) error {
	n.t.Helper()
	a, err := n.Allocate(n.t.Context(), tag, count, "")
	if err != nil {
		return err
	}
	for id := a.Grant.Lo; id < a.Grant.Hi; id++ {
		if by, taken := n.used[hapax.ID(id)]; taken {
			n.t.Fatalf("%s was granted %d, which %s has used", n.name, id, by)
		}
		n.used[hapax.ID(id)] = n.name
	}
	return nil
}

func (n *testNode) mustUse(tag string, count int64) {
	n.t.Helper()
	if err := n.use(tag, count); err != nil {
		n.t.Fatalf("%s: %v", n.name, err)
	}
}

// TestRestoredStore: a store is put back while nodes run; every node refuses
// within a heartbeat, also one that joins, however often it is asked, until an
// operator adopts the store; then all go on above whatever was used.
func TestRestoredStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store, dir, used := memstore.New(), t.TempDir(), map[hapax.ID]string{}
		if _, err := store.CreateTag(ctx, hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		a := startNode(t, store, filepath.Join(dir, "a"), "a", used)
		b := startNode(t, store, filepath.Join(dir, "b"), "b", used)
		a.mustUse("t", 500)
		b.mustUse("t", 10)
		backup := store.Snapshot()
		a.mustUse("t", 3000)
		time.Sleep(3 * time.Second)
		b.mustUse("t", 50000)
		store.Restore(backup)

		c := startNode(t, store, filepath.Join(dir, "c"), "c", used)
		for i := range 20 {
			for _, n := range []*testNode{c, a, b} {
				if err := n.use("t", 7000); !errors.Is(err, hapax.ErrFenced) {
					t.Fatalf("round %d: %s: %v, want ErrFenced", i, n.name, err)
				}
			}
			time.Sleep(500 * time.Millisecond)
		}
		for _, n := range []*testNode{a, b, c} {
			if st := n.Status(); st.State == witness.Serving || st.Fence == nil || st.Why == "" {
				t.Errorf("status of %s: %+v", n.name, st)
			}
		}

		// A refusal outlives the process.
		a.stop()
		a = startNode(t, store, filepath.Join(dir, "a"), "a", used)
		if err := a.use("t", 1); !errors.Is(err, hapax.ErrFenced) {
			t.Fatalf("after a restart: %v, want ErrFenced", err)
		}
		time.Sleep(3 * time.Second)

		dry, err := witness.Adopt(ctx, store, witness.AdoptRequest{DryRun: true})
		if err != nil || len(dry.Raised) != 1 || dry.Raised[0].To < 53511 || len(dry.Spoke) != 3 {
			t.Fatalf("dry run: %+v, %v", dry, err)
		}
		if tag, err := store.Tag(ctx, "t"); err != nil || tag.Mark >= 53511 {
			t.Fatalf("the dry run has changed the tag: %+v, %v", tag, err)
		}
		done, err := witness.Adopt(ctx, store, witness.AdoptRequest{})
		if err != nil || len(done.Raised) != 1 || len(done.Missing) != 0 {
			t.Fatalf("adopt: %+v, %v", done, err)
		}
		time.Sleep(3 * time.Second)
		for _, n := range []*testNode{a, b, c} {
			n.mustUse("t", 1000)
		}
		again, err := witness.Adopt(ctx, store, witness.AdoptRequest{})
		if err != nil || again.Fence != nil || len(again.Raised) != 0 {
			t.Fatalf("adopt of a sound store: %+v, %v", again, err)
		}
		for _, n := range []*testNode{a, b, c} {
			n.stop()
		}
	})
}

// TestWipedStore: a store that was lost and made anew has another identity.
func TestWipedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store, dir, used := memstore.New(), t.TempDir(), map[hapax.ID]string{}
		tag := hapax.Tag{Name: "t"}
		_, _ = store.CreateTag(ctx, tag, hapax.CreateExplicit)
		a := startNode(t, store, filepath.Join(dir, "a"), "a", used)
		b := startNode(t, store, filepath.Join(dir, "b"), "b", used)
		a.mustUse("t", 5000)
		b.mustUse("t", 5000)
		store.Restore(memstore.New())
		_, _ = store.CreateTag(ctx, tag, hapax.CreateExplicit)
		time.Sleep(2 * time.Second)
		c := startNode(t, store, filepath.Join(dir, "c"), "c", used)
		if err := c.use("t", 1); !errors.Is(err, hapax.ErrFenced) {
			t.Fatalf("a node that joins the new store: %v", err)
		}
		b.stop()
		time.Sleep(2 * time.Second)
		if err := a.use("t", 1); !errors.Is(err, hapax.ErrFenced) {
			t.Fatalf("a: %v", err)
		}
		said, err := witness.Adopt(ctx, store, witness.AdoptRequest{DryRun: true})
		if err != nil || !said.Replaced {
			t.Fatalf("dry run: %+v, %v", said, err)
		}
		if done, err := witness.Adopt(ctx, store, witness.AdoptRequest{}); !errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), "floor") {
			t.Fatalf("adopt without a word on the other nodes: %+v, %v", done, err)
		}
		done, err := witness.Adopt(ctx, store, witness.AdoptRequest{NoOthers: true})
		if err != nil || len(done.Unheard) > 0 {
			t.Fatalf("adopt: %+v, %v", done, err)
		}
		time.Sleep(2 * time.Second)
		a.mustUse("t", 100)
		c.mustUse("t", 100)
		a.stop()
		c.stop()
	})
}

func TestLoneNodeDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		_, _ = store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit)
		path := filepath.Join(t.TempDir(), "a")
		for range 3 {
			began := time.Now()
			a := startNode(t, store, path, "a", map[hapax.ID]string{})
			a.mustUse("t", 10)
			if took := time.Since(began); took != 0 {
				t.Errorf("a node alone on its store waited %v", took)
			}
			a.stop()
			time.Sleep(10 * time.Second)
		}
	})
}
