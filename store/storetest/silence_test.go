package storetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A store that leaves its time-out to contexts, which here last a minute, is caught.
func TestSilenceControl(t *testing.T) {
	for name, want := range map[string]struct{ bounded, caught bool }{"bounded": {true, false}, "unbounded": {false, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := NewFaults(memstore.New())
				h := Harness{
					Open: func(testing.TB) Handle { return store },
					Silence: func(_ testing.TB, timeout time.Duration) (func(context.Context) (Handle, error), func()) {
						open := func(context.Context) (Handle, error) { return store, nil }
						return open, func() {
							store.Inject(func(Op) Fault {
								if want.bounded {
									return Fault{Before: timeout, Fail: hapax.ErrStoreUnavailable}
								}
								return Fault{Before: Forever}
							})
						}
					},
				}
				if failures := (check{run: checkSilence}).failures(t, h); len(failures) > 0 != want.caught {
					t.Errorf("complaints: %q", failures)
				}
			})
		})
	}
}

// deaf is a store whose Ping and Beat do not listen to contexts.
type deaf struct{ *Faults }

func (d deaf) Ping(ctx context.Context) error { return d.Faults.Ping(context.WithoutCancel(ctx)) }

func (d deaf) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	return d.Faults.Beat(context.WithoutCancel(ctx), p)
}

// A store that leaves calls to its own time-out, which is an hour, is caught.
func TestHungControl(t *testing.T) {
	for name, wrap := range map[string]func(*Faults) Handle{
		"listening": func(f *Faults) Handle { return f },
		"deaf":      func(f *Faults) Handle { return deaf{f} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := NewFaults(memstore.New())
				h := Harness{
					Open: func(testing.TB) Handle { return wrap(store) },
					Silence: func(_ testing.TB, timeout time.Duration) (func(context.Context) (Handle, error), func()) {
						return func(context.Context) (Handle, error) { return wrap(store), nil }, func() {
							store.Inject(func(Op) Fault { return Fault{Before: timeout, Fail: hapax.ErrStoreUnavailable} })
						}
					},
				}
				if failures := (check{run: checkHung}).failures(t, h); len(failures) > 0 != (name == "deaf") {
					t.Errorf("complaints: %q", failures)
				}
			})
		})
	}
}
