package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// testClock moves virtual time, which begins in the year 2000, past the epochs
// of the layouts.
type testClock struct{ start time.Time }

func newTestClock() testClock { return testClock{time.Now()} }

func (c testClock) Now() (time.Time, time.Duration) {
	t := time.Now()
	if t.Year() < 2020 {
		return t.AddDate(26, 0, 0), t.Sub(c.start)
	}
	return t, t.Sub(c.start)
}

// bubble runs f in virtual time on a service over a faulty store in memory. The
// bubble fails the test if a goroutine outlives the service.
func bubble(t *testing.T, opts Options, f func(t *testing.T, s *Service, store *storetest.Faults)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewFaults(memstore.New())
		s := open(t, store, opts)
		f(t, s, store)
	})
}

func open(t *testing.T, store driver.Store, opts Options) *Service {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Clock == nil {
		opts.Clock = newTestClock()
	}
	s, err := New(t.Context(), store, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil && !errors.Is(err, hapax.ErrStoreUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func mustNext(t *testing.T, s *Service, tag string) hapax.ID {
	t.Helper()
	id, err := s.Next(t.Context(), tag)
	if err != nil {
		t.Fatalf("Next(%q): %v", tag, err)
	}
	return id
}

func TestFirstUseCreatesASegmentTag(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		for want := hapax.ID(1); want <= 3; want++ {
			if id := mustNext(t, s, "orders"); id != want {
				t.Errorf("got %d, want %d", id, want)
			}
		}
		if id, err := s.NextBytes(t.Context(), []byte("orders")); id != 4 || err != nil {
			t.Errorf("NextBytes: %d, %v", id, err)
		}
		dst := make([]hapax.ID, 5)
		if n, err := s.NextN(t.Context(), "orders", dst); n != 5 || err != nil || !slices.Equal(dst, []hapax.ID{5, 6, 7, 8, 9}) {
			t.Errorf("NextN: %d, %v, %v", n, err, dst)
		}
		if g, err := s.Reserve(t.Context(), "orders", 10); g != (hapax.Grant{Lo: 10, Hi: 20}) || err != nil {
			t.Errorf("Reserve: %v, %v", g, err)
		}
		tag, err := s.Tag(t.Context(), "orders")
		if err != nil || tag.Kind != hapax.KindSegment || tag.Step != hapax.DefaultStep {
			t.Errorf("the tag is %+v, %v", tag, err)
		}
	})
}

func TestLast(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"orders": {Step: 10, MaxStep: 10}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		if id, ok := s.Last("orders"); ok {
			t.Errorf("of a tag not in use: %d", id)
		}
		for range 35 { // through the ends of segments
			id := mustNext(t, s, "orders")
			if last, ok := s.Last("orders"); last != id || !ok {
				t.Errorf("after %d the last one is %d, %v", id, last, ok)
			}
		}
		store.Down()
		for {
			if _, err := s.Next(t.Context(), "orders"); err != nil {
				break
			}
		}
		if last, ok := s.Last("orders"); last%10 != 0 || !ok { // failed calls do not count
			t.Errorf("used up, the last one is %d, %v", last, ok)
		}
		store.Up()
		mustNext(t, s, SnowflakeTag)
		if id, ok := s.Last(SnowflakeTag); ok {
			t.Errorf("of a snowflake tag: %d", id)
		}
		if _, err := s.DeleteTag(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		if id, ok := s.Last("orders"); ok {
			t.Errorf("of a deleted tag: %d", id)
		}
	})
}

func TestColdCallersShareOneAttempt(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		synctest.Wait() // let the first review pass
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: 50 * time.Millisecond} })
		tags := store.Calls("Tag")
		seen := map[hapax.ID]bool{}
		var mu sync.Mutex // guards seen
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				id, err := s.Next(t.Context(), "orders")
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if seen[id] {
					t.Errorf("%d issued twice", id)
				}
				seen[id] = true
			})
		}
		wg.Wait()
		for method, most := range map[string]int64{"CreateTag": 2, "Allocate": 2} { // the snowflake tag is the other one
			if n := store.Calls(method); n > most {
				t.Errorf("%d calls of %s, want at most %d", n, method, most)
			}
		}
		if n := store.Calls("Tag") - tags; n != 1 {
			t.Errorf("%d calls of Tag, want 1", n)
		}
	})
}

func TestSnowflakeTagsShareThePoolsIssuer(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"events": {Kind: hapax.KindSnowflake}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		synctest.Wait()
		if tag, err := s.Tag(t.Context(), SnowflakeTag); err != nil || tag.Pool != hapax.DefaultPool {
			t.Errorf("the tag that exists from the start is %+v, %v", tag, err)
		}
		last := hapax.ID(0)
		for i := range 10_000 {
			id := mustNext(t, s, []string{"events", SnowflakeTag}[i%2])
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
		}
		if n := store.Calls("AcquireWorker"); n != 1 {
			t.Errorf("%d workers acquired, want 1", n)
		}
		p, err := s.Parse(last, "")
		if worker, _ := p.Fields.Get("worker"); err != nil || worker != 0 || p.Layout != hapax.LayoutLeaf {
			t.Errorf("parsed %+v, %v", p, err)
		}
		if id, err := s.Compose("", p.Fields); id != last || err != nil {
			t.Errorf("composed %d, %v; want %d", id, err, last)
		}
		// What is not given is 0, but for the time.
		at, _ := p.Fields.Get(hapax.FieldTime)
		id, err := s.Compose("", hapax.Fields{{Name: hapax.FieldTime, Value: at}})
		if back, err := s.Parse(id, ""); err != nil || !slices.Equal(back.Fields, hapax.Fields{{Name: hapax.FieldTime, Value: at}, {Name: "worker"}, {Name: "sequence"}}) {
			t.Errorf("of a time alone: %+v, %v", back, err)
		}
		if err != nil {
			t.Error(err)
		}
		if id, err := s.Compose("", hapax.Fields{{Name: "worker"}, {Name: "sequence"}}); err == nil {
			t.Errorf("without a time: %d", id)
		}
		if _, err := s.Reserve(t.Context(), SnowflakeTag, 2); !errors.Is(err, hapax.ErrKindMismatch) {
			t.Errorf("Reserve: %v", err)
		}
	})
}

func TestTheStoreRulesOverTheOptions(t *testing.T) {
	opts := Options{
		Tags:  map[string]TagConfig{"a": {Step: 7, Start: 100}, "b": {Step: 7}},
		Pools: map[string]PoolConfig{"elsewhere": {Workers: "3"}},
	}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		if id := mustNext(t, s, "a"); id != 100 {
			t.Errorf("a begins with %d, want 100 as configured", id)
		}
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "b", Kind: hapax.KindSnowflake, Pool: "elsewhere"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		id := mustNext(t, s, "b")
		if p, err := s.Parse(id, ""); err != nil || !slices.Contains(p.Fields, hapax.Field{Name: "worker", Value: 3}) {
			t.Errorf("b is a snowflake tag in the store; its ID is %+v, %v", p, err)
		}
	})
}

func TestAPoolFollowsItsFrozenLayout(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		layout, err := hapax.ParseLayout(hapax.LayoutJSSafe53)
		if err != nil {
			t.Fatal(err)
		}
		other, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Pool: "web", Layout: layout, Clock: newTestClock()})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close(t.Context())
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "page", Kind: hapax.KindSnowflake, Pool: "web"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		if id := mustNext(t, s, "page"); id >= 1<<53 {
			t.Errorf("%d is not of the layout that the pool was frozen with", id)
		}
	})
}

func TestUnknownTagsWithoutAutoCreate(t *testing.T) {
	opts := Options{NoAutoCreate: true, Tags: map[string]TagConfig{"known": {}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		synctest.Wait()
		mustNext(t, s, "known")
		before := store.Calls("Tag")
		for range 1000 {
			if _, err := s.Next(t.Context(), "unknown"); !errors.Is(err, hapax.ErrTagNotFound) {
				t.Fatalf("got %v", err)
			}
		}
		if n := store.Calls("Tag") - before; n != 1 {
			t.Errorf("the store was asked %d times, want once", n)
		}
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "unknown"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		mustNext(t, s, "unknown") // at once: the refusal is forgotten
	})
}

func TestMaxTagsCapsFirstUse(t *testing.T) {
	opts := Options{MaxTags: 3, Tags: map[string]TagConfig{"declared": {}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		synctest.Wait() // the snowflake tag is the first
		mustNext(t, s, "a")
		mustNext(t, s, "b")
		if _, err := s.Next(t.Context(), "c"); !errors.Is(err, api.ErrLimitExceeded) {
			t.Errorf("the fourth tag: %v", err)
		}
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "d"}, hapax.CreateFirstUse); !errors.Is(err, api.ErrLimitExceeded) {
			t.Errorf("a client's first use: %v", err)
		}
		mustNext(t, s, "declared")
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "explicit"}, hapax.CreateExplicit); err != nil {
			t.Errorf("explicit creation: %v", err)
		}
		for _, name := range []string{"a", "b", "explicit"} {
			if _, err := s.DeleteTag(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(refusalLife)
		mustNext(t, s, "c")
	})
}

func TestDeletedHereFailsAtOnce(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		before := mustNext(t, s, "orders")
		issuer := s.tags.find("orders").issuer
		if _, err := s.DeleteTag(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context(), "orders"); !errors.Is(err, hapax.ErrTagDeleted) {
			t.Errorf("Next after the deletion: %v", err)
		}
		synctest.Wait()
		if _, err := issuer.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("the old issuer: %v", err)
		}
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "orders"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		if after := mustNext(t, s, "orders"); after <= before {
			t.Errorf("revived, the tag issues %d after %d", after, before)
		}
	})
}

func TestDeletedElsewhereFailsWithinRefresh(t *testing.T) {
	for _, tag := range []string{"orders", SnowflakeTag} {
		t.Run(tag, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
				mustNext(t, s, tag)
				if _, err := store.DeleteTag(t.Context(), tag); err != nil {
					t.Fatal(err)
				}
				time.Sleep(DefaultRefresh)
				synctest.Wait()
				if _, err := s.Next(t.Context(), tag); !errors.Is(err, hapax.ErrTagDeleted) {
					t.Errorf("after the refresh: %v", err)
				}
			})
		})
	}
}

func TestFloorAppliesToTheNextNumber(t *testing.T) {
	for name, floor := range map[string]int64{"above the mark": 5000, "inside of what is in hand": 500} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
				mustNext(t, s, "orders")
				before, err := store.Tag(t.Context(), "orders")
				if err != nil || floor < 1000 && before.Mark <= floor {
					t.Fatalf("%d is not in hand: the mark is %d, error %v", floor, before.Mark, err)
				}
				if _, err := s.UpdateTag(t.Context(), "orders", driver.TagUpdate{Floor: &floor}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // what was in hand is handed back, or would be
				if id := mustNext(t, s, "orders"); int64(id) < floor {
					t.Errorf("%d was issued below the floor", id)
				}
				if after, err := store.Tag(t.Context(), "orders"); after.Mark < floor || err != nil {
					t.Errorf("the mark is %d, below the floor, error %v", after.Mark, err)
				}
			})
		})
	}
}

func TestTicksRunOut(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		dst := make([]hapax.ID, 10_000)
		for range 20 { // ten times what the lead over the clock allows
			if n, err := s.NextN(t.Context(), SnowflakeTag, dst); n != len(dst) || err != nil {
				t.Fatal(n, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var err error
		for err == nil {
			_, err = s.NextN(ctx, SnowflakeTag, dst)
		}
		if !errors.Is(err, hapax.ErrTickExhausted) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCloseSealsAndStopsEverything(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, SnowflakeTag)
		mustNext(t, s, "orders")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for range 2 {
			if err := s.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		workers, err := store.Workers(t.Context(), hapax.DefaultPool)
		if err != nil || len(workers) != 1 || workers[0].Expires.After(time.Now()) {
			t.Errorf("the worker is not sealed: %+v, %v", workers, err)
		}
		for name, call := range map[string]func() error{
			"Next":        func() error { _, err := s.Next(t.Context(), "orders"); return err },
			"Next, cold":  func() error { _, err := s.Next(t.Context(), "cold"); return err },
			"Next, bytes": func() error { _, err := s.NextBytes(t.Context(), []byte(SnowflakeTag)); return err },
			"NextN":       func() error { _, err := s.NextN(t.Context(), "orders", make([]hapax.ID, 2)); return err },
			"Reserve":     func() error { _, err := s.Reserve(t.Context(), "orders", 2); return err },
			"Tags":        func() error { _, err := s.Tags(t.Context(), "", 10); return err },
			"Allocate":    func() error { _, err := s.Allocate(t.Context(), "orders", 10, ""); return err },
			"Ready":       func() error { return s.Ready(t.Context()) },
		} {
			if err := call(); !errors.Is(err, hapax.ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
	})
}

func TestCloseEndsWaits(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		store.Down()
		var wg sync.WaitGroup
		for _, tag := range []string{"orders", "cold", SnowflakeTag} {
			wg.Go(func() {
				if _, err := s.Next(t.Context(), tag); !errors.Is(err, hapax.ErrClosed) {
					t.Errorf("%s: %v", tag, err)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestManyTagsAtOnce(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: time.Millisecond} })
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if id, err := s.Next(t.Context(), fmt.Sprintf("tag-%d", i)); id != 1 || err != nil {
					t.Errorf("tag-%d: %d, %v", i, id, err)
				}
			})
		}
		wg.Wait()
		n := 0
		for range s.tags.all() {
			n++
		}
		if n != 1000 {
			t.Errorf("%d lines, want 1000", n)
		}
	})
}

// TestChurn deletes and revives a tag under callers: no number comes twice.
func TestChurn(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		var mu sync.Mutex // guards seen
		seen := map[hapax.ID]bool{}
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					id, err := s.Next(ctx, "orders")
					if err == nil {
						mu.Lock()
						if seen[id] {
							t.Errorf("%d issued twice", id)
						}
						seen[id] = true
						mu.Unlock()
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		for range 20 {
			time.Sleep(20 * time.Millisecond)
			_, _ = s.DeleteTag(ctx, "orders")
			time.Sleep(5 * time.Millisecond)
			if _, err := s.CreateTag(ctx, hapax.Tag{Name: "orders", Step: 10}, hapax.CreateExplicit); err != nil {
				t.Error(err)
			}
		}
		cancel()
		wg.Wait()
		if len(seen) < 100 {
			t.Errorf("only %d numbers were issued", len(seen))
		}
	})
}
