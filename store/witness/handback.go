package witness

import (
	"context"
	"fmt"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// maxTogether is how many hand-backs are one call.
const maxTogether = 500

// handBacks are those that wait while a call is under way, and are one call after it:
// a node that stops hands back the numbers of all its tags.
type handBacks struct {
	mu      sync.Mutex // guards the fields below
	runs    bool
	waiting []handBack
}

type handBack struct {
	driver.HandBackOf
	done chan error // has room for one
}

// handBackTogether hands back with others, where the store can do so.
func (g *Guarded) handBackTogether(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := driver.CheckHandBack(a, next); err != nil {
		return err
	}
	h := handBack{driver.HandBackOf{Allocation: a, Next: next}, make(chan error, 1)}
	b := &g.handBacks
	b.mu.Lock()
	b.waiting = append(b.waiting, h)
	first := !b.runs
	b.runs = true
	b.mu.Unlock()
	if first {
		go g.handBackWaiting() // each of its calls ends by its time-out
	}
	select {
	case err := <-h.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

func (g *Guarded) handBackWaiting() {
	b := &g.handBacks
	for {
		b.mu.Lock()
		n := min(len(b.waiting), maxTogether)
		some := b.waiting[:n:n]
		if b.waiting = b.waiting[n:]; n == 0 {
			b.runs = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		given, err := g.handBackAll(some)
		for i, h := range some {
			switch {
			case err == nil && !given[i]:
				h.done <- driver.NotHeld(h.Tag.Name)
			default:
				h.done <- err
			}
		}
	}
}

func (g *Guarded) handBackAll(some []handBack) ([]bool, error) {
	all := make([]driver.HandBackOf, len(some))
	for i, h := range some {
		all[i] = h.HandBackOf
	}
	return asServing(context.Background(), g, func(ctx context.Context, s store) ([]bool, error) {
		together, ok := s.(driver.Together)
		p := g.pulse(false)
		if !ok || p.Row == "" {
			return nil, errAbandoned()
		}
		given, c, err := together.HandBackAllWith(ctx, p.Pulse, all)
		if err = g.found(ctx, s, p, c, err); err != nil {
			return nil, err
		}
		back := make(map[string]Pair, len(all))
		for i, h := range all {
			if given[i] {
				back[TagLine(h.Tag.Name)] = Pair{h.Tag.Token + 1, h.Next}
			}
		}
		g.gaveBack(back)
		return given, nil
	})
}
