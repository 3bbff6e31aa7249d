package dump

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A spot is a place in memory, where processes that open its store are killed.
type spot struct {
	store  *memstore.Store // nil: there is none
	id     string
	closed string

	kill *killer // nil: nobody is
	wrap func(*opened) Store
}

// A killer ends a process with one of its calls, and with all that follow.
type killer struct {
	at    int
	after bool // it was made, and is not answered
	calls int
	each  func() // before each, by others
	off   bool   // others call
}

var errKilled = errors.New("killed")

// call makes a call as the process does.
func call[T any](s *spot, f func() (T, error)) (none T, err error) {
	k := s.kill
	if k == nil || k.off {
		return f()
	}
	if k.calls++; k.at > 0 && k.calls > k.at {
		return none, errKilled
	}
	if k.each != nil {
		k.off = true
		k.each()
		k.off = false
	}
	if k.calls != k.at {
		return f()
	}
	if k.after {
		_, _ = f()
	}
	return none, errKilled
}

func (s *spot) place(url string) Place {
	enter := func(ctx context.Context, look bool) (Store, error) {
		return call(s, func() (Store, error) {
			if s.store == nil {
				if look {
					return nil, &driver.WouldChangeError{What: driver.NewStore}
				}
				s.store, s.id, s.closed = memstore.New(), driver.NewStoreID(ctx), driver.NewClosed(ctx)
			}
			if err := driver.CheckClosed(ctx, s.closed); err != nil {
				return nil, err
			}
			o := &opened{Store: s.store, spot: s}
			if s.wrap != nil {
				return s.wrap(o), nil
			}
			return o, nil
		})
	}
	return Place{
		URL:  url,
		Look: func(ctx context.Context) (Store, error) { return enter(ctx, true) },
		Open: func(ctx context.Context) (Store, error) { return enter(ctx, false) },
	}
}

// open opens the store as anybody may.
func (s *spot) open(t *testing.T) Store {
	t.Helper()
	o, err := s.place("").Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// grant takes a number as a command does.
func (s *spot) grant(t *testing.T) error {
	t.Helper()
	_, err := s.take(t.Context())
	return err
}

// theTag is the one that numbers are taken of.
const theTag = "tag 000, \"ü\"<&"

func (s *spot) take(ctx context.Context) (int64, error) {
	o, err := s.place("").Look(ctx)
	if err != nil {
		return 0, err
	}
	shot, err := witness.OneShot(o)
	if err != nil {
		return 0, err
	}
	a, err := shot.Allocate(ctx, theTag, 1, "")
	return a.Grant.Lo, err
}

// opened is the store of a spot, as a process has it.
type opened struct {
	*memstore.Store
	spot *spot
}

// inMemory is the store of a spot of its own.
func inMemory() Store {
	s := &spot{store: memstore.New()}
	s.id, _ = s.store.StoreID(context.Background())
	return &opened{s.store, s}
}

func (o *opened) Close() error { return nil } // a handle

func (o *opened) StoreID(ctx context.Context) (string, error) {
	return call(o.spot, func() (string, error) { return o.spot.id, ctx.Err() })
}

func (o *opened) Row(ctx context.Context, table, name string) ([]byte, error) {
	return call(o.spot, func() ([]byte, error) { return o.Store.Row(ctx, table, name) })
}

func (o *opened) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	return call(o.spot, func() ([]driver.Row, error) { return o.Store.ListRows(ctx, table, after, limit) })
}

func (o *opened) Pools(ctx context.Context) ([]driver.Pool, error) {
	return call(o.spot, func() ([]driver.Pool, error) { return o.Store.Pools(ctx) })
}

func (o *opened) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	return call(o.spot, func() (bool, error) { return o.Store.SwapRow(ctx, table, name, old, next) })
}

func (o *opened) LoadRows(ctx context.Context, closed []byte, rows []driver.Put, over bool) error {
	_, err := call(o.spot, func() (struct{}, error) { return struct{}{}, o.Store.LoadRows(ctx, closed, rows, over) })
	return err
}

func (o *opened) OpenToAll(ctx context.Context) error {
	_, err := call(o.spot, func() (struct{}, error) {
		if ctx.Err() == nil {
			o.spot.closed = ""
		}
		return struct{}{}, ctx.Err()
	})
	return err
}

// boltAt is a place for a real store.
func boltAt(path string) Place {
	open := func(look bool) func(context.Context) (Store, error) {
		return func(ctx context.Context) (Store, error) {
			s, err := boltstore.Open(ctx, path, boltstore.Options{Look: look})
			if err != nil {
				return nil, fmt.Errorf("open: %w", err)
			}
			return s, nil
		}
	}
	return Place{URL: "bolt:" + path, Look: open(true), Open: open(false)}
}
