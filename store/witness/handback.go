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

// next returns those that are the next call: of each tag one, since a call names each
// tag once.
func (b *handBacks) next() (some []handBack) {
	b.mu.Lock()
	defer b.mu.Unlock()
	named := make(map[string]bool, min(len(b.waiting), maxTogether))
	var rest []handBack
	for _, h := range b.waiting {
		if len(some) == maxTogether || named[h.Tag.Name] {
			rest = append(rest, h)
			continue
		}
		named[h.Tag.Name] = true
		some = append(some, h)
	}
	b.waiting, b.runs = rest, len(some) > 0
	return some
}

func (g *Guarded) handBackWaiting() {
	for some := g.handBacks.next(); len(some) > 0; some = g.handBacks.next() {
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
