package ledger

import (
	"context"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A Store is a store whose grants of numbers are recorded before they are used.
type Store struct {
	driver.Store

	Ledger *Ledger // nil: nothing is recorded

	// Maker returns what makes other numbers of those that a tag is granted, "" for
	// nothing. Default: nothing does.
	Maker func(t hapax.Tag) string
}

// Allocate implements hapax.SegmentStore.
func (s Store) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := s.Ledger.Ready(); err != nil {
		return hapax.Allocation{}, err
	}
	a, err := s.Store.Allocate(ctx, tag, n, last)
	if err == nil {
		maker := ""
		if s.Maker != nil {
			maker = s.Maker(a.Tag)
		}
		err = s.Ledger.Allocated(a, By{}, maker)
	}
	return a, err
}

// HandBack implements hapax.SegmentStore.
func (s Store) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	err := s.Store.HandBack(ctx, a, next)
	s.Ledger.HandedBack(a, next, By{}, err)
	return err
}

// StoreTime implements driver.Clock for stores that do.
func (s Store) StoreTime(ctx context.Context) (time.Time, error) {
	if clock, ok := s.Store.(driver.Clock); ok {
		return clock.StoreTime(ctx)
	}
	return time.Time{}, hapax.ErrNotSupported
}
