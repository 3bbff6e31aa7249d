package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, path string) (storetest.Handle, error) {
		return Open(ctx, path, Options{})
	})
}

func TestConformance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	storetest.Run(t, storetest.Harness{
		Open:         func(t testing.TB) storetest.Handle { return mustOpen(t, path) },
		URL:          path,
		Capabilities: storetest.Capabilities{Shared: true, WorkersOnly: true},
	})
}

func mustOpen(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantError checks sentinel and text of an error.
func wantError(t *testing.T, err error, sentinel *hapax.Error, parts ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) || hapax.CodeOf(err) != sentinel.Code() {
		t.Fatalf("error is %v; want %v", err, sentinel)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error is %q; want it to say %q", err, part)
		}
	}
}

// row is a worker that a test writes.
var row = hapax.Worker{Pool: "pool", ID: 3, Mark: 1000, Epoch: 1, Holder: "h", Expires: time.UnixMilli(5)}

func mustSwap(t *testing.T, s *Store, old, next hapax.Worker) {
	t.Helper()
	if ok, err := s.SwapWorker(t.Context(), old, next); err != nil || !ok {
		t.Fatalf("swap: %v, error %v", ok, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, 1<<40)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		sentinel   *hapax.Error
	}{
		{"a directory", dir, hapax.ErrInvalidArgument},
		{"a device", os.DevNull, hapax.ErrInvalidArgument},
		{"no name", "", hapax.ErrInvalidArgument},
		{"a missing directory", filepath.Join(dir, "missing", "f"), hapax.ErrStoreUnavailable},
		{"below a file", filepath.Join(text, "f"), hapax.ErrStoreUnavailable},
		{"another file", text, hapax.ErrStoreCorrupt},
		{"an empty file", empty, hapax.ErrStoreCorrupt},
		{"a large file", large, hapax.ErrStoreCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(t.Context(), c.path, Options{})
			wantError(t, err, c.sentinel, c.path)
		})
	}
}

// TestEveryBit: no flipped bit goes unnoticed.
func TestEveryBit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	mustSwap(t, mustOpen(t, path), hapax.Worker{}, row)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if st, err := parse(bad); err == nil {
			t.Fatalf("bit %d was flipped, and the file read as %+v", i, st)
		}
	}
	for n := range good {
		if _, err := parse(good[:n]); err == nil {
			t.Fatalf("the file was read although it was cut to %d bytes", n)
		}
	}
}

func FuzzParse(f *testing.F) {
	st := state{Format: format, ID: "id", Pools: map[string]*pool{"p": {Layout: "l", Workers: map[int64]worker{1: {Mark: 2, Epoch: 3}}}}}
	data, err := st.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("null\n" + "00000000\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, data := range [][]byte{text, signed(text)} {
			st, err := parse(data)
			if err != nil {
				continue
			}
			again, err := st.encode()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parse(again); err != nil {
				t.Errorf("what was read as %+v cannot be read again: %v", st, err)
			}
			st.worker("p", 1)
		}
	})
}

// signed gives the text's first line a checksum that matches.
func signed(text []byte) []byte {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return fmt.Appendf(bytes.Clone(line), "\n%08x\n", checksum(line))
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "pool")
		id := rapid.Int64().Draw(t, "id")
		w := worker{rapid.Int64().Draw(t, "mark"), rapid.Int64().Draw(t, "epoch"), rapid.String().Draw(t, "holder"), rapid.Int64Range(0, math.MaxInt64).Draw(t, "expires")}
		st := state{Format: format, ID: "id", Pools: map[string]*pool{name: {Layout: rapid.String().Draw(t, "layout"), Workers: map[int64]worker{id: w}}}}
		data, err := st.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if p := got.Pools[name]; p == nil || p.Layout != st.Pools[name].Layout || p.Workers[id] != w {
			t.Fatalf("%+v came back as %+v", st, got)
		}
	})
}

// TestReplacedFile: a file that is taken away or replaced while the store is
// open is not begun anew.
func TestReplacedFile(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "workers"), filepath.Join(dir, "other")
	s := mustOpen(t, path)
	mustSwap(t, s, hapax.Worker{}, row)
	mustOpen(t, other)
	for _, replace := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.Rename(other, path) },
	} {
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		wantError(t, s.Ping(t.Context()), hapax.ErrStoreReplaced, path)
		_, err := s.SwapWorker(t.Context(), hapax.Worker{}, row)
		wantError(t, err, hapax.ErrStoreReplaced, path)
	}
}

// TestCrashBeforeRename: what a crash leaves behind does no harm.
func TestCrashBeforeRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	mustSwap(t, mustOpen(t, path), hapax.Worker{}, row)
	if err := os.WriteFile(path+".tmp", []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path)
	next := row
	next.Mark = 2000
	mustSwap(t, s, row, next)
	if w, err := s.Worker(t.Context(), row.Pool, row.ID); err != nil || w.Mark != 2000 {
		t.Errorf("the worker is %+v, error %v", w, err)
	}
	if _, err := os.Stat(path + ".tmp"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file is still there: %v", err)
	}
}

// TestFailedWrite: a write that fails leaves the file as it was.
func TestFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	s := mustOpen(t, path)
	mustSwap(t, s, hapax.Worker{}, row)
	if err := os.MkdirAll(filepath.Join(path+".tmp", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	next := row
	next.Mark = 2000
	_, err := s.SwapWorker(t.Context(), row, next)
	wantError(t, err, hapax.ErrStoreUnavailable, path)
	if w, err := s.Worker(t.Context(), row.Pool, row.ID); err != nil || w.Mark != 1000 {
		t.Errorf("the worker is %+v, error %v", w, err)
	}
}

// TestLockWait: a call that waits for the lock gives up with its context.
func TestLockWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	s := mustOpen(t, path)
	unlock, err := lock(t.Context(), path+".lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = s.SwapWorker(ctx, hapax.Worker{}, row)
	wantError(t, err, hapax.ErrStoreUnavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v; want the context's", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	mustSwap(t, s, hapax.Worker{}, row)
}

// TestSymlink: a link stays one.
func TestSymlink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "workers"), filepath.Join(dir, "link")
	mustOpen(t, path)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	mustSwap(t, mustOpen(t, link), hapax.Worker{}, row)
	if w, err := mustOpen(t, path).Worker(t.Context(), row.Pool, row.ID); err != nil || w.Mark != row.Mark {
		t.Errorf("the worker in the link's target is %+v, error %v", w, err)
	}
}
