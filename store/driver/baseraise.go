package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// RaiseTag sets the mark of a tag, alive or deleted, to at least mark, for an operator who
// knows that the store is behind. What was granted from below it cannot be handed back then.
func (b *Base) RaiseTag(ctx context.Context, name string, mark int64) (hapax.Tag, error) {
	if mark < 0 || mark > hapax.MaxMark {
		return hapax.Tag{}, &hapax.ValueError{Field: "mark", Value: mark, Allowed: fmt.Sprintf("0 to %d", int64(hapax.MaxMark)), Err: hapax.ErrInvalidArgument}
	}
	return b.redefine(ctx, name, mark, func(t hapax.Tag) (hapax.Tag, error) {
		t.Mark = max(t.Mark, mark)
		return t, nil
	})
}

// RaiseAll raises the mark of every tag by so many of its numbers, which lie its delta apart, and of
// every worker by so much time beyond its mark and beyond now, but not beyond the end of its line. Every lease ends. A tag that
// cannot be read cannot be raised, and ends it with an [UnreadableError].
func (b *Base) RaiseAll(ctx context.Context, numbers int64, margin time.Duration) (raised []Raised, err error) {
	const page = 10_000
	for after, more := "", true; more; {
		tags, err := b.Tags(ctx, after, page)
		if err != nil {
			return nil, err
		}
		for _, t := range tags {
			if after = t.Name; t.Kind == hapax.KindSnowflake {
				continue
			}
			delta := max(1, t.Delta) // 0: of one that cannot be read
			// By a division, since so many numbers may need more places than there are.
			places := min(numbers, (hapax.MaxMark-t.Mark)/delta) * delta
			to, err := b.RaiseTag(ctx, t.Name, t.Mark+places)
			if err != nil {
				return nil, err
			}
			raised = append(raised, Raised{Tag: t.Name, From: t.Mark, To: to.Mark})
		}
		more = len(tags) == page
	}
	pools, err := b.Pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		workers, err := b.Workers(ctx, p.Name)
		if err != nil {
			return nil, err
		}
		layout, err := hapax.ParseLayout(p.Layout)
		if err != nil {
			return nil, fmt.Errorf("pool %q: %w", p.Name, err)
		}
		now, err := layout.TickOf(time.Now())
		if err != nil {
			return nil, fmt.Errorf("pool %q: %w", p.Name, err)
		}
		ticks := int64((margin + layout.Unit() - 1) / layout.Unit())
		for _, w := range workers {
			after, err := b.RaiseWorker(ctx, p.Name, w.ID, min(max(w.Mark, now)+ticks, layout.EndTick()))
			if err != nil {
				return nil, err
			}
			raised = append(raised, Raised{Pool: p.Name, Worker: w.ID, From: w.Mark, To: after.Mark})
		}
	}
	return raised, nil
}
