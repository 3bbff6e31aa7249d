package server

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
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

// A node that knows another store refuses this one, and stays up to be adopted.
func TestStoreIsIdentified(t *testing.T) {
	c := inDir(t)
	n := openNode(t, c)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(c.Data, boltFile)); err != nil {
		t.Fatal(err)
	}
	stranger := c
	stranger.Data, stranger.Store = t.TempDir(), "bolt:"+filepath.Join(c.Data, boltFile)
	n = openNode(t, stranger)
	if _, err := n.Store.CreateTag(t.Context(), hapax.Tag{Name: "theirs", Kind: hapax.KindSegment, Start: 1, Step: 1, MinStep: 1, MaxStep: 1, Delta: 1}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = openNode(t, c)
	err := n.Store.Ping(t.Context())
	if !errors.Is(err, hapax.ErrStoreReplaced) || !errors.Is(err, hapax.ErrFenced) {
		t.Errorf("the error is %v", err)
	}
	if st := n.Guard.Status(); st.State != witness.Refusing {
		t.Errorf("the status is %+v", st)
	}
}

// A server that is told to stop while it starts has nothing to complain about.
func TestStopWhileStarting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := inDir(t)
	c.HTTP = "127.0.0.1:0"
	if err := Run(ctx, nil, c, nil, os.Stderr); err != nil {
		t.Error(err)
	}
}
