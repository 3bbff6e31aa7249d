package hapax_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// The numbers of a tag that takes every third of its line lie within its grants,
// wherever those begin.
func TestGrantsThatBeginBetweenNumbers(t *testing.T) {
	for floor := int64(1); floor <= 8; floor++ {
		bubble(t, "", func(t *testing.T) {
			store := memstore.New()
			def, err := hapax.Tag{Name: "orders", Step: 4, Delta: 3, Remainder: 1}.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.CreateTag(t.Context(), def, hapax.CreateExplicit); err != nil {
				t.Fatal(err)
			}
			if _, err := store.UpdateTag(t.Context(), "orders", driver.TagUpdate{Floor: &floor}); err != nil {
				t.Fatal(err)
			}
			s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock()})
			last := hapax.ID(floor - 1)
			for range 20 {
				id := next(t, s)
				if id <= last || id%3 != 1 || last >= hapax.ID(floor) && id != last+3 {
					t.Fatalf("with a floor of %d, after %d came %d", floor, last, id)
				}
				last = id
			}
		})
	}
}

// A caller that finds no segment, and asks for one only when it has come meanwhile, has
// none fetched in its place.
func TestAskedForWhenThereIsOne(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		s := newSegment(t, memstore.New(), hapax.SegmentOptions{Clock: newTestClock()})
		first := next(t, s)
		for range 3 {
			if err := s.Want(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		stats := s.Stats()
		if stats.Refills != 2 || stats.Burnt != 0 { // the current segment and the next
			t.Errorf("%d grants were taken and %d numbers burnt; want 2 and none", stats.Refills, stats.Burnt)
		}
		for want := first + 1; want <= first+5000; want++ {
			if id := next(t, s); id != want {
				t.Fatalf("%d was issued; want %d", id, want)
			}
		}
	})
}

// granted collects the grants that an issuer took.
func granted(into *[]hapax.Grant) func(hapax.Event) {
	var mu sync.Mutex
	return func(e hapax.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == hapax.EventGrant {
			*into = append(*into, e.Grant)
		}
	}
}

// Single calls, which look at no clock, end where the granted time ends.
func TestSingleCallsEndWithTheGrant(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		var grants []hapax.Grant
		store := storetest.NewFaults(memstore.New())
		layout := mustLayout(t, hapax.LayoutLeaf)
		s := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: newTestClock(), Layout: layout, Grant: time.Second, Observer: granted(&grants)})
		store.Down()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		issued := 0
		for ; ; issued++ {
			id, err := s.Next(ctx)
			if err != nil {
				break
			}
			fields, err := layout.Parse(id)
			if err != nil {
				t.Fatal(err)
			}
			if tick := fields[0].Value; tick < grants[0].Lo || tick >= grants[0].Hi {
				t.Fatalf("number %d is of tick %d, granted was %v", issued, tick, grants[0])
			}
			if issued%50 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		if issued < 10_000 {
			t.Errorf("%d numbers: the end was not reached by single calls", issued)
		}
	})
}

// A lease that begins below what was used of that worker is refused.
func TestTimeThatWasTaken(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		store := memstore.New()
		refused := make(chan error, 100)
		var first hapax.Grant
		s := newSnowflake(t, liar{Store: store, lease: func(l *hapax.Lease) {
			if first == (hapax.Grant{}) {
				first = l.Grant
			}
			l.Grant.Lo, l.From = first.Lo, first.Lo
		}}, hapax.SnowflakeOptions{
			Clock: newTestClock(), Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, Grant: time.Second, KeepWarm: true,
			Observer: func(e hapax.Event) {
				if e.Kind == hapax.EventRefused {
					refused <- e.Err
				}
			},
		})
		next(t, s)
		if _, err := store.RetireWorker(t.Context(), hapax.DefaultPool, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		select {
		case err := <-refused:
			if !errors.Is(err, hapax.ErrStoreRolledBack) {
				t.Errorf("error is %v, want ErrStoreRolledBack", err)
			}
		default:
			t.Error("time that was taken is used again")
		}
	})
}

// An issuer that has run ahead of the clock goes on above what it issued when it has
// to take another worker ID.
func TestRisesOverAChangeOfWorkers(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		store := memstore.New()
		s := newSnowflake(t, store, hapax.SnowflakeOptions{
			Clock: newTestClock(), Layout: mustLayout(t, hapax.LayoutLeaf), Grant: time.Second, MaxGrant: time.Second, MaxAhead: 100 * time.Millisecond, KeepWarm: true,
		})
		var last hapax.ID
		ids, worker := make([]hapax.ID, 50*4096), s.Stats().Worker // as much as the next 50 milliseconds hold
		take := func() {
			n, err := s.NextN(t.Context(), ids)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids[:n] {
				if id <= last {
					t.Fatalf("%d follows %d", id, last)
				}
				last = id
			}
		}
		take()
		if _, err := store.RetireWorker(t.Context(), hapax.DefaultPool, worker); err != nil {
			t.Fatal(err)
		}
		for s.Stats().Worker == worker {
			take()
		}
		take()
	})
}

// When the machine has been asleep, single calls end at once with the numbers in hand.
func TestSuspendEndsSingleCalls(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		clock, store := newTestClock(), storetest.NewFaults(memstore.New())
		s := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock, Layout: mustLayout(t, wide)})
		for range 20 {
			for range 100 {
				next(t, s)
			}
			time.Sleep(time.Millisecond)
		}
		next(t, s) // the limit of single calls is open now
		store.Down()
		clock.asleep.Add(int64(2 * time.Second))
		clock.step(2 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = s.NextN(ctx, make([]hapax.ID, 1)) }) // notices it
		synctest.Wait()
		if id, ok := s.TryNext(); ok {
			t.Errorf("%d was issued from the grant that was dropped", id)
		}
		wg.Wait()
	})
}

// slowAcquire is a store that hears of no context, and whose workers after the first
// take two hours.
type slowAcquire struct {
	*memstore.Store
	calls int
}

func (s *slowAcquire) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if s.calls++; s.calls > 1 {
		patience.Slow(2 * time.Hour)
		req.Term.Now = req.Term.Now.Add(2 * time.Hour)
	}
	return s.Store.AcquireWorker(context.WithoutCancel(ctx), req)
}

// A worker ID that is granted after Close is not issued from.
func TestWorkerGrantedAfterClose(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		store := &slowAcquire{Store: memstore.New()}
		s := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: newTestClock(), Grant: time.Second, KeepWarm: true})
		if _, err := store.RetireWorker(t.Context(), hapax.DefaultPool, s.Stats().Worker); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // it looks for another one
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close while a worker is sought: %v, want the deadline", err)
		}
		for range 3 * 3600 * 5 { // the grant lasts a second
			time.Sleep(200 * time.Millisecond)
			if id, ok := s.TryNext(); ok {
				t.Fatalf("after Close: %d", id)
			}
		}
		if id, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("after Close: %d, %v, want ErrClosed", id, err)
		}
	})
}

// After Close the store is asked for nothing.
func TestClosedIssuersAskForNothing(t *testing.T) {
	bubble(t, "segment", func(t *testing.T) {
		store := storetest.NewFaults(memstore.New())
		s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock()})
		next(t, s)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		calls := store.Calls("Allocate")
		if id, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("after Close: %d, %v, want ErrClosed", id, err)
		}
		synctest.Wait()
		if more := store.Calls("Allocate") - calls; more != 0 {
			t.Errorf("the store was asked %d times after Close", more)
		}
	})
}

// keyless is a store that is not shown the keys of earlier allocations.
type keyless struct{ *memstore.Store }

func (s keyless) Allocate(ctx context.Context, tag string, n int64, _ hapax.GrantKey) (hapax.Allocation, error) {
	return s.Store.Allocate(ctx, tag, n, "")
}

// Of segments that adjoin and are held apart, the last one is handed back.
func TestHandsBackWhatIsHeldApart(t *testing.T) {
	bubble(t, "segment", func(t *testing.T) {
		store := memstore.New()
		s := newSegment(t, keyless{store}, hapax.SegmentOptions{Clock: newTestClock(), Step: 100})
		for range 30 { // the next segment is fetched
			next(t, s)
		}
		synctest.Wait()
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tag, err := store.Tag(t.Context(), "orders"); err != nil || tag.Mark != 101 {
			t.Errorf("the mark is %d, error %v; want that the second segment was handed back", tag.Mark, err)
		}
	})
}

// A runless store does not know where a run of segments began, as a source of its own may not.
type runless struct {
	*memstore.Store

	back []int64 // what hand-backs began with
}

func (s *runless) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := s.Store.Allocate(ctx, tag, n, last)
	a.From = 0
	return a, err
}

func (s *runless) HandBack(_ context.Context, _ hapax.Allocation, next int64) error {
	s.back = append(s.back, next)
	return nil
}

// Whatever a store says of runs, what somebody else was granted in between is never handed back.
func TestHandsBackNothingOfOthers(t *testing.T) {
	bubble(t, "segment", func(t *testing.T) {
		store := &runless{Store: memstore.New()}
		s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10})
		next(t, s)
		if _, err := store.Store.Allocate(t.Context(), "orders", 10, ""); err != nil {
			t.Fatal(err)
		}
		for range 3 { // the next segment is fetched
			next(t, s)
			synctest.Wait()
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(store.back) != 1 || store.back[0] != 21 {
			t.Errorf("handed back from %v; want from 21, above the grant of somebody else", store.back)
		}
	})
}
