package server

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/hapax-id/hapax"
)

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// makeTree makes files in a new directory, with rights that a careless copy gives.
func makeTree(t *testing.T, files ...string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("rights are not modes here")
	}
	dir := filepath.Join(t.TempDir(), "data")
	for _, err := range []error{os.Mkdir(dir, 0o700), os.Chmod(dir, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		path := filepath.Join(dir, name)
		for _, err := range []error{os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o664)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestDirectoryIsClosed(t *testing.T) {
	dir := makeTree(t, witnessFile, boltFile, leasePrefix+"ab")
	if err := makeDir(dir); err != nil {
		t.Fatal(err)
	}
	if got := modeOf(t, dir); got != 0o700 {
		t.Errorf("the directory has %o", got)
	}
	if got := modeOf(t, filepath.Join(dir, boltFile)); got != 0o600 {
		t.Errorf("the store has %o", got)
	}
}

// A directory that holds something else keeps its rights; the files are closed.
func TestSharedDirectory(t *testing.T) {
	dir := makeTree(t, witnessFile, "hapax.yaml")
	if err := makeDir(dir); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o755, filepath.Join(dir, witnessFile): 0o600, filepath.Join(dir, "hapax.yaml"): 0o664} {
		if got := modeOf(t, path); got != want {
			t.Errorf("%s has %o, want %o", path, got, want)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := makeDir(dir); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("open to everybody: %v", err)
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	for _, name := range []string{witnessFile, witnessFile + ".lock", boltFile, instanceFile, addressFile, leasePrefix + "ab"} {
		dir, target := makeTree(t), filepath.Join(t.TempDir(), "target")
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := makeDir(dir); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(target); err == nil {
			t.Errorf("%s was written through", name)
		}
	}
}

// An address that somebody else may have put there is not trusted with a token.
func TestWhoseAddress(t *testing.T) {
	for _, tt := range []struct {
		name      string
		dir, file os.FileMode
		link      bool
		trusted   bool
	}{
		{"own", 0o700, 0o600, false, true},
		{"own, readable", 0o755, 0o644, false, true},
		{"the file can be written", 0o700, 0o622, false, false},
		{"the directory can be written", 0o777, 0o600, false, false},
		{"by the group", 0o770, 0o600, false, false},
		{"a link", 0o700, 0o600, true, false},
	} {
		dir := makeTree(t, "x")
		path := filepath.Join(dir, addressFile)
		if tt.link {
			path = filepath.Join(dir, "x")
			if err := os.Symlink("x", filepath.Join(dir, addressFile)); err != nil {
				t.Fatal(err)
			}
		}
		for _, err := range []error{os.WriteFile(path, []byte("http://127.0.0.1:1\n"), 0o600), os.Chmod(path, tt.file), os.Chmod(dir, tt.dir)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		address, trusted := Announced(dir)
		if trusted != tt.trusted || (address == "") != tt.link {
			t.Errorf("%s: %q, trusted %t", tt.name, address, trusted)
		}
		_ = os.Chmod(dir, 0o700)
	}
}
