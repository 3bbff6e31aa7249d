//go:build unix

package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hapax-id/hapax/internal/durable"
)

// What root makes or replaces in the directory of a service belongs to that service's user; a file
// that is there already keeps its owner.
func TestRootLeavesFilesToTheirUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root alone can give files away")
	}
	const user, group = 65534, 65533
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"witness", "kept.lock"} {
		if err := os.WriteFile(path(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, user, group); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"witness", "format"} {
		if err := durable.Replace(durable.OS, path(name), func(*os.File) ([]byte, error) { return []byte("x"), nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"new.lock", "kept.lock"} {
		l, err := durable.TryLock(path(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"new.db", "kept.lock"} {
		f, err := durable.OpenFile(path(name), os.O_RDWR|os.O_CREATE)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if foreign, err := durable.Foreign(dir); err != nil || !slices.Equal(foreign, []string{path("kept.lock")}) {
		t.Errorf("of another user are %q, %v", foreign, err)
	}
	if err := durable.MkdirAll(path("a/b")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/b"} {
		if info, err := os.Stat(path(name)); err != nil || info.Sys().(*syscall.Stat_t).Uid != user || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for name, want := range map[string]uint32{"witness": user, "format": user, "new.lock": user, "new.db": user, "kept.lock": 0} {
		info, err := os.Stat(path(name))
		if err != nil {
			t.Fatal(err)
		}
		if of := info.Sys().(*syscall.Stat_t); of.Uid != want {
			t.Errorf("%s belongs to user %d; want %d", name, of.Uid, want)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o", name, mode)
		}
	}
}

// The user of a directory is told of one within it that it cannot open, and nobody of the one that a volume
// brings along.
func TestForeignDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root alone can become another user")
	}
	const user = 65534
	dir := t.TempDir()
	for _, name := range []string{"ledger", "lost+found"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, user, user)); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(dir, "ledger")}
	for _, as := range []int{0, user} {
		if err := syscall.Setreuid(-1, as); err != nil {
			t.Fatal(err)
		}
		foreign, err := durable.Foreign(dir)
		if back := syscall.Setreuid(-1, 0); back != nil {
			t.Fatal(back)
		}
		if err != nil || !slices.Equal(foreign, want) {
			t.Errorf("as user %d: of another user are %q, %v; want %q", as, foreign, err, want)
		}
	}
}
