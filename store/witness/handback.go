package witness

import (
	"context"
	"errors"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Limits of steps of hand-backs: a node that stops hands back the numbers of all its tags.
const (
	handBackFew  = 1
	handBackMost = 500
)

func (g *Guarded) batchHandBacks() {
	b := &g.handBacks
	b.tag = func(h driver.HandBackOf) string { return h.Tag.Name }
	b.most, b.few = handBackMost, handBackFew
	b.step, b.start, b.life = g.handBackAll, g.inLoop, g.life
}

// HandBack implements hapax.SegmentStore.
func (g *Guarded) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := driver.CheckHandBack(a, next); err != nil {
		return err
	}
	h := driver.HandBackOf{Allocation: a, Next: next}
	// Without steps of many, calls that wait for each other gain nothing.
	if s := g.calls.peek(); s != nil {
		if t, ok := s.(driver.Together); !ok || !t.HandsBackTogether() {
			_, err := g.handBackAll(ctx, []driver.HandBackOf{h})
			return err
		}
	}
	if err := g.awaitServing(ctx); err != nil {
		return err
	}
	given, err := g.handBacks.do(ctx, h)
	if err == nil && !given {
		err = driver.NotHeld(a.Tag.Name)
	}
	return err
}

// handBackAll makes hand-backs in one step.
func (g *Guarded) handBackAll(ctx context.Context, all []driver.HandBackOf) ([]bool, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) ([]bool, error) {
		p := g.pulse(false)
		if p.Row == "" {
			return nil, errAbandoned()
		}
		given, c, err := handBackIn(ctx, s, p.Pulse, all)
		if err = g.found(ctx, s, p, c, err); err != nil {
			return nil, err
		}
		// Only what the store has taken back may lower the marks that this witness attests.
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

// handBackIn makes hand-backs in a store: one by one where it has no step for many.
func handBackIn(ctx context.Context, s store, p driver.Pulse, all []driver.HandBackOf) (given []bool, c driver.Contact, err error) {
	if t, ok := s.(driver.Together); ok && t.HandsBackTogether() {
		return t.HandBackAllWith(ctx, p, all)
	}
	given = make([]bool, len(all))
	for i, h := range all {
		c, err = s.HandBackWith(ctx, p, h.Allocation, h.Next)
		// A lost lease is an answer about that hand-back alone. Any other error leaves the outcome
		// unknown, and a hand-back that is made late or twice does nothing: it is not repeated here.
		if given[i] = err == nil && c.Met; err != nil && (len(all) == 1 || !errors.Is(err, hapax.ErrLeaseLost)) || !c.Met {
			return nil, c, err
		}
	}
	return given, c, nil
}
