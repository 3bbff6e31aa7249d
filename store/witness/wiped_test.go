package witness_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// After a loss of the store the nodes that live name those that do not, whose
// numbers would come again.
func TestWipedStoreWithANodeThatDoesNotLive(t *testing.T) {
	for name, req := range map[string]func(*fleet) witness.AdoptRequest{
		"its witness": func(w *fleet) witness.AdoptRequest {
			lines, err := witness.Read(w.path("b"))
			if err != nil {
				w.t.Fatal(err)
			}
			return witness.AdoptRequest{NoOthers: true, Lines: []map[string]int64{lines}}
		},
		"a floor": func(*fleet) witness.AdoptRequest { return witness.AdoptRequest{Floor: 100_000} },
	} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(t *testing.T, w *fleet) {
				w.later()
				time.Sleep(time.Minute)
				w.stop("b") // which was granted last
				w.store.Restore(memstore.New())
				w.create()
				time.Sleep(2 * time.Second)
				w.start("c")
				w.refuse("t")
				for _, little := range []witness.AdoptRequest{{}, {NoOthers: true}} {
					if a, err := w.nodes["a"].Adopt(t.Context(), little); !errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), ": b;") || !slices.Equal(a.Unheard, []string{"b"}) {
						t.Fatalf("%+v: %+v, %v", little, a, err)
					}
				}
				w.adopt(req(w))
				w.issue()
			})
		})
	}
}

// The same, through a node that does not live itself.
func TestWipedStoreAdoptedByOneNode(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.later()
		time.Sleep(time.Minute)
		w.stop("a")
		w.stop("b")
		w.store.Restore(memstore.New())
		w.create()
		wit, err := witness.Open(w.path("a"))
		if err != nil {
			t.Fatal(err)
		}
		with := func(req witness.AdoptRequest) (witness.Adoption, error) {
			return witness.AdoptWith(t.Context(), unclosed{w.store}, wit, req)
		}
		if a, err := with(witness.AdoptRequest{DryRun: true}); err != nil || !a.Replaced || !slices.Equal(a.Unheard, []string{"b"}) {
			t.Errorf("dry run: %+v, %v", a, err)
		}
		if a, err := with(witness.AdoptRequest{NoOthers: true}); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("without b: %+v, %v", a, err)
		}
		if _, err := with(witness.AdoptRequest{Floor: 100_000}); err != nil {
			t.Error(err)
		}
		if err := wit.Close(); err != nil {
			t.Error(err)
		}
		w.start("a")
		w.issue()
	})
}

// Clocks that are hours apart make no difference to whether a store is that of
// others: a node that joined after the loss was never there for long.
func TestClocksHoursApart(t *testing.T) {
	for _, apart := range []time.Duration{-30 * time.Hour, 30 * time.Hour} {
		withFleet(t, func(t *testing.T, w *fleet) {
			w.later()
			w.stop("a")
			w.stop("b")
			w.store.Restore(memstore.New())
			w.create()
			now := time.Now().Add(apart)
			row := fmt.Appendf(nil, `{"beat":3,"run":"r","name":"n","every_ms":1000,"since_ms":%d,"at_ms":%d}`, now.Add(-2*time.Second).UnixMilli(), now.UnixMilli())
			if ok, err := w.store.SwapRow(t.Context(), driver.TableNodes, "n", nil, row); !ok || err != nil {
				t.Fatal(ok, err)
			}
			w.start("a")
			w.refuse("t")
			if fence, err := w.store.Row(t.Context(), driver.TableFence, "fence"); fence == nil || err != nil {
				t.Errorf("clocks %v apart: no fence for the new node, error %v", apart, err)
			}
		})
	}
}

// A clock that jumped may make a node seem to have been in the store for long; one
// that was seen in the store that was lost is no stranger.
func TestKnownNodesAreNoStrangers(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.later()
		time.Sleep(time.Minute)
		b := w.nodes["b"].Witness().Node()
		w.stop("a")
		w.stop("b")
		w.store.Restore(memstore.New())
		w.create()
		now := time.Now()
		row := fmt.Appendf(nil, `{"beat":3,"run":"r","name":"b","every_ms":1000,"since_ms":%d,"at_ms":%d}`, now.Add(-30*time.Hour).UnixMilli(), now.UnixMilli())
		if ok, err := w.store.SwapRow(t.Context(), driver.TableNodes, b, nil, row); !ok || err != nil {
			t.Fatal(ok, err)
		}
		w.start("a")
		w.refuse("t")
		if fence, err := w.store.Row(t.Context(), driver.TableFence, "fence"); fence == nil || err != nil {
			t.Errorf("no fence for b, error %v", err)
		}
	})
}
