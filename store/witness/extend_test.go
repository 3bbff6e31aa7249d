package witness_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/storetest"
)

// Nothing of a worker's time is given back while the answer to an extension is on its
// way: whoever holds a lease could else extend it twice, seal it between the answers,
// and have the second one tell the witness of a mark that the store has given up.
func TestSealDuringExtension(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	inCell(t, func(t *testing.T, c *cell) {
		ctx := t.Context()
		term := func() hapax.Term {
			return hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: 10 * time.Second, Ahead: 10 * time.Second, TTL: time.Minute}
		}
		req := hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, Holder: "h", Term: term()}
		lease, err := c.AcquireWorker(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		slow := true
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "ExtendWorker" && slow {
				slow = false
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: term()}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		again, err := c.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: term()})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SealWorker(ctx, again, again.From); err != nil {
			t.Fatal(err)
		}
		if w, err := c.store.Workers(ctx, "p"); err != nil || len(w) != 1 || w[0].Mark != again.Grant.Hi {
			t.Errorf("the rows are %+v, error %v, want the mark %d", w, err, again.Grant.Hi)
		}
		wg.Wait()
		time.Sleep(time.Hour)
		req.Term = term()
		next, err := c.AcquireWorker(ctx, req)
		if err != nil {
			t.Fatalf("the next holder: %v", err)
		}
		if err := c.SealWorker(ctx, next, next.From); err != nil {
			t.Fatal(err)
		}
		if w, err := c.store.Workers(ctx, "p"); err != nil || len(w) != 1 || w[0].Mark >= next.Grant.Hi {
			t.Errorf("a seal without an extension gives nothing back: %+v, error %v", w, err)
		}
	})
}

// A seal that waits on its way while an extension is granted, and guesses where that
// ends, gives nothing back of it: the witness would know more than the store has.
func TestSealOvertakenByAnExtension(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	inCell(t, func(t *testing.T, c *cell) {
		ctx, begin := t.Context(), time.Now().AddDate(26, 0, 0)
		term := func() hapax.Term {
			return hapax.Term{Now: begin.Add(5 * time.Second), Length: time.Minute, TTL: time.Hour}
		}
		lease, err := c.AcquireWorker(ctx, hapax.AcquireRequest{
			Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 1}, Holder: "h", Term: hapax.Term{Now: begin, Length: 10 * time.Second, TTL: time.Hour},
		})
		if err != nil {
			t.Fatal(err)
		}
		guess := lease
		if guess.Grant.Hi, err = layout.TickOf(begin.Add(65 * time.Second)); err != nil {
			t.Fatal(err)
		}
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "SealWorker" {
				return storetest.Fault{Before: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() { _ = c.SealWorker(ctx, guess, lease.From) })
		synctest.Wait()
		longer, err := c.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: term()})
		if err != nil || longer.Grant.Hi != guess.Grant.Hi {
			t.Fatalf("extended to %v, error %v; the guess was %d", longer.Grant, err, guess.Grant.Hi)
		}
		wg.Wait()
		if w, err := c.store.Workers(ctx, "p"); err != nil || len(w) != 1 || w[0].Mark < longer.Grant.Hi {
			t.Errorf("the rows are %+v, error %v; want the mark %d", w, err, longer.Grant.Hi)
		}
	})
}
