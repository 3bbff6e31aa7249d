package main

import (
	"context"
	"errors"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/store/memstore"
)

// rings issues bursts from uid-generator's rings, each with a worker ID of its own: the
// next one when one is nearly used up.
type rings struct {
	opts  uidgen.CachedOptions
	store *memstore.Store

	mu  sync.Mutex // guards all; its last is in use
	all []*uidgen.CachedGenerator
}

func cachedContender(ctx context.Context) (contender, error) {
	layout, err := hapax.ParseLayout(hapax.LayoutUIDGenerator29)
	if err != nil {
		return contender{}, err
	}
	r := &rings{opts: uidgen.CachedOptions{Options: uidgen.Options{Layout: layout}, BoostPower: 15}, store: memstore.New()}
	if _, err := r.ring(ctx, 0); err != nil {
		return contender{}, err
	}
	return contender{
		"hapax `uidgen.CachedGenerator`, 29/21/13, bursts from a ring of 2^15 s", r.worker, r.close, layout.PerSecond(),
		"uid-generator claims 6.1–7.6 M/s; what lasts is the ceiling",
	}, nil
}

// ring returns a ring with room for n numbers, several times.
func (r *rings) ring(ctx context.Context, n int) (*uidgen.CachedGenerator, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) > 0 && r.all[len(r.all)-1].Left() > 8*int64(n) {
		return r.all[len(r.all)-1], nil
	}
	g, err := uidgen.NewCached(ctx, r.store, r.opts)
	if err == nil {
		r.all = append(r.all, g)
	}
	return g, err
}

func (r *rings) worker() work {
	ctx := context.Background()
	return func(n int) {
		g, err := r.ring(ctx, n)
		if err != nil {
			panic(err)
		}
		for range n {
			if _, err := g.GetUID(ctx); err != nil {
				panic(err)
			}
		}
	}
}

func (r *rings) close(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, g := range r.all {
		errs = append(errs, g.Close(ctx))
	}
	return errors.Join(errs...)
}
