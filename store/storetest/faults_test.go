package storetest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

var errBroken = errors.New("broken on purpose")

// newFaults returns a wrapper around a store with the tag "t", which starts at 1.
func newFaults(t *testing.T) (*Faults, *memstore.Store) {
	t.Helper()
	inner := memstore.New()
	if _, err := inner.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	return NewFaults(inner), inner
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault Fault
		took  time.Duration // in virtual time, of one second
		err   error
		mark  int64 // after the call
	}{
		{"none", Fault{}, 0, nil, 11},
		{"error before", Fault{Fail: errBroken}, 0, errBroken, 1},
		{"error after", Fault{Lose: errBroken}, 0, errBroken, 11},
		{"slow both ways", Fault{Before: 300 * time.Millisecond, After: 400 * time.Millisecond}, 700 * time.Millisecond, nil, 11},
		{"slow, then an error", Fault{Before: 300 * time.Millisecond, Fail: errBroken}, 300 * time.Millisecond, errBroken, 1},
		{"too slow to reach the store", Fault{Before: 2 * time.Second}, time.Second, context.DeadlineExceeded, 1},
		{"never reaches the store", Fault{Before: Forever}, time.Second, context.DeadlineExceeded, 1},
		{"ambiguous time-out", Fault{After: Forever}, time.Second, context.DeadlineExceeded, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, inner := newFaults(t)
				f.Inject(func(op Op) Fault {
					if op != (Op{"Allocate", "t", 1}) {
						t.Errorf("the call is %+v", op)
					}
					return c.fault
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				a, err := f.Allocate(ctx, "t", 10, "")
				if !errors.Is(err, c.err) {
					t.Errorf("error is %v; want %v", err, c.err)
				}
				if c.err == context.DeadlineExceeded && !errors.Is(err, hapax.ErrStoreUnavailable) {
					t.Errorf("error is %v; want ErrStoreUnavailable too", err)
				}
				if want := (hapax.Grant{Lo: 1, Hi: 11}); c.err == nil && a.Grant != want {
					t.Errorf("the grant is %v; want %v", a.Grant, want)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("the call took %v; want %v", took, c.took)
				}
				if tag, _ := inner.Tag(t.Context(), "t"); tag.Mark != c.mark {
					t.Errorf("the mark is %d; want %d", tag.Mark, c.mark)
				}
			})
		})
	}
}

func TestFaultsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, inner := newFaults(t)
		f.Inject(func(Op) Fault { return Fault{Before: time.Second} })
		result := make(chan error, 1)
		go func() { _, err := f.Allocate(t.Context(), "t", 1, ""); result <- err }()
		synctest.Wait()
		f.Down()
		if err := <-result; !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a call under way: error is %v; want ErrStoreUnavailable", err)
		}
		if tag, _ := inner.Tag(t.Context(), "t"); tag.Mark != 1 {
			t.Errorf("the mark is %d after a call on a store that is down", tag.Mark)
		}
		f.Inject(nil)
		if err := f.Ping(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("error is %v; want ErrStoreUnavailable", err)
		}
		f.Up()
		if err := f.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		if n := f.Calls("Ping"); n != 2 {
			t.Errorf("%d calls of Ping were counted; want 2", n)
		}
	})
}

func TestFaultsSwap(t *testing.T) {
	ctx := t.Context()
	f, inner := newFaults(t)
	id, _ := f.StoreID(ctx)
	old := inner.Snapshot()
	first, err := f.Allocate(ctx, "t", 10, "")
	if err != nil {
		t.Fatal(err)
	}
	f.Swap(old)
	again, err := f.Allocate(ctx, "t", 10, "")
	if same, _ := f.StoreID(ctx); err != nil || again.Grant != first.Grant || same != id {
		t.Errorf("after a rollback: %v of store %s, error %v; want %v of store %s", again.Grant, same, err, first.Grant, id)
	}
	f.Swap(memstore.New())
	if other, _ := f.StoreID(ctx); other == id {
		t.Error("the store ID did not change with the store")
	}
	if _, err := f.Allocate(ctx, "t", 10, ""); !errors.Is(err, hapax.ErrTagNotFound) {
		t.Errorf("after a replacement: error is %v; want ErrTagNotFound", err)
	}
}

// TestFaultsPass: without faults the wrapper is a store like the one inside.
func TestFaultsPass(t *testing.T) {
	Run(t, Harness{Open: func(testing.TB) Handle { return NewFaults(memstore.New()) }})
}

// TestFaultsWithoutRows: the wrapper has no rows where the store inside has none.
func TestFaultsWithoutRows(t *testing.T) {
	ctx := t.Context()
	f := NewFaults(struct{ driver.Store }{memstore.New()})
	_, rowErr := f.Row(ctx, "table", "row")
	_, listErr := f.ListRows(ctx, "table", "", 1)
	_, swapErr := f.SwapRow(ctx, "table", "row", nil, []byte("a"))
	for _, err := range []error{rowErr, listErr, swapErr} {
		if !errors.Is(err, hapax.ErrNotSupported) {
			t.Errorf("error is %v; want ErrNotSupported", err)
		}
	}
	if f.Shared() {
		t.Error("a store without rows is called shared")
	}
}
