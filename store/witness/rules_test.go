package witness_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
)

// A cell is a node over a store of its own, whose calls can be made to fail.
type cell struct {
	*witness.Guarded
	t     *testing.T
	store *memstore.Store
	link  *storetest.Faults
	path  string
}

// inCell runs a test in virtual time with a tag "t".
func inCell(t *testing.T, f func(*testing.T, *cell)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cell{t: t, store: memstore.New(), path: filepath.Join(t.TempDir(), "witness")}
		if _, err := c.store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		c.start()
		defer func() { c.stop() }()
		f(t, c)
	})
}

func (c *cell) start() {
	c.t.Helper()
	w, err := witness.Open(c.path)
	if err != nil {
		c.t.Fatal(err)
	}
	c.link = storetest.NewFaults(c.store)
	if c.Guarded, err = witness.Guard(c.link, w, witness.Options{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cell) stop() {
	c.t.Helper()
	c.Kill()
	if err := c.Witness().Close(); err != nil {
		c.t.Error(err)
	}
}

func (c *cell) restart() {
	c.t.Helper()
	c.stop()
	c.start()
}

func (c *cell) take(n int64) hapax.Allocation {
	c.t.Helper()
	a, err := c.Allocate(c.t.Context(), "t", n, "")
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

func (c *cell) wantFenced(err error, cause error) {
	c.t.Helper()
	if !errors.Is(err, hapax.ErrFenced) || !errors.Is(err, cause) {
		c.t.Errorf("error is %v, want ErrFenced and %v", err, cause)
	}
	raw, err := c.store.Row(c.t.Context(), driver.TableFence, "fence")
	if err != nil || raw == nil {
		c.t.Errorf("the fence is %q, error %v", raw, err)
	}
}

// Two grants that are answered out of order are both good.
func TestGrantsAnsweredOutOfOrder(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(1)
		slow := true
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" && slow {
				slow = false
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() { c.take(10) })
		synctest.Wait()
		c.take(10)
		wg.Wait()
	})
}

// A grant that was handed back while another is asked for may be answered again.
func TestHandBackDuringAllocate(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		a := c.take(100)
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{Before: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if b := c.take(10); b.Grant.Lo != 41 {
				t.Errorf("granted %v, want what was handed back from 41 on", b.Grant)
			}
		})
		synctest.Wait()
		if err := c.HandBack(t.Context(), a, 41); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	})
}

// A crash after the store took a hand-back, and before the witness was told, leaves
// no store that seems to be behind.
func TestCrashDuringHandBack(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"taken, the answer lost": {Lose: hapax.ErrStoreUnavailable},
		"not taken":              {Fail: hapax.ErrStoreUnavailable},
	} {
		inCell(t, func(t *testing.T, c *cell) {
			a := c.take(100)
			c.link.Inject(func(op storetest.Op) storetest.Fault {
				if op.Method == "HandBack" {
					return fault
				}
				return storetest.Fault{}
			})
			if err := c.HandBack(t.Context(), a, 41); !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Fatalf("%s: %v", name, err)
			}
			c.restart()
			if b := c.take(5); b.Grant.Lo != 41 && b.Grant.Lo != 101 {
				t.Errorf("%s: granted %v", name, b.Grant)
			}
		})
	}
}

// The heartbeat after a grant is what notices a store that went back where the
// grant itself lies high enough: another node's marks were lost, not this one's.
func TestHeartbeatFollowsTheGrant(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(10)
		time.Sleep(10 * time.Second)
		backup := c.store.Snapshot()
		time.Sleep(1100 * time.Millisecond) // one heartbeat, of which the backup knows nothing
		c.store.Restore(backup)
		_, err := c.Allocate(t.Context(), "t", 10, "") // at the very moment: the loop has not looked yet
		c.wantFenced(err, hapax.ErrStoreRolledBack)
	})
}

// What the node knew when it was stopped counts when it starts.
func TestHeartbeatOutlivesTheProcess(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(10)
		backup := c.store.Snapshot()
		time.Sleep(10 * time.Second)
		c.take(10) // records a heartbeat of ten seconds later
		mark, _ := c.Witness().Mark(witness.TagLine("t"))
		c.stop()
		c.store.Restore(backup)
		if _, err := c.store.UpdateTag(t.Context(), "t", hapax.TagUpdate{Floor: &mark}); err != nil {
			t.Fatal(err) // somebody set the mark right by hand, and nothing else
		}
		c.start()
		_, err := c.Allocate(t.Context(), "t", 10, "")
		c.wantFenced(err, hapax.ErrStoreRolledBack)
	})
}

// A lease whose row was put back is a reason to refuse where the witness knows of
// it, and none where only the caller says so.
func TestLeaseBehindTheWitness(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	inCell(t, func(t *testing.T, c *cell) {
		ctx := t.Context()
		now := func() hapax.Term {
			return hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: 10 * time.Second, TTL: time.Minute}
		}
		req := hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: "h", Term: now()}
		lease, err := c.AcquireWorker(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		forged := lease
		forged.Token += 7
		if _, err := c.ExtendWorker(ctx, forged, hapax.ExtendRequest{Layout: layout, Term: now()}); !errors.Is(err, hapax.ErrLeaseLost) || errors.Is(err, hapax.ErrFenced) {
			t.Errorf("a forged token: %v, want ErrLeaseLost alone", err)
		}
		row, err := c.store.Row(ctx, "workers/p", "0000000000000000000")
		if err != nil || row == nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		later, err := c.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: now()})
		if err != nil {
			t.Fatal(err)
		}
		current, _ := c.store.Row(ctx, "workers/p", "0000000000000000000")
		if ok, err := c.store.SwapRow(ctx, "workers/p", "0000000000000000000", current, row); !ok || err != nil {
			t.Fatal(ok, err)
		}
		_, err = c.ExtendWorker(ctx, later, hapax.ExtendRequest{Layout: layout, Term: now()})
		c.wantFenced(err, hapax.ErrStoreRolledBack)
	})
}

// A tag that the store has lost is refused for good, and not made anew.
func TestLostTag(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		empty := c.store.Snapshot()
		if _, err := c.store.CreateTag(t.Context(), hapax.Tag{Name: "u"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Allocate(t.Context(), "u", 10, ""); err != nil {
			t.Fatal(err)
		}
		c.store.Restore(empty)
		_, err := c.Allocate(t.Context(), "u", 10, "")
		c.wantFenced(err, hapax.ErrStoreRolledBack)
		if _, err := c.CreateTag(t.Context(), hapax.Tag{Name: "u"}, hapax.CreateFirstUse); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("created anew: %v", err)
		}
		c.restart() // the refusal is in the witness, too
		if st := c.Status(); st.State != witness.Refusing || st.Why == "" {
			t.Errorf("after a restart: %+v", st)
		}
		a, err := witness.AdoptWith(t.Context(), c.store, c.Witness(), witness.AdoptRequest{})
		if err != nil || len(a.Raised) != 1 || a.Raised[0].Tag != "u" || a.Raised[0].To != 11 {
			t.Fatalf("adopted %+v, %v", a, err)
		}
		time.Sleep(5 * time.Second)
		if got, err := c.Allocate(t.Context(), "u", 1, ""); err != nil || got.Grant.Lo != 11 {
			t.Errorf("after adopting: %v, %v", got.Grant, err)
		}
	})
}

// Adopt raises tombstones too, and leaves them dead.
func TestAdoptRaisesTombstones(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		ctx := t.Context()
		c.take(10)
		if _, err := c.store.DeleteTag(ctx, "t"); err != nil {
			t.Fatal(err)
		}
		a, err := witness.Adopt(ctx, c.store, witness.AdoptRequest{Lines: []map[string]int64{{witness.TagLine("t"): 5000}}})
		if err != nil || len(a.Raised) != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		if tag, err := c.store.Tag(ctx, "t"); err != nil || !tag.Deleted || tag.Mark != 5000 {
			t.Errorf("the tombstone is %+v, %v", tag, err)
		}
	})
}

// Adopt does not go on without a node that the store knows, unless a floor is
// given.
func TestAdoptWaitsForEveryNode(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		ctx := t.Context()
		c.take(100)
		backup := c.store.Snapshot()
		time.Sleep(3 * time.Second)
		c.take(100)
		c.stop() // and never comes back
		c.store.Restore(backup)
		c.path += "2"
		c.start()
		raw := []byte(`{"id":"F","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test"}`)
		if ok, err := c.store.SwapRow(ctx, driver.TableFence, "fence", nil, raw); !ok || err != nil {
			t.Fatal(ok, err)
		}
		_ = c.Ping(ctx)
		time.Sleep(3 * time.Second)
		a, err := witness.Adopt(ctx, c.store, witness.AdoptRequest{})
		if !errors.Is(err, hapax.ErrFenced) || len(a.Missing) != 1 {
			t.Fatalf("without the node: %+v, %v", a, err)
		}
		if _, err := witness.Adopt(ctx, c.store, witness.AdoptRequest{WithoutMissing: true}); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("without a floor: %v", err)
		}
		if a, err = witness.Adopt(ctx, c.store, witness.AdoptRequest{WithoutMissing: true, Floor: 1000}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if got := c.take(1); got.Grant.Lo != 1000 {
			t.Errorf("went on at %v after %+v, want 1000", got.Grant, a)
		}
	})
}

// A fence that was lifted for another store says nothing about this one.
func TestLiftedForAnotherStore(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		ctx := t.Context()
		c.take(100)
		time.Sleep(2 * time.Second)
		c.store.Restore(memstore.New())
		if _, err := c.store.CreateTag(ctx, hapax.Tag{Name: "t", Start: 9000}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		st := c.Status()
		if st.Fence == nil {
			t.Fatalf("status is %+v", st)
		}
		lifted := []byte(`{"store":"of somebody else","at":"2026-01-01T00:00:00Z"}`)
		if ok, err := c.store.SwapRow(ctx, driver.TableFence, "lifted/"+st.Fence.ID, nil, lifted); !ok || err != nil {
			t.Fatal(ok, err)
		}
		fence, _ := c.store.Row(ctx, driver.TableFence, "fence")
		if ok, err := c.store.SwapRow(ctx, driver.TableFence, "fence", fence, nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(5 * time.Second)
		_, err := c.Allocate(ctx, "t", 1, "")
		c.wantFenced(err, hapax.ErrFenced)
	})
}

// A node that was pointed at the store of others refuses, and lets them be.
func TestStoreOfOthers(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		ctx := t.Context()
		other := memstore.New()
		if _, err := other.CreateTag(ctx, hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		theirs := startNode(t, other, filepath.Join(t.TempDir(), "theirs"), "theirs", map[hapax.ID]string{})
		theirs.mustUse("t", 10)
		time.Sleep(time.Hour)
		c.take(10)
		c.stop()
		c.store = other
		c.start()
		if _, err := c.Allocate(ctx, "t", 1, ""); !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("error is %v, want ErrStoreReplaced", err)
		}
		time.Sleep(10 * time.Second)
		theirs.mustUse("t", 10)
		theirs.stop()
	})
}

// While the store could not be reached, another one may have come in its place: it
// is asked for its name anew before it is asked for anything.
func TestReplacedDuringAnOutage(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(10)
		c.link.Down()
		if _, err := c.Allocate(t.Context(), "t", 1, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Fatalf("while the store is away: %v", err)
		}
		other := memstore.New()
		if _, err := other.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		c.store.Restore(other)
		c.link.Up()
		_, err := c.Allocate(t.Context(), "t", 1, "")
		c.wantFenced(err, hapax.ErrStoreReplaced)
		if tag, err := c.store.Tag(t.Context(), "t"); err != nil || tag.Mark != 1 {
			t.Errorf("the other store's mark is %d, %v: it was asked for numbers", tag.Mark, err)
		}
	})
}

// Grants of one line that overlap while both are under way show that the store
// went back in between.
func TestStoreWentBackBetweenTwoAnswers(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(10)
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		backup := c.store.Snapshot()
		errs := make(chan error, 2)
		ask := func() {
			_, err := c.Allocate(t.Context(), "t", 10, "")
			errs <- err
		}
		go ask()
		synctest.Wait()
		nodes, _ := c.store.ListRows(t.Context(), driver.TableNodes, "", 10)
		c.store.Restore(backup)
		for _, n := range nodes { // as if the node's row had been saved last
			if old, _ := c.store.Row(t.Context(), driver.TableNodes, n.Name); string(old) != string(n.Value) {
				_, _ = c.store.SwapRow(t.Context(), driver.TableNodes, n.Name, old, n.Value)
			}
		}
		go ask()
		first, second := <-errs, <-errs
		// The refusal of one may overtake the other, which has yet to make its heartbeat.
		if first == nil && second == nil || !errors.Is(errors.Join(first, second), hapax.ErrStoreRolledBack) {
			t.Errorf("errors are %v and %v, want one grant accepted at most", first, second)
		}
	})
}
