package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/strategy"
)

// MaxTake is how many numbers a client may ask for at once to issue them itself. It gets
// fewer where the tag's largest step or Options.MaxCount says so.
const MaxTake = 1_000_000

// A Keeping is how long a client may keep numbers that it was given ahead of use.
type Keeping uint8

// The keepings.
const (
	KeepLong    Keeping = iota // for as long as leases of numbers last
	KeepBriefly                // numbers that hold the time: they would be old
	KeepNothing                // numbers that restart with a period: they would be of an earlier one
)

// Taken are numbers that a client issues itself: leased, or already issued to it.
type Taken struct {
	Lease  hapax.Allocation // if Leased
	Leased bool
	IDs    []hapax.ID
	Keep   Keeping
}

// Take gives a client up to n of a tag's numbers, at least one. If it wants a lease, may
// lease from the tag, and the tag's numbers can be leased, they come from the store, and
// can be handed back; last is the key of its last lease. Otherwise they are issued as by
// NextN. Like NextN it creates the tag at its first use, and errors are those of both.
func (s *Service) Take(ctx context.Context, tag string, n int64, lease bool, last hapax.GrantKey) (Taken, error) {
	if n < 1 || n > MaxTake {
		return Taken{}, outOfRange("count", n, fmt.Sprintf("1 to %d", MaxTake))
	}
	if lease && auth.FromContext(ctx).Allow(auth.LeaseTag, tag) == nil {
		a, err := s.leaseUpTo(ctx, tag, n, last)
		if err == nil {
			return Taken{Lease: a, Leased: true}, nil
		}
		if !errors.Is(err, errNotLeasable) {
			return Taken{}, err
		}
	}
	ids := make([]hapax.ID, min(n, int64(s.opts.MaxCount)))
	got, err := s.NextN(ctx, tag, ids)
	// What was issued is the client's, although the rest failed.
	if got == 0 {
		return Taken{}, err
	}
	return Taken{IDs: ids[:got], Keep: s.keeping(tag)}, nil
}

// errNotLeasable says that a tag's numbers are issued one by one.
var errNotLeasable = errors.New("not leasable")

// leaseUpTo is Allocate of n numbers, or of as many as the tag's largest step allows.
func (s *Service) leaseUpTo(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	b, known := s.bounds.of(tag)
	if !known {
		t, err := admin(ctx, s.core, func(ctx context.Context) (hapax.Tag, error) { return s.store.Tag(ctx, tag) })
		if errors.Is(err, hapax.ErrTagNotFound) {
			if t, err = s.CreateTag(ctx, hapax.Tag{Name: tag, Kind: hapax.KindSegment}, hapax.CreateFirstUse); errors.Is(err, hapax.ErrTagExists) {
				t, err = admin(ctx, s.core, func(ctx context.Context) (hapax.Tag, error) { return s.store.Tag(ctx, tag) })
			}
		}
		if err != nil {
			return hapax.Allocation{}, err
		}
		b = s.bounds.note(t)
	}
	// What makes a tag one whose numbers cannot be leased never changes, so it is known before
	// the store is asked for a lease.
	t := b.def
	if t.Kind != hapax.KindSegment || t.StrategyName() != string(hapax.KindSegment) || define.MakerBy(s.strategies)(t) != "" || s.opts.keys().CheckLease(t) != nil {
		return hapax.Allocation{}, errNotLeasable
	}
	a, err := s.Allocate(ctx, tag, min(n, b.most), last)
	if errors.Is(err, hapax.ErrKindMismatch) || errors.Is(err, strategy.ErrRejected) {
		return a, errNotLeasable // NextN says why, or issues them one by one
	}
	return a, err
}

// keeping tells how long numbers that NextN issued just now may be kept.
func (s *Service) keeping(tag string) Keeping {
	l := s.tags.find(tag)
	switch {
	case l == nil || l.periods != nil: // closed meanwhile: nothing is known of it
		return KeepNothing
	case l.segment == nil:
		return KeepBriefly
	}
	return KeepLong
}
