//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package witness

import (
	"os"
	"path/filepath"
	"testing"
)

// A link in the place of the lock is not followed: it would make a file elsewhere.
func TestLockIsNoLink(t *testing.T) {
	path, target := filepath.Join(t.TempDir(), "witness"), filepath.Join(t.TempDir(), "target")
	if err := os.Symlink(target, path+".lock"); err != nil {
		t.Fatal(err)
	}
	if w, err := Open(path); err == nil {
		t.Errorf("opened through a link; %v", w.Close())
	}
	if _, err := os.Lstat(target); err == nil {
		t.Error("a file was made elsewhere")
	}
}
