package hapax

import (
	"context"
	"errors"
	"fmt"
)

// An AllocateRequest is what [Allocate] asks a store for.
type AllocateRequest struct {
	Tag  string
	N    int64    // how many numbers; 0: the tag's own step
	Last GrantKey // of the caller's last grant of the tag, if it has one that it may hand back
	Mark int64    // the numbers below are known to be taken; 0: nothing is known

	Create   *Tag        // what the tag is made as at its first use, after WithDefaults; nil: it is not made
	Observer func(Event) // if set, receives EventTagCreated
}

// Allocate has a store grant numbers of a tag as a [Segment] does, for those who keep a cursor of
// their own: it creates the tag at its first use, and refuses a grant that does not lie above all that
// is taken (condition 3), or that no store can mean.
//
// ErrStoreRolledBack, ErrStoreCorrupt, and the errors of the store's Allocate and CreateTag.
func Allocate(ctx context.Context, store SegmentStore, req AllocateRequest) (Allocation, error) {
	a, err := store.Allocate(ctx, req.Tag, req.N, req.Last)
	if errors.Is(err, ErrTagNotFound) {
		if err = req.firstUse(ctx, store, err); err == nil {
			a, err = store.Allocate(ctx, req.Tag, req.N, req.Last)
		}
	}
	if err == nil {
		err = req.check(a)
	}
	if err != nil {
		return Allocation{}, err
	}
	return a, nil
}

// firstUse makes the tag that the store does not know.
func (req AllocateRequest) firstUse(ctx context.Context, store SegmentStore, unknown error) error {
	if req.Mark > 0 { // made anew, it would have others begin at its start
		return fmt.Errorf("%w: it does not know tag %q, which was used up to %d here", ErrStoreRolledBack, req.Tag, req.Mark-1)
	}
	if req.Create == nil {
		return unknown
	}
	_, err := store.CreateTag(ctx, *req.Create, CreateFirstUse)
	if errors.Is(err, ErrTagExists) { // somebody else was first
		return nil
	}
	if err == nil && req.Observer != nil {
		req.Observer(Event{Kind: EventTagCreated, Tag: req.Tag})
	}
	return err
}

// check decides whether a grant can be used.
func (req AllocateRequest) check(a Allocation) error {
	g := a.Grant
	if g.Lo < 0 || g.Len() <= 0 || g.Hi > MaxMark || a.From < 0 || a.From > g.Lo || a.Tag.Delta < 1 || a.Tag.Remainder < 0 || a.Tag.Remainder >= a.Tag.Delta {
		return fmt.Errorf("%w: tag %q: the store granted [%d, %d) from %d, delta %d, remainder %d", ErrStoreCorrupt, req.Tag, g.Lo, g.Hi, a.From, a.Tag.Delta, a.Tag.Remainder)
	}
	if g.Lo < req.Mark {
		return fmt.Errorf("%w: tag %q: the store granted [%d, %d), but numbers up to %d are taken; raise the tag's floor above that", ErrStoreRolledBack, req.Tag, g.Lo, g.Hi, req.Mark-1)
	}
	return nil
}
