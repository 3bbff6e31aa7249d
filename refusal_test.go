package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// liar is a store that answers something else than it has recorded.
type liar struct {
	*memstore.Store
	grant func(*hapax.Allocation)
	lease func(*hapax.Lease)
}

func (s liar) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := s.Store.Allocate(ctx, tag, n, last)
	s.grant(&a)
	return a, err
}

func (s liar) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	l, err := s.Store.AcquireWorker(ctx, req)
	s.lease(&l)
	return l, err
}

// A grant that no store can have given is not used.
func TestImpossibleGrantsAreRefused(t *testing.T) {
	layout := mustLayout(t, hapax.LayoutLeaf)
	for name, lie := range map[string]liar{
		"tag, negative":           {grant: func(a *hapax.Allocation) { a.Grant.Lo = -1 }},
		"tag, empty":              {grant: func(a *hapax.Allocation) { a.Grant.Hi = a.Grant.Lo }},
		"tag, beyond the end":     {grant: func(a *hapax.Allocation) { a.Grant.Hi = hapax.MaxMark + 1 }},
		"tag, run begins within":  {grant: func(a *hapax.Allocation) { a.From = a.Grant.Lo + 1 }},
		"tag, run begins below":   {grant: func(a *hapax.Allocation) { a.From = -1 }},
		"tag, of every zeroth":    {grant: func(a *hapax.Allocation) { a.Tag.Delta = 0 }},
		"tag, remainder too high": {grant: func(a *hapax.Allocation) { a.Tag.Remainder = a.Tag.Delta }},
		"time, begins after it":   {lease: func(l *hapax.Lease) { l.From = l.Grant.Hi + 1 }},
		"worker, below the range": {lease: func(l *hapax.Lease) { l.Worker = 1 }},
		"worker, above the range": {lease: func(l *hapax.Lease) { l.Worker = 8 }},
		"worker, not among":       {lease: func(l *hapax.Lease) { l.Worker = 4 }},
		"time, negative":          {lease: func(l *hapax.Lease) { l.Grant.Lo = -1 }},
		"time, empty":             {lease: func(l *hapax.Lease) { l.Grant.Hi = l.Grant.Lo }},
		"time, beyond the end":    {lease: func(l *hapax.Lease) { l.Grant.Hi = layout.EndTick() + 1 }},
		"time, without a token":   {lease: func(l *hapax.Lease) { l.Token = 0 }},
	} {
		bubble(t, name, func(t *testing.T) {
			lie.Store = memstore.New()
			var s hapax.Issuer
			var err error
			if lie.grant != nil {
				s, err = hapax.NewSegment(t.Context(), lie, "orders", hapax.SegmentOptions{Clock: newTestClock()})
			} else {
				s, err = hapax.NewSnowflake(t.Context(), lie, hapax.SnowflakeOptions{
					Clock: newTestClock(), Layout: layout, Workers: hapax.WorkerRange{Lo: 2, Hi: 8}, Among: []int64{2, 3, 7},
				})
			}
			if err == nil {
				_ = s.Close(t.Context())
			}
			if !errors.Is(err, hapax.ErrStoreCorrupt) {
				t.Errorf("error is %v, want ErrStoreCorrupt", err)
			}
		})
	}
}

// A store that has forgotten a worker grants time that is taken.
func TestSnowflakeRolledBackStore(t *testing.T) {
	bubble(t, "is refused for good", func(t *testing.T) {
		store := memstore.New()
		backup := store.Snapshot()
		refused := make(chan error, 100)
		s := newSnowflake(t, store, hapax.SnowflakeOptions{
			Clock: newTestClock(), Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, Grant: time.Minute, KeepWarm: true,
			Observer: func(e hapax.Event) {
				if e.Kind == hapax.EventRefused {
					refused <- e.Err
				}
			},
		})
		last := next(t, s)
		store.Restore(backup)
		time.Sleep(50 * time.Second) // half of the grant is over
		select {
		case err := <-refused:
			if !errors.Is(err, hapax.ErrStoreRolledBack) {
				t.Errorf("error is %v, want ErrStoreRolledBack", err)
			}
		default:
			t.Error("the store's grant was used")
		}
		time.Sleep(24 * time.Hour) // and stays so, however much later the store's grants would lie
		if id, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("after %d came %d, error %v", last, id, err)
		}
	})
}

// fencing is a store under a fence, while there is one.
type fencing struct {
	*memstore.Store
	stands *atomic.Bool
}

func (s fencing) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if s.stands.Load() {
		return hapax.Allocation{}, fmt.Errorf("%w (%w)", hapax.ErrStoreRolledBack, hapax.ErrFenced)
	}
	return s.Store.Allocate(ctx, tag, n, last)
}

// A fence is told once, and is over for an issuer when it is over.
func TestFenceEnds(t *testing.T) {
	bubble(t, "at once", func(t *testing.T) {
		store := fencing{memstore.New(), new(atomic.Bool)}
		var told atomic.Int64
		s, err := hapax.NewSegment(t.Context(), store, "orders", hapax.SegmentOptions{
			Clock: newTestClock(), Step: 1, MaxStep: 1,
			Observer: func(e hapax.Event) {
				if e.Kind == hapax.EventRefused {
					told.Add(1)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		store.stands.Store(true)
		for range 100 {
			_, err = s.Next(t.Context())
			time.Sleep(20 * time.Millisecond)
		}
		if !errors.Is(err, hapax.ErrFenced) || told.Load() != 1 {
			t.Errorf("under a fence: %v, told %d times; want ErrFenced, once", err, told.Load())
		}
		store.stands.Store(false)
		time.Sleep(60 * time.Millisecond)
		if _, err := s.Next(t.Context()); err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}
