package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

var quiet = slog.New(slog.DiscardHandler)

// inDir returns the default configuration with a data directory of the test's.
func inDir(t *testing.T) Config {
	t.Helper()
	c := DefaultConfig()
	c.Data = filepath.Join(t.TempDir(), "a", "data")
	return c
}

func openNode(t *testing.T, c Config) *Node {
	t.Helper()
	n, err := OpenNode(t.Context(), c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func TestDataDirectoryIsPrivate(t *testing.T) {
	c := inDir(t)
	n := openNode(t, c)
	if err := n.announce("http://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(c.Data, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s may be read by others: %v", path, info.Mode())
		}
		files++
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("%d files, %v", files, err)
	}
}

func TestInstanceLasts(t *testing.T) {
	c := inDir(t)
	first := openNode(t, c)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if again := openNode(t, c); again.Instance != first.Instance || first.Instance == "" {
		t.Errorf("the instance was %q and is %q", first.Instance, again.Instance)
	}
	if other := openNode(t, inDir(t)); other.Instance == first.Instance {
		t.Error("two directories have the same instance")
	}
}

func TestDirectoryIsLocked(t *testing.T) {
	c := inDir(t)
	n := openNode(t, c)
	shared := c
	shared.Store = "memory:" // the lock is the directory's, not the embedded store's
	for _, c := range []Config{c, shared} {
		if _, err := OpenNode(t.Context(), c, quiet); !errors.Is(err, hapax.ErrStoreLocked) {
			t.Errorf("with %s the error is %v", c.Store, err)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	openNode(t, shared)
}

func TestAnnouncement(t *testing.T) {
	c := inDir(t)
	n := openNode(t, c)
	if got, _ := Announced(c.Data); got != "" {
		t.Errorf("%q is announced", got)
	}
	if err := n.announce("http://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if got, _ := Announced(c.Data); got != "http://127.0.0.1:1" {
		t.Errorf("%q is announced", got)
	}
	if err := n.withdraw(); err != nil {
		t.Fatal(err)
	}
	if got, _ := Announced(c.Data); got != "" {
		t.Errorf("%q is still announced", got)
	}
}

// A node that knows another store refuses this one.
func TestStoreIsIdentified(t *testing.T) {
	c := inDir(t)
	n := openNode(t, c)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(c.Data, boltFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenNode(t.Context(), c, quiet); !errors.Is(err, hapax.ErrStoreReplaced) {
		t.Errorf("the error is %v", err)
	}
}

// fakeOpener opens a store once it is up.
type fakeOpener struct {
	mu    sync.Mutex // guards what follows
	up    bool
	tries int
	store *closeStore
}

// closeStore tells whether it was closed.
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

func TestLazyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeOpener{}
		l := newLazyStore(f.open)
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
		if err := l.Ping(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) || f.tries != 3 {
			t.Errorf("after Close: %v, %d tries", err, f.tries)
		}
	})
}

// A store that comes back while the lazy one is being closed is closed, too.
func TestLazyStoreClosedWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeOpener{up: true}
		l := newLazyStore(f.open)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Ping(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
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

// A server that is told to stop while it starts has nothing to complain about.
func TestStopWhileStarting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := inDir(t)
	c.HTTP = "127.0.0.1:0"
	if err := Run(ctx, c, nil, os.Stderr); err != nil {
		t.Error(err)
	}
}
