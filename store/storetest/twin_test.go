package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A twin is a memstore that is broken where one of its functions is set.
type twin struct {
	driver.Leases // over the twin's own rows
	*memstore.Store

	storeID  func(ctx context.Context) (string, error)
	ping     func(ctx context.Context) error
	allocate func(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error)
	create   func(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error)
	tags     func(ctx context.Context, after string, limit int) ([]hapax.Tag, error)
	update   func(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error)
	row      func(ctx context.Context, table, name string) ([]byte, error)
	list     func(ctx context.Context, table, after string, limit int) ([]driver.Row, error)
	swap     func(ctx context.Context, table, name string, old, next []byte) (bool, error)
	acquire  func(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error)
	extend   func(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error)
	seal     func(ctx context.Context, lease hapax.Lease, last int64) error
	remove   func(ctx context.Context, pool string) (driver.Pool, error)
	rename   func(string) string // how the store understands names
}

func newTwin() *twin {
	s := &twin{Store: memstore.New()}
	s.Leases = driver.LeasesIn(s)
	return s
}

func (t *twin) StoreID(ctx context.Context) (string, error) {
	if t.storeID != nil {
		return t.storeID(ctx)
	}
	return t.Store.StoreID(ctx)
}

func (t *twin) Ping(ctx context.Context) error {
	if t.ping != nil {
		return t.ping(ctx)
	}
	return t.Store.Ping(ctx)
}

func (t *twin) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if t.allocate != nil {
		return t.allocate(ctx, tag, n, last)
	}
	return t.Store.Allocate(ctx, t.name(tag), n, last)
}

func (t *twin) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if t.create != nil {
		return t.create(ctx, tag, mode)
	}
	tag.Name = t.name(tag.Name)
	return t.Store.CreateTag(ctx, tag, mode)
}

func (t *twin) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if t.tags != nil {
		return t.tags(ctx, after, limit)
	}
	return t.Store.Tags(ctx, after, limit)
}

func (t *twin) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	if t.update != nil {
		return t.update(ctx, name, u)
	}
	return t.Store.UpdateTag(ctx, name, u)
}

func (t *twin) Row(ctx context.Context, table, name string) ([]byte, error) {
	if t.row != nil {
		return t.row(ctx, table, name)
	}
	return t.Store.Row(ctx, t.name(table), t.name(name))
}

func (t *twin) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	if t.list != nil {
		return t.list(ctx, table, after, limit)
	}
	return t.Store.ListRows(ctx, t.name(table), after, limit)
}

func (t *twin) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if t.swap != nil {
		return t.swap(ctx, table, name, old, next)
	}
	return t.Store.SwapRow(ctx, t.name(table), t.name(name), old, next)
}

func (t *twin) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if t.acquire != nil {
		return t.acquire(ctx, req)
	}
	return t.Leases.AcquireWorker(ctx, req)
}

func (t *twin) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	if t.extend != nil {
		return t.extend(ctx, lease, layout, term)
	}
	return t.Leases.ExtendWorker(ctx, lease, layout, term)
}

func (t *twin) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	if t.seal != nil {
		return t.seal(ctx, lease, last)
	}
	return t.Leases.SealWorker(ctx, lease, last)
}

func (t *twin) DeletePool(ctx context.Context, pool string) (driver.Pool, error) {
	if t.remove != nil {
		return t.remove(ctx, pool)
	}
	return t.Leases.DeletePool(ctx, pool)
}

func (t *twin) name(s string) string {
	if t.rename != nil {
		return t.rename(s)
	}
	return s
}

// setMark edits a tag's mark as the interface does not allow to.
func (t *twin) setMark(tag hapax.Tag, mark int64) (hapax.Tag, error) {
	ctx := context.Background()
	edited := memstore.New()
	all, err := t.Store.Tags(ctx, "", 1<<20)
	if err != nil {
		return tag, err
	}
	tag.Mark = mark
	for _, other := range all {
		if other.Name == tag.Name {
			other = tag
		}
		if _, err := edited.CreateTag(ctx, other, hapax.CreateExplicit); err != nil {
			return tag, err
		}
		if other.Deleted {
			edited.DeleteTag(ctx, other.Name)
		}
	}
	t.Restore(edited)
	return tag, nil
}

// A storedWorker is a worker's row.
type storedWorker struct {
	Mark    int64  `json:"mark"`
	From    int64  `json:"from"`
	Token   int64  `json:"token"`
	KeyHash string `json:"key_hash,omitempty"`
	Holder  string `json:"holder,omitempty"`
	Expires int64  `json:"expires_ms,omitempty"`
}

// edit changes a lease's row behind the back of the rules, if there is one, and
// returns it.
func (t *twin) edit(ctx context.Context, l hapax.Lease, f func(*storedWorker)) (storedWorker, error) {
	table, name := "workers/"+l.Pool, fmt.Sprintf("%019d", l.Worker)
	raw, err := t.Store.Row(ctx, table, name)
	var w storedWorker
	if err != nil || raw == nil {
		return w, err
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return w, err
	}
	f(&w)
	next, err := json.Marshal(w)
	if err == nil && !bytes.Equal(raw, next) {
		_, err = t.Store.SwapRow(ctx, table, name, raw, next)
	}
	return w, err
}

// A keeper is a store whose tags are kept by a map and by rules that can be
// broken.
type keeper struct {
	*twin
	mu       sync.Mutex // guards kept
	kept     map[string]driver.Tag
	advance  func(t driver.Tag, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Tag, error)
	handBack func(t driver.Tag, a hapax.Allocation, next int64) (driver.Tag, error)
	redefine func(t driver.Tag, def hapax.Tag) driver.Tag
	floored  func(t driver.Tag, floor int64) driver.Tag
	slowEdit bool // an edit reads first, and writes later

	meeting sync.Mutex // is held for a guarded call
	rules   guardRules
}

func newKeeper() *keeper {
	return &keeper{twin: newTwin(), kept: map[string]driver.Tag{}, advance: driver.Advance, handBack: driver.HandBack, redefine: driver.Tag.Redefined, floored: driver.Tag.Floored, rules: rightRules()}
}

func (k *keeper) change(name string, f func(driver.Tag) (driver.Tag, error)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, ok := k.kept[name]
	if !ok {
		return hapax.ErrTagNotFound
	}
	t, err := f(t)
	if err == nil {
		k.kept[name] = t
	}
	return err
}

func (k *keeper) Allocate(_ context.Context, tag string, n int64, last hapax.GrantKey) (a hapax.Allocation, err error) {
	err = k.change(tag, func(t driver.Tag) (next driver.Tag, err error) {
		a, next, err = k.advance(t, n, last)
		return next, err
	})
	return a, err
}

func (k *keeper) HandBack(_ context.Context, a hapax.Allocation, next int64) error {
	return k.change(a.Tag.Name, func(t driver.Tag) (driver.Tag, error) { return k.handBack(t, a, next) })
}

func (k *keeper) CreateTag(_ context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stored, ok := k.kept[tag.Name]
	tag.Deleted = mode == hapax.CreateTombstone
	floor := tag.Mark
	if ok {
		var err error
		if tag, err = driver.Revive(stored.Tag, tag, mode); err != nil {
			return tag, err
		}
	} else if mode == hapax.CreateFromToken {
		return tag, hapax.ErrTagNotFound
	}
	next := k.redefine(stored, tag)
	if tag.Deleted {
		next.KeyHash, next.Run = "", 0
		next.Token++
	} else {
		next = k.floored(next, floor)
	}
	k.kept[tag.Name] = next
	return next.Tag, nil
}

func (k *keeper) Tag(_ context.Context, name string) (tag hapax.Tag, err error) {
	err = k.change(name, func(t driver.Tag) (driver.Tag, error) { tag = t.Tag; return t, nil })
	return tag, err
}

func (k *keeper) UpdateTag(_ context.Context, name string, u driver.TagUpdate) (tag hapax.Tag, err error) {
	edit := func(t driver.Tag) (driver.Tag, error) {
		tag, err = driver.Update(t.Tag, u)
		next := k.redefine(t, tag)
		if u.Floor != nil {
			next = k.floored(next, *u.Floor)
		}
		tag = next.Tag
		return next, err
	}
	if !k.slowEdit {
		err = k.change(name, edit)
		return tag, err
	}
	var read driver.Tag
	err = k.change(name, func(t driver.Tag) (driver.Tag, error) { read = t; return t, nil })
	if err != nil {
		return tag, err
	}
	for range 50 { // until an allocation has come in between, where there is one
		patience.Slow(time.Millisecond)
		now := read
		if err = k.change(name, func(t driver.Tag) (driver.Tag, error) { now = t; return t, nil }); err != nil || now.Mark != read.Mark {
			break
		}
	}
	err = k.change(name, func(driver.Tag) (driver.Tag, error) { return edit(read) })
	return tag, err
}

func (k *keeper) DeleteTag(_ context.Context, name string) (tag hapax.Tag, err error) {
	err = k.change(name, func(t driver.Tag) (driver.Tag, error) {
		tag, err = driver.Delete(t.Tag)
		return k.redefine(t, tag), err
	})
	return tag, err
}
