package redismongo

import (
	"cmp"
	"context"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// reopenEvery is how long a store that refused is left alone before it is asked for
// the process's own buffer again.
const reopenEvery = time.Second

func (o Options) segment() hapax.SegmentOptions {
	return hapax.SegmentOptions{Start: o.Start, Step: o.Step, MinStep: o.MinStep, MaxStep: o.MaxStep, Observer: o.Observer}
}

// InMemory returns an issuer for programs that have neither Redis nor a store: it
// counts from Options.Start in this process's memory. Its numbers are unique within
// the issuer's own life. A second issuer, another process and a restart issue the
// same numbers again.
func InMemory(ctx context.Context, tag string, opts Options) (*hapax.Segment, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return hapax.NewSegment(ctx, memstore.New(), tag, opts.segment())
}

// identify learns the identity of the store, where it has one.
func (i *Issuer) identify(ctx context.Context) error {
	known, ok := i.store.(interface {
		StoreID(ctx context.Context) (string, error)
	})
	if !ok || i.id.Load() != nil {
		return nil
	}
	id, err := known.StoreID(ctx)
	if err == nil {
		i.id.Store(&id)
	}
	return err
}

// openLocal opens the process's own buffer; it waits for the store until the context
// ends.
func (i *Issuer) openLocal(ctx context.Context) error {
	local, err := hapax.NewSegment(ctx, i.store, i.tag, i.opts.segment())
	if err == nil {
		if err = i.identify(ctx); err != nil {
			_ = local.Close(ctx) // the first error tells more
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unopen = err; err != nil {
		return err
	}
	i.local.Store(local)
	close(i.opened)
	return nil
}

// openLater opens the buffer of a process that started while the store was away.
func (i *Issuer) openLater() {
	for i.openLocal(i.life) != nil {
		select {
		case <-time.After(reopenEvery):
		case <-i.life.Done():
			return
		}
	}
}

// fromLocal issues from the process's own buffer while Redis is away. It returns
// fewer numbers than it was asked for and no error if Redis came back meanwhile.
func (i *Issuer) fromLocal(ctx context.Context, dst []hapax.ID) (int, error) {
	local := i.local.Load()
	if local != nil {
		if n := local.TryNextN(dst); n > 0 {
			return n, nil
		}
	}
	i.mu.Lock()
	back, unopen := i.back, i.unopen
	i.mu.Unlock()
	if local == nil {
		select {
		case <-i.opened:
			return 0, nil
		case <-back.Done():
		case <-ctx.Done():
			return 0, &hapax.WaitError{Cause: cmp.Or(unopen, error(hapax.ErrStoreUnavailable)), Context: context.Cause(ctx)}
		}
		if i.life.Err() != nil {
			return 0, i.errClosed()
		}
		return 0, nil
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(back, stop)()
	n, err := local.NextN(waiting, dst)
	// Redis came back, and has what is missing.
	if err != nil && back.Err() != nil && ctx.Err() == nil && i.life.Err() == nil {
		err = nil
	}
	return n, err
}
