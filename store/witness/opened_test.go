package witness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// fakeOpener opens a store once it is up.
type fakeOpener struct {
	mu    sync.Mutex // guards what follows
	up    bool
	tries int
	store *closeStore
}

// closeStore reports whether it was closed.
type closeStore struct {
	hapax.Store

	closed bool
}

func (s *closeStore) Close() error {
	s.closed = true
	return s.Store.Close()
}

func (f *fakeOpener) open(ctx context.Context) (hapax.Store, error) {
	time.Sleep(10 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if !f.up {
		return nil, fmt.Errorf("%w: try %d", hapax.ErrStoreUnavailable, f.tries)
	}
	f.store = &closeStore{Store: memstore.New()}
	return f.store, ctx.Err()
}

func TestGuardOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeOpener{}
		l, err := GuardOpened(f.open, newWitness(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		use := func(n int) (failed int) {
			var wg sync.WaitGroup
			var mu sync.Mutex // guards failed
			for range n {
				wg.Go(func() {
					if _, err := l.CreateTag(t.Context(), hapax.Tag{Name: "a"}, hapax.CreateExplicit); errors.Is(err, hapax.ErrStoreUnavailable) {
						mu.Lock()
						failed++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			return failed
		}
		if failed := use(100); failed != 100 || f.tries != 1 {
			t.Errorf("%d of 100 calls failed after %d tries", failed, f.tries)
		}
		time.Sleep(reopenEvery)
		use(100)
		if f.tries != 2 {
			t.Errorf("%d tries, want 2", f.tries)
		}
		f.up = true
		if failed := use(1); failed != 1 {
			t.Error("it was tried again at once")
		}
		time.Sleep(reopenEvery)
		if failed := use(100); failed != 0 || f.tries != 3 {
			t.Errorf("%d calls failed after %d tries, with the store back", failed, f.tries)
		}
		if _, err := l.StoreTime(t.Context()); !errors.Is(err, hapax.ErrNotSupported) {
			t.Errorf("the time of a store without a clock: %v", err)
		}
		if err := l.Close(); err != nil || !f.store.closed {
			t.Errorf("closed with %v; the store: %v", err, f.store.closed)
		}
		if err := l.Ping(t.Context()); !errors.Is(err, hapax.ErrClosed) || f.tries != 3 {
			t.Errorf("after Close: %v, %d tries", err, f.tries)
		}
	})
}

// A store that comes back while the guard is being closed is closed, too.
func TestGuardClosedWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeOpener{up: true}
		l, err := GuardOpened(f.open, newWitness(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Ping(t.Context()); !errors.Is(err, hapax.ErrClosed) {
				t.Errorf("Ping returns %v", err)
			}
		})
		time.Sleep(time.Millisecond)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if !f.store.closed {
			t.Error("the store stays open")
		}
	})
}
