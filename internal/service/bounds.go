package service

import (
	"context"
	"fmt"
	"sync"

	"github.com/hapax-id/hapax"
)

// maxBounds is how many tags' bounds are remembered.
const maxBounds = 10_000

// bounds remembers how much of a tag may be leased at once, so that a lease takes
// no more than one call on the store.
type bounds struct {
	mu   sync.Mutex // guards tags
	tags map[string]bound
}

type bound struct{ step, most, delta int64 }

func (b *bounds) note(t hapax.Tag) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tags == nil || len(b.tags) >= maxBounds {
		b.tags = map[string]bound{}
	}
	b.tags[t.Name] = bound{t.Step, t.MaxStep, max(1, t.Delta)}
}

func (b *bounds) of(tag string) (bound, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.tags[tag]
	return v, ok
}

// leasable returns how many numbers a lease of n is, where 0 stands for the tag's
// step: no more than the tag's largest step, so that nobody ends a line.
func (s *Service) leasable(ctx context.Context, tag string, n int64) (int64, error) {
	b, known := s.bounds.of(tag)
	if !known || n > b.most { // it may have been raised
		t, err := s.store.Tag(ctx, tag)
		switch {
		case err != nil:
			return 0, err
		case t.Deleted:
			return 0, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, tag)
		case t.Kind != hapax.KindSegment:
			return 0, fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, tag, t.Kind)
		}
		s.bounds.note(t)
		b = bound{t.Step, t.MaxStep, t.Delta}
	}
	switch {
	case n == 0:
		return b.step, nil
	case n < 0 || n > b.most:
		return 0, outOfRange("n", n, fmt.Sprintf("0, for the tag's step, to its max_step (%d)", b.most))
	}
	return n, nil
}
