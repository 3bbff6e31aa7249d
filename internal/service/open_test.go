package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/strategy"
)

// A caller that has looked for a line before the attempt of another one ended gets that line: a
// second one would leave what is granted to the first unused.
func TestAttemptAfterTheLineIsOpen(t *testing.T) {
	s := open(t, memstore.New(), Options{})
	mustNext(t, s, "orders")
	there := s.tags.find("orders")
	a, err := s.attempt(t.Context(), "orders") // as by that caller
	if err != nil {
		t.Fatal(err)
	}
	<-a.done
	if a.err != nil || a.line != there || s.tags.find("orders") != there {
		t.Errorf("the attempt has line %p, %v; want %p, which is open", a.line, a.err, there)
	}
	if id := mustNext(t, s, "orders"); id != 2 {
		t.Errorf("the next number is %d; want 2", id)
	}
}

// Tags that wait for a worker ID of their pool keep no other tag from being opened, however many they
// are.
func TestOpensBesideAnExhaustedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, tags := memstore.New(), map[string]TagConfig{}
		for i := range 2 * maxOpening {
			tags[fmt.Sprint("events", i)] = TagConfig{Kind: hapax.KindSnowflake}
		}
		opts := Options{Tags: tags, Pools: map[string]PoolConfig{"default": {Workers: "5"}}}
		mustNext(t, open(t, store, opts), "events0") // has the pool's one worker ID
		s := open(t, store, opts)
		var wg sync.WaitGroup
		for tag := range tags {
			wg.Go(func() {
				if _, err := s.Next(t.Context(), tag); !errors.Is(err, hapax.ErrNoWorker) {
					t.Errorf("%s: %v", tag, err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.Next(ctx, "orders"); err != nil {
			t.Errorf("a tag that needs no worker ID: %v", err)
		}
		wg.Wait()
	})
}

// Nor do tags whose strategy hangs.
func TestOpensBesideAStrategyThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, tags := newStrategies(t), map[string]TagConfig{}
		var opening atomic.Int64
		err := r.Register("slow", strategy.Func(func(ctx context.Context, _ hapax.Tag) (hapax.Issuer, error) {
			opening.Add(1)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 * maxOpening {
			tags[fmt.Sprint("t", i)] = TagConfig{Strategy: "slow"}
		}
		s := open(t, memstore.New(), Options{Strategies: r, Tags: tags})
		var wg sync.WaitGroup
		for tag := range tags {
			wg.Go(func() { _, _ = s.Next(t.Context(), tag) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.Next(ctx, "orders"); err != nil || opening.Load() != maxOpening {
			t.Errorf("a tag that counts: %v; %d are being opened by the strategy, want %d", err, opening.Load(), maxOpening)
		}
		wg.Wait()
	})
}

// A store that hangs is asked for no more than so many lines at the same time.
func TestOpensSoManyAtATime(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		synctest.Wait()
		before := store.Calls("Tag")
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: time.Second} })
		var wg sync.WaitGroup
		for i := range 2 * maxOpening {
			wg.Go(func() { _, _ = s.Next(t.Context(), fmt.Sprint("orders", i)) })
		}
		synctest.Wait()
		if asked := store.Calls("Tag") - before; asked != maxOpening {
			t.Errorf("the store is asked for %d tags at the same time; want %d", asked, maxOpening)
		}
		store.Inject(nil)
		wg.Wait()
	})
}
