package storetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
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
