//go:build unix

package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// What root's commands make in a directory of the service's user is that user's; doctor names what
// is not.
func TestRootsCommandsLeaveAllToTheUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("root alone can give files away")
	}
	const user = 65534
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, user, user); err != nil {
		t.Fatal(err)
	}
	ok(t, dir, "next", "orders", "--data", "home/d")
	seen := 0
	err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Sys().(*syscall.Stat_t).Uid != user {
			t.Errorf("%s is not the user's", path)
		}
		seen++
		return err
	})
	if err != nil || seen < 6 {
		t.Fatalf("%d files, %v", seen, err)
	}
	owners := func() (said string) {
		t.Helper()
		all, _ := doctor(t, dir, "--data", "home/d", "--http", "127.0.0.1:0")
		for _, d := range all {
			if d.Part == "owners" {
				said = d.Harm + ": " + d.Detail
			}
		}
		return said
	}
	if said := owners(); said != "" {
		t.Errorf("doctor says %q", said)
	}
	if err := os.Chown(filepath.Join(home, "d", "hapax.db"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if said := owners(); said != "soon: home/d/hapax.db belongs to another user than its directory, home/d" {
		t.Errorf("doctor says %q", said)
	}
}
