package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// deaf is a store that answers nothing while it is told not to, whatever becomes of
// the caller's context.
type deaf struct {
	driver.Store

	hears atomic.Pointer[chan struct{}] // closed: it answers
}

func (d *deaf) wait() { <-*d.hears.Load() }

// stop has it answer no more until the function that it returns is called.
func (d *deaf) stop() (answer func()) {
	c := make(chan struct{})
	d.hears.Store(&c)
	return func() { close(c) }
}

func (d *deaf) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	d.wait()
	return d.Store.Allocate(ctx, tag, n, last)
}

func (d *deaf) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	d.wait()
	return d.Store.HandBack(ctx, a, next)
}

func (d *deaf) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	d.wait()
	return d.Store.AcquireWorker(ctx, req)
}

func (d *deaf) SealWorker(ctx context.Context, l hapax.Lease, last int64) error {
	d.wait()
	return d.Store.SealWorker(ctx, l, last)
}

// A store that ignores contexts holds up neither a constructor nor Close beyond the
// caller's context and the store's time-out.
func TestDeafStore(t *testing.T) {
	for name, open := range map[string]func(context.Context, *deaf) (hapax.Issuer, error){
		"segment": func(ctx context.Context, s *deaf) (hapax.Issuer, error) {
			return hapax.NewSegment(ctx, s, "orders", hapax.SegmentOptions{StoreTimeout: time.Second})
		},
		"snowflake": func(ctx context.Context, s *deaf) (hapax.Issuer, error) {
			return hapax.NewSnowflake(ctx, s, hapax.SnowflakeOptions{StoreTimeout: time.Second})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &deaf{Store: memstore.New()}
				answer := store.stop()
				time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))) // the layout's epoch is over
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				began := time.Now()
				if _, err := open(ctx, store); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 4*time.Second {
					t.Errorf("opened after %v: %v", time.Since(began), err)
				}
				answer()
				issuer, err := open(t.Context(), store)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := issuer.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
				answer = store.stop()
				began = time.Now()
				if err := issuer.Close(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) || time.Since(began) > 2*time.Second {
					t.Errorf("closed after %v: %v", time.Since(began), err)
				}
				answer()
			})
		})
	}
}

// A refill that a deaf store never answers does not hold up Close.
func TestCloseDuringARefillThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &deaf{Store: memstore.New()}
		store.stop()()
		s, err := hapax.NewSegment(t.Context(), store, "orders", hapax.SegmentOptions{StoreTimeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		answer := store.stop()
		defer answer()
		if _, err := s.NextN(t.Context(), make([]hapax.ID, 500)); err != nil { // half of the grant: the next is asked for
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		if err := s.Close(t.Context()); !errors.Is(err, hapax.ErrClosed) || time.Since(began) != time.Second {
			t.Errorf("closed after %v: %v", time.Since(began), err)
		}
	})
}

// A tag that is not refilled just now has no goroutine: a server may hold many.
func TestIdleSegmentHasNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		before := runtime.NumGoroutine()
		for i := range 100 {
			s, err := hapax.NewSegment(t.Context(), store, fmt.Sprint("tag", i), hapax.SegmentOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.NextN(t.Context(), make([]hapax.ID, 500)); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close(t.Context()) }()
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 50 {
			t.Errorf("100 segments have %d goroutines", n)
		}
	})
}
