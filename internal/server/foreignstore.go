package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
)

// reopenAfter is how long a table that could not be opened is not tried again.
const reopenAfter = 300 * time.Millisecond

// A lazy handle is opened when its database or tree first answers, and tried again
// until then.
type lazy[T io.Closer] struct {
	open func(context.Context) (T, error)
	turn chan struct{} // held by the one who opens

	mu     sync.Mutex // guards the fields below
	value  T
	have   bool
	closed bool
	err    error
	tried  time.Time
}

func newLazy[T io.Closer](open func(context.Context) (T, error)) *lazy[T] {
	return &lazy[T]{open: open, turn: make(chan struct{}, 1)}
}

// known returns what is known, and whether it should be tried.
func (l *lazy[T]) known() (value T, err error, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return value, hapax.ErrClosed, false
	case l.have:
		return l.value, nil, false
	}
	return value, l.err, l.err == nil || time.Since(l.tried) >= reopenAfter
}

func (l *lazy[T]) get(ctx context.Context) (T, error) {
	value, err, due := l.known()
	if !due {
		return value, err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return value, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	if value, err, due = l.known(); !due {
		return value, err
	}
	value, err = l.open(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tried, l.err = time.Now(), err; err != nil {
		return value, err
	}
	if l.closed {
		return value, errors.Join(hapax.ErrClosed, value.Close())
	}
	l.value, l.have = value, true
	return value, nil
}

// Close closes what was opened.
func (l *lazy[T]) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed = true; !l.have {
		return nil
	}
	l.have = false
	return l.value.Close()
}

// noStore is what a foreign table or tree lacks of a store.
type noStore struct{}

func (noStore) StoreID(context.Context) (string, error) { return "", hapax.ErrNotSupported }

func (noStore) UpdateTag(context.Context, string, driver.TagUpdate) (hapax.Tag, error) {
	return hapax.Tag{}, hapax.ErrNotSupported
}

func (noStore) DeleteTag(context.Context, string) (hapax.Tag, error) {
	return hapax.Tag{}, hapax.ErrNotSupported
}

// CreateTag fails with ErrTagNotFound: no tag is created by its first use.
func (noStore) CreateTag(_ context.Context, tag hapax.Tag, _ hapax.CreateMode) (hapax.Tag, error) {
	return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag.Name)
}

func (noStore) Allocate(_ context.Context, tag string, _ int64, _ hapax.GrantKey) (hapax.Allocation, error) {
	return hapax.Allocation{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
}

func (noStore) HandBack(context.Context, hapax.Allocation, int64) error { return hapax.ErrNotSupported }

func (noStore) AcquireWorker(context.Context, hapax.AcquireRequest) (hapax.Lease, error) {
	return hapax.Lease{}, hapax.ErrNotSupported
}

func (noStore) ExtendWorker(_ context.Context, l hapax.Lease, _ hapax.ExtendRequest) (hapax.Lease, error) {
	return l, hapax.ErrNotSupported
}

func (noStore) SealWorker(context.Context, hapax.Lease, int64) error { return hapax.ErrNotSupported }

func (noStore) Pools(context.Context) ([]driver.Pool, error) { return nil, nil }

func (noStore) CreatePool(context.Context, string, string) (driver.Pool, error) {
	return driver.Pool{}, hapax.ErrNotSupported
}

func (noStore) DeletePool(context.Context, string) (driver.Pool, error) {
	return driver.Pool{}, hapax.ErrNotSupported
}

func (noStore) Workers(context.Context, string) ([]driver.Worker, error) { return nil, nil }

func (noStore) RetireWorker(context.Context, string, int64) (driver.Worker, error) {
	return driver.Worker{}, hapax.ErrNotSupported
}

// A foreignTable grants segments of a foreign system's rows.
type foreignTable interface {
	Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error)
	HandBack(ctx context.Context, a hapax.Allocation, next int64) error
	Tag(ctx context.Context, name string) (hapax.Tag, error)
	Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error)
	Ping(ctx context.Context) error
	Refused() map[string]error
	Close() error
}

// A tableStore is a foreign table as a service sees it. A row that was used and is
// gone has a tombstone, by which the service notices.
type tableStore[T foreignTable] struct {
	noStore
	*lazy[T]

	usedMu sync.Mutex // guards used
	used   map[string]bool
}

func newTableStore[T foreignTable](open func(context.Context) (T, error)) *tableStore[T] {
	return &tableStore[T]{lazy: newLazy(open), used: map[string]bool{}}
}

func (s *tableStore[T]) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	table, err := s.get(ctx)
	if err != nil {
		return hapax.Allocation{}, err
	}
	a, err := table.Allocate(ctx, tag, n, last)
	if err == nil {
		s.usedMu.Lock()
		s.used[tag] = true
		s.usedMu.Unlock()
	}
	return a, err
}

func (s *tableStore[T]) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	table, err := s.get(ctx)
	if err != nil {
		return err
	}
	return table.HandBack(ctx, a, next)
}

func (s *tableStore[T]) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	table, err := s.get(ctx)
	if err != nil {
		return hapax.Tag{}, err
	}
	return table.Tag(ctx, name)
}

func (s *tableStore[T]) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	table, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	tags, err := table.Tags(ctx, after, limit)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, t := range tags {
		there[t.Name] = true
	}
	full := len(tags) == limit // then what comes after the last is on the next page
	var missing []string
	s.usedMu.Lock()
	for name := range s.used {
		if name > after && !there[name] && !(full && name > tags[limit-1].Name) {
			missing = append(missing, name)
		}
	}
	s.usedMu.Unlock()
	for _, name := range missing {
		if _, err := table.Tag(ctx, name); !errors.Is(err, hapax.ErrTagNotFound) {
			continue // it is there, and cannot be used now
		}
		tags = append(tags, hapax.Tag{Name: name, Kind: hapax.KindSegment, Deleted: true})
		s.usedMu.Lock()
		delete(s.used, name)
		s.usedMu.Unlock()
	}
	slices.SortFunc(tags, func(a, b hapax.Tag) int { return cmp.Compare(a.Name, b.Name) })
	return tags, nil
}

// Refused returns why rows are refused until an operator has decided.
func (s *tableStore[T]) Refused() map[string]error {
	s.mu.Lock()
	table, have := s.value, s.have
	s.mu.Unlock()
	if !have {
		return nil
	}
	return table.Refused()
}

func (s *tableStore[T]) Ping(ctx context.Context) error {
	table, err := s.get(ctx)
	if err != nil {
		return err
	}
	return table.Ping(ctx)
}

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

const (
	maxMissing = 4096        // names that are remembered not to be there
	missingFor = time.Second // and for how long
)

// nativeTags issue the numbers of the server's own segment tags for a foreign
// system's routes. None is created by use, unless the configuration defines it: a
// key that was not carried over would begin at 1, and repeat what the foreign system
// has issued.
type nativeTags struct {
	svc      *service.Service
	declared map[string]service.TagConfig

	mu      sync.Mutex // guards the fields below
	there   map[string]bool
	missing map[string]time.Time // when it was not
}

func newNativeTags(svc *service.Service, c Config) *nativeTags {
	return &nativeTags{svc: svc, declared: c.Tags, there: map[string]bool{}, missing: map[string]time.Time{}}
}

// admit refuses a tag that is not there.
func (n *nativeTags) admit(ctx context.Context, tag string) error {
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

// Next implements the issuer of Leaf's routes.
func (n *nativeTags) Next(ctx context.Context, tag string) (hapax.ID, error) {
	if err := n.admit(ctx, tag); err != nil {
		return 0, err
	}
	return n.svc.Next(ctx, tag)
}

// NextN implements the issuer of TinyID's routes.
func (n *nativeTags) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	if err := n.admit(ctx, tag); err != nil {
		return 0, err
	}
	return nextN(ctx, n.svc, tag, dst)
}

// TryNext issues a number that is in hand.
func (n *nativeTags) TryNext(tag string) (hapax.ID, bool) { return n.svc.TryNext(tag) }

// nextN fills dst, by as many calls as the service wants.
func nextN(ctx context.Context, svc *service.Service, tag string, dst []hapax.ID) (int, error) {
	for n := 0; ; {
		m, err := svc.NextN(ctx, tag, dst[n:min(len(dst), n+svc.MaxCount())])
		if n += m; err != nil || n == len(dst) {
			return n, err
		}
	}
}
