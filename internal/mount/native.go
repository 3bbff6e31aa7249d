package mount

import (
	"context"
	"errors"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// NativeTags issue the numbers of the server's own segment tags for a foreign
// system's routes. None is created by use, unless the configuration defines it: a
// key that was not carried over would begin at 1, and repeat what the foreign system
// has issued.
type NativeTags struct{ svc *service.Service }

// NewNativeTags returns the native tags of a service.
func NewNativeTags(svc *service.Service) NativeTags { return NativeTags{svc} }

// Next issues a number of a tag.
func (n NativeTags) Next(ctx context.Context, tag string) (hapax.ID, error) {
	if err := n.svc.Existing(ctx, tag); err != nil {
		return 0, err
	}
	return n.svc.Next(ctx, tag)
}

// NextN fills dst with numbers of a tag.
func (n NativeTags) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	if err := n.svc.Existing(ctx, tag); err != nil {
		return 0, err
	}
	return NextN(ctx, n.svc, tag, dst)
}

// Allocate grants a segment of a tag to a client, which creates one that the configuration
// defines, as the first number of it does.
func (n NativeTags) Allocate(ctx context.Context, tag string, count int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := n.svc.Allocate(ctx, tag, count, last)
	if !errors.Is(err, hapax.ErrTagNotFound) || n.svc.Existing(ctx, tag) != nil {
		return a, err
	}
	return hapax.Allocate(ctx, n.svc, hapax.AllocateRequest{Tag: tag, N: count, Last: last, Create: &hapax.Tag{Name: tag}})
}

// TryNext issues a number that is in hand.
func (n NativeTags) TryNext(tag string) (hapax.ID, bool) { return n.svc.TryNext(tag) }

// NextN fills dst, by as many calls as the service wants.
func NextN(ctx context.Context, svc *service.Service, tag string, dst []hapax.ID) (int, error) {
	for n := 0; ; {
		m, err := svc.NextN(ctx, tag, dst[n:min(len(dst), n+svc.MaxCount())])
		if n += m; err != nil || n == len(dst) {
			return n, err
		}
	}
}
