package witness

import (
	"context"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/batch"
	"github.com/hapax-id/hapax/store/driver"
)

// handBackMost bounds a step: a node that stops hands back the numbers of all its tags.
const handBackMost = 500

// batchHandBacks returns the steps of hand-backs, one at a time, each of which names a tag once.
func (g *Guarded) batchHandBacks() *batch.Batch[driver.HandBackOf, bool] {
	return batch.New(batch.Options[driver.HandBackOf, bool]{
		Trip: g.handBackAll, Most: handBackMost,
		Key: func(h driver.HandBackOf) string { return h.Tag.Name }, Once: true,
		Life: g.life, Left: errLeft, Closed: errGuardClosed(),
	})
}

// HandBack implements hapax.SegmentStore.
func (g *Guarded) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := driver.CheckHandBack(a, next); err != nil {
		return err
	}
	if err := g.awaitServing(ctx); err != nil {
		return err
	}
	given, err := g.handBacks.Do(ctx, driver.HandBackOf{Allocation: a, Next: next})
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
		given, c, err := s.HandBackAllWith(ctx, p.Pulse, all)
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
