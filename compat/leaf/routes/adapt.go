package routes

import (
	"cmp"
	"context"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/internal/issuers"
)

// Untagged makes one issuer answer for every key, as the snowflake route does.
func Untagged(issuer hapax.Issuer) Issuer { return untagged{issuer} }

type untagged struct{ issuer hapax.Issuer }

func (u untagged) Next(ctx context.Context, _ string) (hapax.ID, error) { return u.issuer.Next(ctx) }

// Segments tell what issuers have in hand; *leaf.Issuers do.
type Segments interface {
	Segments() []issuers.Segment
}

// Rows tell what is in the table; a *leaf.Table does.
type Rows interface {
	Rows(ctx context.Context, limit int) ([]issuers.Row, error)
}

// maxRows is how many rows a page shows.
const maxRows = 10_000

// NewMonitor returns the monitor of a table and its issuers.
func NewMonitor(s Segments, r Rows) Monitor { return monitor{s, r} }

type monitor struct {
	segments Segments
	rows     Rows
}

// Cache implements Monitor.
func (m monitor) Cache(context.Context) ([]CacheRow, error) {
	var all []CacheRow
	for _, s := range m.segments.Segments() {
		r := CacheRow{Name: s.Tag, Init: s.Current.Len() > 0, Next: s.Next.Len() > 0, Max0: s.Current.Hi, Step0: s.Current.Len()}
		r.Value0 = max(s.Current.Lo, s.Current.Hi-max(0, s.Remaining-s.Next.Len()))
		if r.Next {
			r.Value1, r.Max1, r.Step1 = s.Next.Lo, s.Next.Hi, s.Next.Len()
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b CacheRow) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Database implements Monitor.
func (m monitor) Database(ctx context.Context) ([]DatabaseRow, error) {
	rows, err := m.rows.Rows(ctx, maxRows)
	var all []DatabaseRow
	for _, r := range rows {
		all = append(all, DatabaseRow(r))
	}
	return all, err
}
