package service

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
)

// maxBounds is how many tags' bounds are remembered.
const maxBounds = 10_000

// bounds remembers how much of a tag may be leased at once, so that a lease takes
// no more than one call on the store.
type bounds struct {
	mu   sync.Mutex // guards tags
	tags map[string]bound
}

type bound struct {
	step, most, delta int64
	def               define.Tag // what the tag says, as of when it was noted
}

func boundOf(t hapax.Tag) bound { return bound{t.Step, t.MaxStep, max(1, t.Delta), define.See(t)} }

func (b *bounds) note(t hapax.Tag) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tags == nil || len(b.tags) >= maxBounds {
		b.tags = map[string]bound{}
	}
	b.tags[t.Name] = boundOf(t)
}

func (b *bounds) of(tag string) (bound, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.tags[tag]
	return v, ok
}

// leasable returns how many numbers a lease of n is, where 0 stands for the tag's
// step: no more than the tag's largest step, so that nobody ends a line.
func (ls *leases) leasable(ctx context.Context, tag string, n int64) (int64, error) {
	b, known := ls.bounds.of(tag)
	if !known || n > b.most { // it may have been raised
		t, err := ls.store.Tag(ctx, tag)
		switch {
		case err != nil:
			return 0, err
		case t.Deleted:
			return 0, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, tag)
		case t.Kind != hapax.KindSegment:
			return 0, fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, tag, t.Kind)
		}
		ls.bounds.note(t)
		b = boundOf(t)
	}
	switch {
	case n == 0:
		n = b.step
	case n < 0 || n > b.most:
		return 0, outOfRange("n", n, fmt.Sprintf("0, for the tag's step, to its max_step (%d)", b.most))
	}
	plugins, err := ls.pluginsOf(ctx, b.def)
	if err == nil {
		err = ls.mayLease(ctx, plugins, n)
	}
	return n, err
}

// pluginsOf returns the tag whose plugins count where numbers of a tag are leased:
// the same, or that of which it is a period's line.
func (ls *leases) pluginsOf(ctx context.Context, t define.Tag) (define.Tag, error) {
	of, _, ok := define.CutLine(t.Name)
	if !ok {
		return t, nil
	}
	parent, err := ls.store.Tag(ctx, of)
	if errors.Is(err, hapax.ErrTagNotFound) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	p, err := define.Read(parent)
	if err != nil {
		return t, err
	}
	if c, err := ls.opts.keys().Code(p); err != nil || !c.HasPeriod() {
		return t, err
	}
	return p, nil
}
