package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

const (
	maxMissing = 4096        // names that are remembered not to be there
	missingFor = time.Second // and for how long
)

// NativeTags issue the numbers of the server's own segment tags for a foreign
// system's routes. None is created by use, unless the configuration defines it: a
// key that was not carried over would begin at 1, and repeat what the foreign system
// has issued.
type NativeTags struct {
	svc      *service.Service
	declared map[string]service.TagConfig

	mu      sync.Mutex // guards the fields below
	there   map[string]bool
	missing map[string]time.Time // when it was not
}

// NewNativeTags returns those of a service; declared are the tags of the configuration.
func NewNativeTags(svc *service.Service, declared map[string]service.TagConfig) *NativeTags {
	return &NativeTags{svc: svc, declared: declared, there: map[string]bool{}, missing: map[string]time.Time{}}
}

// admit refuses a tag that is not there.
func (n *NativeTags) admit(ctx context.Context, tag string) error {
	n.mu.Lock()
	there, at := n.there[tag], n.missing[tag]
	n.mu.Unlock()
	if there {
		return nil
	}
	if time.Since(at) < missingFor {
		return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
	}
	t, err := n.svc.Tag(ctx, tag)
	if def, ok := n.declared[tag]; ok && errors.Is(err, hapax.ErrTagNotFound) {
		t, err = hapax.Tag{Name: tag, Kind: cmp.Or(def.Kind, hapax.KindSegment)}, nil
	}
	if err == nil && t.Kind != hapax.KindSegment {
		return fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, tag, t.Kind)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil: // a deleted one is told of by the service
		n.there[tag] = true
	case errors.Is(err, hapax.ErrTagNotFound):
		if len(n.missing) >= maxMissing {
			clear(n.missing)
		}
		n.missing[tag] = time.Now()
	}
	return err
}

// Next issues a number of a tag.
func (n *NativeTags) Next(ctx context.Context, tag string) (hapax.ID, error) {
	if err := n.admit(ctx, tag); err != nil {
		return 0, err
	}
	return n.svc.Next(ctx, tag)
}

// NextN fills dst with numbers of a tag.
func (n *NativeTags) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	if err := n.admit(ctx, tag); err != nil {
		return 0, err
	}
	return NextN(ctx, n.svc, tag, dst)
}

// TryNext issues a number that is in hand.
func (n *NativeTags) TryNext(tag string) (hapax.ID, bool) { return n.svc.TryNext(tag) }

// NextN fills dst, by as many calls as the service wants.
func NextN(ctx context.Context, svc *service.Service, tag string, dst []hapax.ID) (int, error) {
	for n := 0; ; {
		m, err := svc.NextN(ctx, tag, dst[n:min(len(dst), n+svc.MaxCount())])
		if n += m; err != nil || n == len(dst) {
			return n, err
		}
	}
}
