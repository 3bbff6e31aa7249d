package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ondemand"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A NoStore is the part of a store that a foreign system lacks: it has no pools and no tags,
// none is created by its first use, and the rest answers as a closed store does.
type NoStore struct{ driver.Store }

// NewNoStore returns a NoStore.
func NewNoStore() NoStore {
	closed := memstore.New()
	_ = closed.Close() // it has nothing to lose
	return NoStore{closed}
}

// CreateTag implements hapax.SegmentStore.
func (NoStore) CreateTag(_ context.Context, tag hapax.Tag, _ hapax.CreateMode) (hapax.Tag, error) {
	return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag.Name)
}

// Allocate implements hapax.SegmentStore.
func (NoStore) Allocate(_ context.Context, tag string, _ int64, _ hapax.GrantKey) (hapax.Allocation, error) {
	return hapax.Allocation{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
}

// Pools implements driver.PoolStore.
func (NoStore) Pools(context.Context) ([]driver.Pool, error) { return nil, nil }

// Workers implements driver.PoolStore.
func (NoStore) Workers(context.Context, string) ([]driver.Worker, error) { return nil, nil }

// Rows are a foreign table as a service sees it. A row that was used and is
// gone has a tombstone, by which the service notices.
type Rows[T Table] struct {
	NoStore
	*ondemand.Handle[T]

	system string
	usedMu sync.Mutex // guards used
	used   map[string]bool
}

// OpenRows brings a service over the tables of a system, which open opens with the
// node's witness. They need not answer yet.
func OpenRows[T Table](ctx context.Context, h *Host, system, name string, open func(context.Context, TableOptions) (T, error), observer func(hapax.Event)) (*Rows[T], *service.Service, error) {
	w, err := h.Witness(system)
	if err != nil {
		return nil, nil, err
	}
	warn := h.Warn(name)
	opts := TableOptions{Timeout: h.StoreTimeout, Witness: w, Warn: func(code, message string) {
		if code == string(hapax.ErrFenced.Code()) {
			message += "; the other rows go on; to do: " + AdoptCommand(system)
		}
		warn(code, message)
	}}
	for _, why := range slices.Sorted(maps.Values(witness.NewMarks(w, nil).RefusedLines())) {
		opts.Warn(string(hapax.ErrFenced.Code()), why) // refused since an earlier start
	}
	rows := &Rows[T]{
		NoStore: NewNoStore(), system: system,
		Handle: NewLazy(func(ctx context.Context) (T, error) { return open(ctx, opts) }),
		used:   map[string]bool{},
	}
	h.Defer(rows.Close)
	if err := h.Contact(ctx, name, rows.Ping); err != nil {
		return nil, nil, err
	}
	svc, err := h.Serve(ctx, name, rows, func(o *service.Options) { o.Adopt, o.Observer = AdoptCommand(system), observer })
	return rows, svc, err
}

// AdoptCommand returns the command by which an operator decides about a refused row,
// whose key stands for health.AdoptKey.
func AdoptCommand(system string) string {
	return "find out why the row went back, and run hapax adopt --foreign " + system + " " + health.AdoptKey
}

// System names the system in commands.
func (s *Rows[T]) System() string { return s.system }

// Adopt is Table.Adopt.
func (s *Rows[T]) Adopt(ctx context.Context, key string, margin int64, dryRun bool) (driver.Foreign, error) {
	table, err := s.Get(ctx)
	if err != nil {
		return driver.Foreign{}, err
	}
	return table.Adopt(ctx, key, margin, dryRun)
}

// Allocate is Table.Allocate.
func (s *Rows[T]) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	table, err := s.Get(ctx)
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

// HandBack is Table.HandBack.
func (s *Rows[T]) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	table, err := s.Get(ctx)
	if err != nil {
		return err
	}
	return table.HandBack(ctx, a, next)
}

// Tag is Table.Tag.
func (s *Rows[T]) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	table, err := s.Get(ctx)
	if err != nil {
		return hapax.Tag{}, err
	}
	return table.Tag(ctx, name)
}

// Tags is Table.Tags.
func (s *Rows[T]) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	table, err := s.Get(ctx)
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
	// One by one, since a row may have come after the page was read.
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
func (s *Rows[T]) Refused() map[string]error {
	table, open := s.Peek()
	if !open {
		return nil
	}
	return table.Refused()
}

// Ping is Table.Ping.
func (s *Rows[T]) Ping(ctx context.Context) error {
	table, err := s.Get(ctx)
	if err != nil {
		return err
	}
	return table.Ping(ctx)
}
