package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/internal/durable/losing"
)

func replace(disk durable.Disk, path, text string) error {
	return durable.Replace(disk, path, func(*os.File) ([]byte, error) { return []byte(text), nil })
}

// lazy leaves out a step.
type lazy struct {
	durable.Disk
	noSync, noSyncDir bool
}

func (l lazy) Create(path string) (durable.File, error) {
	f, err := l.Disk.Create(path)
	if l.noSync && err == nil {
		f = lazyFile{f}
	}
	return f, err
}

func (l lazy) SyncDir(dir string) error {
	if l.noSyncDir {
		return nil
	}
	return l.Disk.SyncDir(dir)
}

type lazyFile struct{ durable.File }

func (lazyFile) Sync() error { return nil }

// TestPowerLoss: after a power loss the file is what Replace has written. A disk
// on which one of the syncs does nothing shows that each of them is needed.
func TestPowerLoss(t *testing.T) {
	for _, c := range []struct {
		name string
		lazy lazy
		lose func(*losing.Disk) error
		want string
	}{
		{"names", lazy{}, (*losing.Disk).LoseNames, "new"},
		{"contents", lazy{}, (*losing.Disk).LoseContents, "new"},
		{"names, no sync of the directory", lazy{noSyncDir: true}, (*losing.Disk).LoseNames, "old"},
		{"contents, no sync of the file", lazy{noSync: true}, (*losing.Disk).LoseContents, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			disk := losing.New()
			c.lazy.Disk = disk
			err := errors.Join(replace(disk, path, "old"), replace(c.lazy, path, "new"), c.lose(disk))
			got, readErr := os.ReadFile(path)
			if err = errors.Join(err, readErr); err != nil || string(got) != c.want {
				t.Errorf("the file holds %q, error %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path+".tmp", []byte("half a fi"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a longer text", "b", ""} {
		if err := replace(durable.OS, path, text); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		got, _ := os.ReadFile(path)
		if err != nil || string(got) != text || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("the file holds %q with mode %v, error %v; want %q for its owner alone", got, info.Mode(), err, text)
		}
	}
	broken := errors.New("broken on purpose")
	err := durable.Replace(durable.OS, path, func(*os.File) ([]byte, error) { return []byte("x"), broken })
	if got, _ := os.ReadFile(path); !errors.Is(err, broken) || string(got) != "" {
		t.Errorf("after content failed: the file holds %q, error %v", got, err)
	}
	if err := replace(durable.OS, filepath.Join(dir, "none", "file"), "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: error is %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 2 {
		t.Errorf("the directory holds %q, error %v", left, err)
	}
}

// The system's own disk syncs: what cannot be synced is an error.
func TestSyncs(t *testing.T) {
	f, err := durable.OS.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Handle().Close()); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("sync of a file that is closed: error is %v", err)
	}
	if runtime.GOOS == "windows" {
		return // directories cannot be synced
	}
	if err := durable.OS.SyncDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("sync of a directory that is not there: error is %v", err)
	}
}
