package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func newSegment(t *testing.T, store hapax.SegmentStore, opts hapax.SegmentOptions) *hapax.Segment {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := hapax.NewSegment(ctx, store, "orders", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func TestSegmentZeroOptions(t *testing.T) {
	s := newSegment(t, memstore.New(), hapax.SegmentOptions{})
	for want := hapax.ID(1); want <= 25_000; want++ { // without a gap, across many segments
		if id := next(t, s); id != want {
			t.Fatalf("got %d, want %d", id, want)
		}
	}
	if st := s.Stats(); st.Issued != 25_000 {
		t.Errorf("Stats says %d issued", st.Issued)
	}
}

func TestSegmentDefinition(t *testing.T) {
	store := memstore.New()
	s := newSegment(t, store, hapax.SegmentOptions{Start: 100, Step: 10, MaxStep: 10})
	if id := next(t, s); id != 100 {
		t.Errorf("starts at %d, want 100", id)
	}
	for name, opts := range map[string]hapax.SegmentOptions{
		"start":    {Start: -1},
		"step":     {Step: -5},
		"min_step": {Step: 5, MinStep: 6},
		"max_step": {Step: 5, MaxStep: 4},
	} {
		_, err := hapax.NewSegment(t.Context(), store, "other", opts)
		if e, ok := errors.AsType[*hapax.ValueError](err); !ok || e.Field != name {
			t.Errorf("bad %s: %v", name, err)
		}
	}
	if _, err := hapax.NewSegment(t.Context(), store, "", hapax.SegmentOptions{}); !errors.Is(err, hapax.ErrInvalidTag) {
		t.Errorf("empty tag: %v", err)
	}
	if _, err := hapax.NewSegment(t.Context(), store, "unknown", hapax.SegmentOptions{NoCreate: true}); !errors.Is(err, hapax.ErrTagNotFound) {
		t.Errorf("unknown tag without creation: %v", err)
	}
}

func TestSegmentNumbersAreUniqueAndRise(t *testing.T) {
	s := newSegment(t, memstore.New(), hapax.SegmentOptions{Step: 7, MaxStep: 5000})
	const callers, each = 8, 20_000
	got := make([][]hapax.ID, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			buf := make([]hapax.ID, 5)
			for len(got[i]) < each {
				if len(got[i])%3 == 0 {
					g, err := s.Reserve(t.Context(), 3)
					if err != nil || g.Len() != 3 {
						t.Error(g, err)
						return
					}
					got[i] = append(got[i], hapax.ID(g.Lo), hapax.ID(g.Lo+1), hapax.ID(g.Lo+2))
				}
				n, err := s.NextN(t.Context(), buf)
				if err != nil {
					t.Error(err)
					return
				}
				got[i] = append(got[i], buf[:n]...)
				for range 5 {
					got[i] = append(got[i], next(t, s))
				}
			}
		})
	}
	wg.Wait()
	var all []hapax.ID
	for _, g := range got {
		if !slices.IsSorted(g) {
			t.Error("one caller saw numbers go back")
		}
		all = append(all, g...)
	}
	slices.Sort(all)
	n := len(all)
	if len(slices.Compact(all)) != n {
		t.Error("a number was issued twice")
	}
	if st := s.Stats(); st.Issued != int64(n) {
		t.Errorf("Stats says %d issued, %d were", st.Issued, n)
	}
}

func TestSegmentReserve(t *testing.T) {
	s := newSegment(t, memstore.New(), hapax.SegmentOptions{Step: 10, MaxStep: 10})
	var last int64
	for _, n := range []int64{1, 9, 10, 25, 3, 1000, 1} {
		g, err := s.Reserve(t.Context(), n)
		if err != nil || g.Len() != n || g.Lo <= last {
			t.Fatalf("reserved %v after %d, %v; want %d in a row", g, last, err, n)
		}
		last = g.Hi - 1
	}
	if id := next(t, s); int64(id) <= last {
		t.Errorf("%d follows a reservation up to %d", id, last)
	}
	for _, n := range []int64{0, -1, hapax.MaxStep + 1} {
		if _, err := s.Reserve(t.Context(), n); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("Reserve(%d): %v, want ErrInvalidArgument", n, err)
		}
	}
}

func TestSegmentLineEnds(t *testing.T) {
	store := memstore.New()
	s := newSegment(t, store, hapax.SegmentOptions{Start: hapax.MaxMark - 25, Step: 10, MaxStep: 10})
	var last hapax.ID
	var err error
	for err == nil {
		var id hapax.ID
		if id, err = s.Next(t.Context()); err == nil && id <= last {
			t.Fatalf("%d follows %d", id, last)
		}
		last = max(last, id)
	}
	if !errors.Is(err, hapax.ErrLineExhausted) {
		t.Fatalf("error is %v, want ErrLineExhausted", err)
	}
	for range 1000 {
		if id, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrLineExhausted) {
			t.Fatalf("past the end: %d, %v", id, err)
		}
	}
}

func TestSegmentSlowStore(t *testing.T) {
	bubble(t, "after two refills no caller waits, and the step grows to fit", func(t *testing.T) {
		faults := storetest.NewFaults(memstore.New())
		faults.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: 50 * time.Millisecond} })
		s := newSegment(t, faults, hapax.SegmentOptions{Clock: newTestClock()})
		buf := make([]hapax.ID, 100)
		steady := func(d time.Duration) { // 100,000 numbers a second
			for range d / time.Millisecond {
				if _, err := s.NextN(t.Context(), buf); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
		}
		for s.Stats().Refills < 3 { // the first grant and two refills
			steady(time.Millisecond)
		}
		warm := s.Stats()
		steady(60 * time.Second)
		st := s.Stats()
		if st.Waits != warm.Waits {
			t.Errorf("%d calls waited for the store after warm-up", st.Waits-warm.Waits)
		}
		if refills := st.Refills - warm.Refills; refills > (st.Issued-warm.Issued)/st.Step+12 {
			t.Errorf("%d refills for %d numbers at step %d", refills, st.Issued-warm.Issued, st.Step)
		}
		if st.Step != hapax.DefaultMaxStep {
			t.Errorf("step is %d, want it at its cap", st.Step)
		}
	})
}

func TestSegmentStepAdapts(t *testing.T) {
	bubble(t, "doubles below 15 minutes, halves above 30, between its bounds", func(t *testing.T) {
		s := newSegment(t, memstore.New(), hapax.SegmentOptions{Clock: newTestClock(), Step: 100, MinStep: 50, MaxStep: 1000})
		use := func(n int, every time.Duration) {
			for range n {
				next(t, s)
				time.Sleep(every)
			}
		}
		use(5000, time.Second)
		if st := s.Stats(); st.Step < 800 {
			t.Errorf("at one a second the step went to %d, want 800 or more", st.Step)
		}
		use(5000, time.Minute)
		if st := s.Stats(); st.Step != 50 {
			t.Errorf("at one a minute the step went to %d, want 50", st.Step)
		}
	})
	bubble(t, "not by the first two, which are taken soon after each other", func(t *testing.T) {
		s := newSegment(t, memstore.New(), hapax.SegmentOptions{Clock: newTestClock(), Step: 100, MaxStep: 1000})
		for i, want := range []int64{100, 100, 200} {
			for s.Stats().Refills <= int64(i) {
				next(t, s)
				synctest.Wait()
			}
			if st := s.Stats(); st.Step != want {
				t.Errorf("after %d grants the step is %d, want %d", i+1, st.Step, want)
			}
		}
	})
	bubble(t, "an edited step is adopted at the next fetch", func(t *testing.T) {
		store := memstore.New()
		s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock(), Step: 10})
		step := int64(5000)
		if _, err := store.UpdateTag(t.Context(), "orders", driver.TagUpdate{Step: &step}); err != nil {
			t.Fatal(err)
		}
		for s.Stats().Refills < 3 {
			next(t, s)
			synctest.Wait()
		}
		if st := s.Stats(); st.Step < 5000 {
			t.Errorf("step is %d, want 5000 or its double", st.Step)
		}
	})
}

func TestSegmentStoreOutage(t *testing.T) {
	bubble(t, "issues on, then waits and fails, then recovers within a second", func(t *testing.T) {
		faults := storetest.NewFaults(memstore.New())
		s := newSegment(t, faults, hapax.SegmentOptions{Clock: newTestClock(), MaxStep: 1000})
		next(t, s)
		faults.Down()
		issued := 1
		var err error
		for err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if _, err = s.Next(ctx); err == nil {
				issued++
			}
			cancel()
		}
		if issued != 1000 {
			t.Errorf("issued %d from a grant of 1000", issued)
		}
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v, want ErrStoreUnavailable and the deadline", err)
		}
		if calls := faults.Calls("Allocate"); calls > 20 {
			t.Errorf("%d attempts in the 2 s of the outage", calls)
		}
		time.Sleep(time.Hour)
		faults.Up()
		back := time.Now()
		if id := next(t, s); id != 1001 {
			t.Errorf("went on at %d, want 1001", id)
		}
		if took := time.Since(back); took > time.Second {
			t.Errorf("recovered after %v", took)
		}
	})
	bubble(t, "an ambiguous commit leaves a gap, never a repeat", func(t *testing.T) {
		faults := storetest.NewFaults(memstore.New())
		n := 0
		faults.Inject(func(op storetest.Op) storetest.Fault {
			if n++; op.Method == "Allocate" && n%3 == 0 {
				return storetest.Fault{Lose: hapax.ErrStoreUnavailable}
			}
			return storetest.Fault{}
		})
		s := newSegment(t, faults, hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10})
		var last hapax.ID
		for range 1000 {
			id := next(t, s)
			if id <= last {
				t.Fatalf("%d follows %d", id, last)
			}
			last = id
		}
		if last == 1000 {
			t.Error("no gap: the fault was not injected")
		}
	})
	bubble(t, "a wait without deadline lasts until Close", func(t *testing.T) {
		faults := storetest.NewFaults(memstore.New())
		s := newSegment(t, faults, hapax.SegmentOptions{Clock: newTestClock(), Step: 1, MaxStep: 1})
		next(t, s)
		faults.Down()
		go func() { time.Sleep(time.Hour); _ = s.Close(context.Background()) }()
		var err error
		for err == nil {
			_, err = s.Next(t.Context())
		}
		if !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("error is %v, want ErrClosed", err)
		}
	})
}

func TestSegmentDeletedTag(t *testing.T) {
	bubble(t, "is an error, until it is created again above its mark", func(t *testing.T) {
		store := memstore.New()
		s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10})
		last := next(t, s)
		if _, err := store.DeleteTag(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			var id hapax.ID
			id, err = s.Next(t.Context())
			last = max(last, id)
		}
		if !errors.Is(err, hapax.ErrTagDeleted) {
			t.Fatalf("error is %v, want ErrTagDeleted", err)
		}
		if _, err := hapax.NewSegment(t.Context(), store, "orders", hapax.SegmentOptions{}); !errors.Is(err, hapax.ErrTagDeleted) {
			t.Fatalf("first use of a deleted tag: %v, want ErrTagDeleted", err)
		}
		def, _ := hapax.Tag{Name: "orders"}.WithDefaults()
		if _, err := store.CreateTag(t.Context(), def, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if id := next(t, s); id <= last {
			t.Errorf("%d follows %d", id, last)
		}
	})
}

// An unknowing store does not know the tag in its next answers.
type unknowing struct {
	*memstore.Store
	answers int
}

func (s *unknowing) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if s.answers > 0 {
		s.answers--
		return hapax.Allocation{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
	}
	return s.Store.Allocate(ctx, tag, n, last)
}

// That a tag is not there is an answer like any other before the first grant, also right after
// the tag was created; afterwards the store has gone back, whatever it says later.
func TestSegmentWhoseTagIsNotFound(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		store := &unknowing{Store: memstore.New(), answers: 2}
		opts := hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10}
		if _, err := hapax.NewSegment(t.Context(), store, "orders", opts); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Fatalf("a tag that is not there after it was created: %v", err)
		}
		store.answers = 1
		s := newSegment(t, store, opts)
		next(t, s)
		store.answers = 1
		var err error
		for i := 0; i < 100 && err == nil; i++ {
			_, err = s.Next(t.Context())
		}
		time.Sleep(2 * time.Second)
		if _, again := s.Next(t.Context()); !errors.Is(err, hapax.ErrStoreRolledBack) || !errors.Is(again, hapax.ErrStoreRolledBack) {
			t.Errorf("a tag that was used is not there: %v, and then %v", err, again)
		}
	})
}

func TestSegmentRolledBackStore(t *testing.T) {
	bubble(t, "is refused until its floor is raised", func(t *testing.T) {
		store := memstore.New()
		faults := storetest.NewFaults(store)
		s := newSegment(t, faults, hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10})
		backup := store.Snapshot()
		for range 100 {
			next(t, s)
		}
		store.Restore(backup)
		var err error
		for err == nil {
			_, err = s.Next(t.Context())
		}
		if !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Fatalf("error is %v, want ErrStoreRolledBack", err)
		}
		floor := int64(1000)
		if _, err := store.UpdateTag(t.Context(), "orders", driver.TagUpdate{Floor: &floor}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("the issuer forgot that it refuses: %v", err)
		}
		if id := next(t, newSegment(t, faults, hapax.SegmentOptions{Clock: newTestClock()})); id != 1000 {
			t.Errorf("the next issuer went on at %d, want 1000", id)
		}
	})
}

func TestSegmentLast(t *testing.T) {
	s := newSegment(t, memstore.New(), hapax.SegmentOptions{Start: 5, Step: 3, MaxStep: 3})
	if id, ok := s.Last(); ok {
		t.Errorf("before the first number: %d", id)
	}
	check := func(want hapax.ID) {
		t.Helper()
		if id, ok := s.Last(); !ok || id != want {
			t.Errorf("got %d, %v; want %d", id, ok, want)
		}
	}
	for range 10 { // across segments of three
		id := next(t, s)
		check(id)
	}
	g, err := s.Reserve(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	check(hapax.ID(g.Hi - 1))
}

func TestReviveAsAnotherKind(t *testing.T) {
	for _, c := range []struct {
		old  hapax.Tag
		want string
	}{
		{hapax.Tag{Name: "a", Kind: hapax.KindSegment, Deleted: true}, `: "a" was a segment tag`},
		{hapax.Tag{Name: "a", Kind: hapax.KindSnowflake, Pool: "p", Deleted: true}, `: "a" was a snowflake tag of pool "p"`},
	} {
		_, err := driver.Revive(c.old, hapax.Tag{Name: "a", Kind: hapax.KindSnowflake, Pool: "q"}, hapax.CreateExplicit)
		if !errors.Is(err, hapax.ErrKindMismatch) || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("a %s tag: %v", c.old.Kind, err)
		}
	}
}
