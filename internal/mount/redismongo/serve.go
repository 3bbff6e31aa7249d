package redismongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/compat/collection"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
)

// A part is the issuer's part of a server.
type part struct {
	settings *Settings
	issuers  *issuers
}

// Open implements mount.Mount. Redis and the store may be away.
func (p *part) Open(ctx context.Context, h *mount.Host) error {
	r := p.settings
	if r.WorkerPool != "" {
		if err := r.register(ctx, h); err != nil {
			return fmt.Errorf("compat.redismongo.worker_pool: %w", err)
		}
	}
	counting, err := r.redisURL()
	if err != nil {
		return err
	}
	rdb, err := redisstore.NewClient(counting, cmp.Or(r.Timeout, redismongo.DefaultTimeout))
	if err != nil {
		return mount.Errorf(err, "compat.redismongo.redis")
	}
	h.Defer(rdb.Close)
	redisstore.LogTo(h.Log)
	// Through the ledger: else a trace would know nothing of these segments.
	store := ledger.Store{Store: h.Store, Ledger: h.Ledger}
	if r.Store != "" {
		w, err := h.Witness(name)
		if err != nil {
			return err
		}
		guarded, err := h.Guard(r.Store, w)
		if err != nil {
			return fmt.Errorf("compat.redismongo.store: %w", err)
		}
		h.Defer(guarded.Close)
		store.Store = guarded
	}
	noted, err := r.note(store, h)
	if err != nil {
		return err
	}
	p.issuers.rdb, p.issuers.store = rdb, noted
	h.Marks[strategyName] = p.issuers.mark
	return nil
}

// noting notes each segment in a collection.
type noting struct {
	ledger.Store

	writer *collection.Writer // nil: it does not
}

// Allocate implements hapax.SegmentStore.
func (n noting) Allocate(ctx context.Context, tag string, count int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := n.Store.Allocate(ctx, tag, count, last)
	if err == nil && n.writer != nil {
		n.writer.Granted(tag, a.Grant.Hi-1, a.Grant.Len())
	}
	return a, err
}

// closeWithin bounds how long a stop waits for notes that are not written yet.
const closeWithin = 2 * time.Second

// note has the segments of a store noted where the settings say so.
func (r *Settings) note(store ledger.Store, h *mount.Host) (noting, error) {
	if r.Collection == "" {
		return noting{store, nil}, nil
	}
	db, err := mongostore.NewDatabase(r.collectionURL(h.StoreURL), h.StoreTimeout)
	if err != nil {
		return noting{}, mount.Errorf(err, "compat.redismongo.collection_url")
	}
	// Before the writer's end, which needs it: what is deferred last is closed first.
	h.Defer(func() error { return db.Client().Disconnect(context.Background()) })
	writer := collection.NewWriter(db.Collection(r.Collection), func(err error) {
		if err != nil {
			h.Log.Warn("segments cannot be noted in the collection now, and will be later; numbers are issued as before", "collection", r.Collection, "err", err)
			return
		}
		h.Log.Info("segments are noted again", "collection", r.Collection)
	})
	h.Defer(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		if err := writer.Close(ctx); err != nil {
			h.Log.Warn("the last segments are not noted in the collection", "collection", r.Collection, "err", err)
		}
		return nil
	})
	return noting{store, writer}, nil
}

// Answer implements mount.Mount.
func (p *part) Answer(own *service.Service) ([]mount.Answer, error) {
	observe := own.Observe
	p.issuers.observe.Store(&observe)
	return nil, nil
}

// The issuers of the strategy, and what they share.
type issuers struct {
	settings *Settings
	rdb      redis.UniversalClient // nil: nothing is issued
	store    noting
	observe  atomic.Pointer[func(hapax.Event)]
}

// mark tells a trace how far a tag's numbers were granted.
func (i *issuers) mark(ctx context.Context, tag string) (int64, error) {
	t, err := i.store.Tag(ctx, tag)
	if errors.Is(err, hapax.ErrTagNotFound) {
		return 0, nil // nothing was granted yet
	}
	return t.Mark, err
}

// Open implements strategy.Strategy.
func (i *issuers) Open(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
	if i.rdb == nil {
		return nil, fmt.Errorf("%w: %q has strategy %s, in which a server issues; ask one with --server", hapax.ErrNotSupported, tag.Name, strategyName)
	}
	opts := i.settings.options()
	opts.Start, opts.Step, opts.MinStep, opts.MaxStep = tag.Start, tag.Step, tag.MinStep, tag.MaxStep
	opts.Observer = func(e hapax.Event) {
		if observe := i.observe.Load(); observe != nil {
			(*observe)(e)
		}
	}
	issuer, err := redismongo.New(ctx, i.rdb, i.store, tag.Name, opts)
	if err != nil {
		return nil, err // not a nil *Issuer in an interface
	}
	return issuer, nil
}
