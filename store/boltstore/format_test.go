package boltstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
)

// Files of older versions are refused, and left as they are.
func TestFilesOfOlderVersions(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "9fd0ef2.db"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hapax.db")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	_, opened := Open(t.Context(), path, Options{SkipIdentity: true})
	_, looked := Open(t.Context(), path, Options{SkipIdentity: true, Look: true})
	_, adopted := Adopt(t.Context(), path, Margin{Numbers: 1000})
	for what, err := range map[string]error{"Open": opened, "Look": looked, "Adopt": adopted} {
		if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), `its format is "hapax store 1"`) {
			t.Errorf("%s: error is %v; want ErrStoreCorrupt that names the format", what, err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(raw) {
		t.Errorf("the file has changed, %v", err)
	}
}

// A file says its format, so that an older version refuses it, as this one does a newer.
func TestFileOfANewerVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hapax.db")
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		head, err := readHeader(tx)
		if head.Format != "hapax store 2" {
			t.Errorf("the format is %q", head.Format)
		}
		head.Format = "hapax store 3"
		return errors.Join(err, putMeta(tx, keyHeader, head))
	})
	if err := errors.Join(err, s.db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), path, Options{})
	if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), `its format is "hapax store 3", and this version, hapax `+hapax.Version()+`, reads "hapax store 2"`) {
		t.Errorf("a newer format: %v", err)
	}
}
