package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/internal/durable/losing"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	lockWait = patience.Call
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

func mustSwap(t *testing.T, s *Store, old, next string) {
	t.Helper()
	var before []byte
	if old != "" {
		before = []byte(old)
	}
	if ok, err := s.SwapRow(t.Context(), "table", "row", before, []byte(next)); err != nil || !ok {
		t.Fatalf("swap: %v, error %v", ok, err)
	}
}

func wantValue(t *testing.T, s *Store, want string) {
	t.Helper()
	if got, err := s.Row(t.Context(), "table", "row"); err != nil || string(got) != want {
		t.Errorf("the row is %q, error %v; want %q", got, err, want)
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
	mustSwap(t, mustOpen(t, path), "", "first")
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
	st := state{Format: format, ID: "id", Tables: map[string]map[string][]byte{"t": {"r": []byte("v")}}}
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
		table, name := rapid.String().Draw(t, "table"), rapid.String().Draw(t, "name")
		value := rapid.SliceOf(rapid.Byte()).Draw(t, "value")
		st := state{Format: format, ID: "id", Tables: map[string]map[string][]byte{table: {name: value}}}
		data, err := st.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := got.Tables[table][name]; !ok || !bytes.Equal(v, value) {
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
	mustSwap(t, s, "", "first")
	mustOpen(t, other)
	for _, replace := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.Rename(other, path) },
	} {
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		wantError(t, s.Ping(t.Context()), hapax.ErrStoreReplaced, path)
		_, err := s.SwapRow(t.Context(), "table", "row", []byte("first"), []byte("second"))
		wantError(t, err, hapax.ErrStoreReplaced, path)
	}
}

// TestCrashBeforeRename: what a crash leaves behind does no harm.
func TestCrashBeforeRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	mustSwap(t, mustOpen(t, path), "", "first")
	if err := os.WriteFile(path+".tmp", []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path)
	mustSwap(t, s, "first", "second")
	wantValue(t, s, "second")
	if _, err := os.Stat(path + ".tmp"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file is still there: %v", err)
	}
}

// TestFailedWrite: a write that fails leaves the file as it was.
func TestFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	s := mustOpen(t, path)
	mustSwap(t, s, "", "first")
	if err := os.MkdirAll(filepath.Join(path+".tmp", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := s.SwapRow(t.Context(), "table", "row", []byte("first"), []byte("second"))
	wantError(t, err, hapax.ErrStoreUnavailable, path)
	wantValue(t, s, "first")
}

// TestLockWait: a call that waits for the lock gives up with its context.
func TestLockWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	s := mustOpen(t, path)
	lock, err := durable.Lock(t.Context(), path+".lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = s.SwapRow(ctx, "table", "row", nil, []byte("first"))
	wantError(t, err, hapax.ErrStoreUnavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v; want the context's", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	mustSwap(t, s, "", "first")
}

// TestSymlink: a link stays one.
func TestSymlink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "workers"), filepath.Join(dir, "link")
	mustOpen(t, path)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	mustSwap(t, mustOpen(t, link), "", "first")
	wantValue(t, mustOpen(t, path), "first")
}

// TestPowerLoss: what was acknowledged is there after a power loss.
func TestPowerLoss(t *testing.T) {
	for name, lose := range map[string]func(*losing.Disk) error{"names": (*losing.Disk).LoseNames, "contents": (*losing.Disk).LoseContents} {
		path, disk := filepath.Join(t.TempDir(), "workers"), losing.New()
		s, err := open(t.Context(), path, disk)
		if err != nil {
			t.Fatal(err)
		}
		mustSwap(t, s, "", "first")
		mustSwap(t, s, "first", "second")
		if err := lose(disk); err != nil {
			t.Fatal(err)
		}
		if s, err = open(t.Context(), path, disk); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantValue(t, s, "second")
	}
}
