package leaf

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf/routes"
	"github.com/hapax-id/hapax/internal/service"
)

// maxRows is how many rows are on a page.
const maxRows = 10_000

// A cacheRow is what is in hand of a tag, as events have told.
type cacheRow struct{ current, next hapax.Grant }

// A board keeps what is in hand of the tags of a service, for pages that show it.
type board struct {
	mu   sync.Mutex // guards rows
	rows map[string]cacheRow
}

// maxBoard is how many tags are shown.
const maxBoard = 10_000

// note is an Observer.
func (b *board) note(e hapax.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows == nil {
		b.rows = map[string]cacheRow{}
	}
	row, known := b.rows[e.Tag]
	if e.Tag == "" || !known && len(b.rows) >= maxBoard {
		return
	}
	switch e.Kind {
	case hapax.EventGrant:
		if row.current == (hapax.Grant{}) {
			row.current = e.Grant
		} else {
			row.next = e.Grant
		}
	case hapax.EventSwapped:
		// The grant after this one may have been told before the swap.
		if row.current = e.Grant; row.next == e.Grant {
			row.next = hapax.Grant{}
		}
	case hapax.EventTagDeleted:
		delete(b.rows, e.Tag)
		return
	default:
		return
	}
	b.rows[e.Tag] = row
}

func (b *board) all() map[string]cacheRow {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.rows)
}

// A monitor feeds the pages /cache and /db.
type monitor struct {
	svc   *service.Service
	board *board
	rows  func(context.Context) ([]routes.DatabaseRow, error)
}

func (m monitor) Database(ctx context.Context) ([]routes.DatabaseRow, error) { return m.rows(ctx) }

// Cache implements routes.Monitor. What is in hand is shown in Leaf's first place; rows
// that were not asked for have nothing in hand, as Leaf lists them from the table.
func (m monitor) Cache(ctx context.Context) ([]routes.CacheRow, error) {
	shown := map[string]routes.CacheRow{}
	if rows, err := m.rows(ctx); err == nil { // without the table, what is in hand is shown
		for _, r := range rows {
			shown[r.Tag] = routes.CacheRow{Name: r.Tag}
		}
	}
	for tag, g := range m.board.all() {
		r := routes.CacheRow{Name: tag, Init: g.current.Len() > 0, Next: g.next.Len() > 0, Value0: g.current.Lo, Max0: g.current.Hi, Step0: g.current.Len()}
		// Events and the last number are not of one instant: it may be of another segment.
		if last, ok := m.svc.Last(tag); ok && int64(last) >= g.current.Lo && int64(last) < g.current.Hi {
			r.Value0 = int64(last) + 1
		}
		if r.Next {
			r.Value1, r.Max1, r.Step1 = g.next.Lo, g.next.Hi, g.next.Len()
		}
		shown[tag] = r
	}
	return slices.SortedFunc(maps.Values(shown), func(a, b routes.CacheRow) int { return cmp.Compare(a.Name, b.Name) }), nil
}

// tableRows returns the rows of leaf_alloc.
func (p *part) tableRows(ctx context.Context) ([]routes.DatabaseRow, error) {
	table, err := p.rows.Get(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := table.Rows(ctx, maxRows)
	var all []routes.DatabaseRow
	for _, r := range rows {
		if r.Updated != "" && !strings.Contains(r.Updated, ".") {
			r.Updated += ".0" // Leaf's driver writes the fraction of a second
		}
		all = append(all, routes.DatabaseRow(r))
	}
	return all, err
}

// nativeRows returns the server's own segment tags as rows.
func nativeRows(own *service.Service) func(context.Context) ([]routes.DatabaseRow, error) {
	return func(ctx context.Context) ([]routes.DatabaseRow, error) {
		var all []routes.DatabaseRow
		for after := ""; len(all) < maxRows; {
			page, err := own.Tags(ctx, after, service.MaxPage)
			if err != nil {
				return nil, err
			}
			for _, t := range page {
				if after = t.Name; t.Kind == hapax.KindSegment && !t.Deleted {
					all = append(all, routes.DatabaseRow{Tag: t.Name, MaxID: t.Mark, Step: t.Step})
				}
			}
			if len(page) < service.MaxPage {
				break
			}
		}
		return all, nil
	}
}
