package server

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
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

// A shared store where there is nothing is left so by whoever needs one that exists.
func TestEmptySharedStoreStaysEmpty(t *testing.T) {
	c := inDir(t)
	c.Store = testservers.Redis(t).URL
	opts, err := redis.ParseURL(c.Store)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	defer client.Close()
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "this one is empty") {
			t.Errorf("the error is %v", err)
		}
		if n, err := client.DBSize(t.Context()).Result(); n != 0 || err != nil {
			t.Errorf("there are %d keys, %v", n, err)
		}
	}
	_, err = OpenStore(t.Context(), c, false, quiet)
	refused(err)
	_, err = OpenExisting(t.Context(), c, quiet) // no directory
	refused(err)
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = OpenExisting(t.Context(), c, quiet)
	refused(err)
}

// A damaged witness keeps its node from starting; the runbook, to which the doctor points, has the way on.
func TestDamagedWitness(t *testing.T) {
	c := inDir(t)
	c.HTTP, c.RESP = "127.0.0.1:0", ""
	n := openNode(t, c)
	tag := hapax.Tag{Name: "a"}
	_, err := n.Store.CreateTag(t.Context(), tag, hapax.CreateExplicit)
	var granted hapax.Allocation
	if err == nil {
		granted, err = n.Store.Allocate(t.Context(), tag.Name, 10, "")
	}
	if err := errors.Join(err, n.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.Data, witnessFile)
	if err := os.WriteFile(path, []byte(strings.Repeat("~", 300)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenNode(t.Context(), c, quiet); !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("the error is %v", err)
	}
	found, err := Examine(t.Context(), c)
	if i := slices.IndexFunc(found, func(d Diagnosis) bool { return d.Part == "witness" }); err != nil || i < 0 || found[i].See != "docs/runbook.md#corrupt-store" {
		t.Errorf("found is %+v, %v", found, err)
	}
	if err := os.Rename(path, path+".damaged"); err != nil {
		t.Fatal(err)
	}
	next, err := openNode(t, c).Store.Allocate(t.Context(), tag.Name, 10, "")
	if err != nil || next.Grant.Lo < granted.Grant.Hi {
		t.Errorf("after %+v comes %+v, %v", granted.Grant, next.Grant, err)
	}
}
