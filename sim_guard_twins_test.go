package hapax_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// Broken variants of the guard around a store, each of which lets numbers repeat
// once a backup was put back. More are in store/witness.
func TestSimulationCatchesBrokenGuards(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	catch(t, map[string]twin{
		"a refusal that wears off": {broken: true, nodes: 2, noWitness: true, guard: func(p *process, s driver.Store) driver.Store {
			return &wearing{Store: s, marks: map[string]int64{}}
		}},
		"a check before the grant instead of after it": {broken: true, nodes: 3, guard: func(p *process, _ driver.Store) driver.Store {
			return before{p.link, p.guard}
		}},
	})
}

// wearing compares each grant with the grants before it, and asks on when it
// lies below: every attempt moves the store's mark on, and soon past what it knows.
type wearing struct {
	driver.Store

	mu    sync.Mutex
	marks map[string]int64
}

func (s *wearing) accept(line string, g hapax.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.Lo < s.marks[line] {
		return fmt.Errorf("%w: twin", hapax.ErrStoreUnavailable)
	}
	s.marks[line] = g.Hi
	return nil
}

func (s *wearing) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := s.Store.Allocate(ctx, tag, n, last)
	if err != nil {
		return a, err
	}
	return a, s.accept(witness.TagLine(tag), a.Grant)
}

// before looks at the guard before it asks the store, and not afterwards.
type before struct {
	driver.Store

	guard *witness.Guarded
}

func (s before) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := s.guard.Ping(ctx); err != nil {
		return hapax.Allocation{}, err
	}
	return s.Store.Allocate(ctx, tag, n, last)
}

func (s before) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if err := s.guard.Ping(ctx); err != nil {
		return hapax.Lease{}, err
	}
	return s.Store.AcquireWorker(ctx, req)
}

func (s before) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	if err := s.guard.Ping(ctx); err != nil {
		return lease, err
	}
	return s.Store.ExtendWorker(ctx, lease, layout, term)
}
