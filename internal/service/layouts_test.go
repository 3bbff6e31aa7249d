package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// A node that has read a pool's layout, before the pool was deleted unused and made anew with ticks of
// another length, counts by the new one: a worker's mark in ticks of the old one would lie in another age.
func TestPoolMadeAnewByAnotherNode(t *testing.T) {
	term := func() hapax.Term {
		return hapax.Term{Length: 10 * time.Second}
	}
	for name, use := range map[string]func(t *testing.T, a, b *Service) hapax.Lease{
		"extends": func(t *testing.T, a, b *Service) hapax.Lease {
			lease, err := b.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: "p", Holder: "client", Term: term()})
			if err != nil {
				t.Fatal(err)
			}
			if lease, err = a.ExtendWorker(t.Context(), lease, hapax.Layout{}, term()); err != nil {
				t.Fatal(err)
			}
			return lease
		},
		"acquires": func(t *testing.T, a, _ *Service) hapax.Lease {
			lease, err := a.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: "p", Holder: "client", Term: term()})
			if err != nil {
				t.Fatal(err)
			}
			return lease
		},
		"acquires for a client that knows": func(t *testing.T, a, b *Service) hapax.Lease {
			layout, err := b.PoolLayout(t.Context(), "p")
			if err != nil {
				t.Fatal(err)
			}
			lease, err := a.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: "p", Layout: layout, Holder: "client", Term: term()})
			if err != nil {
				t.Fatal(err)
			}
			return lease
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				a, b := open(t, store, Options{}), open(t, store, Options{})
				synctest.Wait() // they have read the pools
				create := func(spec string) hapax.Layout {
					pool, err := b.CreatePool(t.Context(), "p", spec)
					if err != nil {
						t.Fatal(err)
					}
					layout, err := hapax.ParseLayout(pool.Layout)
					if err != nil {
						t.Fatal(err)
					}
					return layout
				}
				was := create("time:41,worker:10,sequence:12,epoch=1990-01-01T00:00:00Z")
				if l, err := a.PoolLayout(t.Context(), "p"); err != nil || l != was {
					t.Fatalf("the layout is %v, %v", l, err)
				}
				if _, err := b.DeletePool(t.Context(), "p"); err != nil {
					t.Fatal(err)
				}
				layout := create("time:31,worker:10,sequence:22,unit=1s,epoch=1990-01-01T00:00:00Z")
				lease := use(t, a, b)
				most, err := layout.TickOf(a.leaseTime().Add(time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				if hi := lease.Grant.Hi; hi < lease.Grant.Lo || hi > most {
					t.Errorf("granted is %v; want ticks up to %d", lease.Grant, most)
				}
				if w, err := store.Workers(t.Context(), "p"); err != nil || len(w) != 1 || w[0].Mark != lease.Grant.Hi {
					t.Errorf("the workers are %+v, %v", w, err)
				}
			})
		})
	}
}

// A pool that another node has deleted unused is no pool that this one knows, and is not made anew.
func TestPoolDeletedByAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := open(t, store, Options{}), open(t, store, Options{})
		if _, err := b.CreatePool(t.Context(), "p", "leaf"); err != nil {
			t.Fatal(err)
		}
		if _, err := a.PoolLayout(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.DeletePool(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(a.opts.Refresh + time.Second)
		lease, err := a.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: "p", Holder: "client", Term: hapax.Term{Length: time.Second}})
		if hapax.CodeOf(err) != hapax.ErrInvalidArgument.Code() {
			t.Errorf("leased is %+v, %v; want it refused", lease, err)
		}
		if pools, err := store.Pools(t.Context()); err != nil || len(pools) != 0 {
			t.Errorf("the pools are %+v, %v", pools, err)
		}
	})
}
