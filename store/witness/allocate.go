package witness

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/batch"
	"github.com/hapax-id/hapax/store/driver"
)

// Limits of steps of allocations.
const (
	allocateFew  = 4
	allocateMost = 100 // as a driver may do in one step
)

// batchAllocations gathers allocations into steps; from few calls under way on, others wait for the
// next step. A step costs one heartbeat and one sync of the witness, however many calls share it. A
// tag is in one step at a time, with all its waiting calls.
func (g *Guarded) batchAllocations(few int) *batch.Batch[driver.AllocateOf, driver.Allocated] {
	return batch.New(batch.Options[driver.AllocateOf, driver.Allocated]{
		Trip: g.allocateAll, Most: allocateMost, Trips: few, Few: few,
		Key:  func(of driver.AllocateOf) string { return of.Tag },
		Life: g.life, Left: errLeft, Closed: errGuardClosed(),
	})
}

// errLeft is the error of a caller whose context has ended.
func errLeft(cause error) error { return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, cause) }

// awaitServing returns when the node may be granted something.
func (g *Guarded) awaitServing(ctx context.Context) error {
	g.mu.Lock()
	serves := g.state == Serving
	g.mu.Unlock()
	if serves {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	return g.serving(ctx)
}

// Allocate implements hapax.SegmentStore.
func (g *Guarded) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	if err := g.awaitServing(ctx); err != nil {
		return hapax.Allocation{}, err
	}
	made, err := g.allocations.Do(ctx, driver.AllocateOf{Tag: tag, N: n, Last: last})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return made.Allocation, made.Err
}

// allocateAll makes allocations in one step.
func (g *Guarded) allocateAll(ctx context.Context, all []driver.AllocateOf) (made []driver.Allocated, err error) {
	// The pairs from before the call: one learnt meanwhile may be of a later grant, beside which
	// this one would look like a loss.
	known := make(map[string]Pair, len(all))
	err = g.grant(ctx, func() func(string) (Pair, bool) {
		for _, of := range all {
			line := TagLine(of.Tag)
			if p, ok := g.witness.Pair(line); ok {
				known[line] = p
			}
		}
		return func(line string) (Pair, bool) {
			p, ok := known[line]
			return p, ok
		}
	}, func(ctx context.Context, s store, p pulse) (got []granted, err error) {
		var c driver.Contact
		made, c, err = s.AllocateAllWith(ctx, p.Pulse, all)
		if err = g.found(ctx, s, p, c, err); err != nil {
			return nil, err
		}
		// Several calls of one tag in a step must have got stretches one after the other.
		ends := make(map[string]Pair, len(all))
		for i, m := range made {
			line := TagLine(all[i].Tag)
			switch {
			case m.Err == nil:
				if m.Err = g.asBefore(m.Tag); m.Err == nil {
					m.Err = g.mended(all[i].Tag)
				}
			case errors.Is(m.Err, hapax.ErrKindMismatch):
				m.Err = cmp.Or(g.wasSegment(all[i].Tag), m.Err)
			}
			if m.Err != nil {
				_, isKnown := known[line]
				made[i] = driver.Allocated{Err: g.unreadable(line, g.missing(line, isKnown, m.Err))}
				continue
			}
			one := grantedOf(line, m.Allocation)
			if err := sound(line, m.Grant); err != nil {
				return nil, err
			}
			if one.from.Less(ends[line]) {
				return nil, fmt.Errorf("%w: %s: the store granted [%d, %d) after what ends at %d", hapax.ErrStoreCorrupt, line, m.Grant.Lo, m.Grant.Hi, ends[line].Mark)
			}
			ends[line] = one.to
			got = append(got, one)
		}
		return got, nil
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// grantedOf returns an allocation as a grant of its tag's line.
func grantedOf(line string, a hapax.Allocation) granted {
	return granted{line, Pair{a.Tag.Token, a.Grant.Lo}, Pair{a.Tag.Token, a.Grant.Hi}, line, defOf(a.Tag)}
}
