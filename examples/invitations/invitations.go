// Package invitations is an example of a custom strategy: it hands out a
// fixed list of invitation codes, each once.
//
// What makes a code appear once is not in here: a segment of the tag grants
// positions in the list, so that any number of processes that share a store share
// the list too.
package invitations

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
)

// A List is a strategy. The codes must be different from each other, and stay in
// their places as long as the tag is in use; further ones go to the end.
type List struct {
	Store hapax.SegmentStore
	Codes []hapax.ID
}

// Open implements strategy.Strategy.
func (l *List) Open(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
	seen := make(map[hapax.ID]bool, len(l.Codes))
	for i, code := range l.Codes {
		if seen[code] {
			return nil, fmt.Errorf("%w: tag %q: code %d, at position %d of the list, is in it twice", hapax.ErrInvalidArgument, tag.Name, code, i)
		}
		seen[code] = true
	}
	// Small steps: what a crash loses is lost from the list.
	positions, err := hapax.NewSegment(ctx, l.Store, tag.Name, hapax.SegmentOptions{Step: 1, MaxStep: 10})
	if err != nil {
		return nil, err
	}
	return &issuer{positions: positions, codes: l.Codes, tag: tag.Name}, nil
}

type issuer struct {
	positions *hapax.Segment // counts from 1
	codes     []hapax.ID
	tag       string
}

func (i *issuer) Next(ctx context.Context) (hapax.ID, error) {
	var one [1]hapax.ID
	_, err := i.NextN(ctx, one[:])
	return one[0], err
}

// NextN implements hapax.Issuer, but for the order, which is that of the list.
func (i *issuer) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	n, err := i.positions.NextN(ctx, dst)
	for k, position := range dst[:n] {
		if position > hapax.ID(len(i.codes)) {
			clear(dst[k:n])
			return k, fmt.Errorf("%w: tag %q: all %d codes are handed out", hapax.ErrLineExhausted, i.tag, len(i.codes))
		}
		dst[k] = i.codes[position-1]
	}
	return n, err
}

func (i *issuer) Close(ctx context.Context) error { return i.positions.Close(ctx) }
