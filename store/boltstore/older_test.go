package boltstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Files of older versions, as servers of those left them that were killed after 300
// numbers of the tag "orders" and two of the pool "default", go on where they ended.
func TestFilesOfOlderVersions(t *testing.T) {
	for _, name := range []string{"9fd0ef2", "04c10f7"} {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join("testdata", name+".db"))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "hapax.db")
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			for start := range int64(3) {
				s, err := Open(t.Context(), path, Options{SkipIdentity: true})
				if err != nil {
					t.Fatal(err)
				}
				a, err := s.Allocate(t.Context(), "orders", 10, "")
				if err != nil || a.Grant != (hapax.Grant{Lo: 2001 + 10*start, Hi: 2011 + 10*start}) || a.Tag.Delta != 1 {
					t.Errorf("start %d: granted %v of %+v, %v", start, a.Grant, a.Tag, err)
				}
				workers, err := s.Workers(t.Context(), "default")
				if err != nil || len(workers) != 1 || workers[0].ID != 0 || workers[0].Mark < 500_000_000_000 || workers[0].Token < 1 {
					t.Errorf("start %d: the workers are %+v, %v", start, workers, err)
				}
				pools, err := s.Pools(t.Context())
				if err != nil || len(pools) != 1 || pools[0].Layout == "" {
					t.Errorf("start %d: the pools are %+v, %v", start, pools, err)
				}
				flake, err := s.Tag(t.Context(), "snowflake")
				if err != nil || flake.Kind != hapax.KindSnowflake {
					t.Errorf("start %d: %+v, %v", start, flake, err)
				}
				if raw, err := s.Row(t.Context(), driver.TableGuard, driver.RowJoins); raw != nil || err != nil {
					t.Errorf("start %d: the guard's rows: %s, %v", start, raw, err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
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
	if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), `its format is "hapax store 3", this version reads "hapax store 1" and "hapax store 2"`) {
		t.Errorf("a newer format: %v", err)
	}
}

// Adopt takes them too.
func TestAdoptFilesOfOlderVersions(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "9fd0ef2.db"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hapax.db")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := Inspect(t.Context(), path, Margin{Numbers: 1000}); err != nil || len(a.Raised) != 2 {
		t.Errorf("inspected: %+v, %v", a, err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(raw) {
		t.Errorf("to inspect has changed the file, %v", err)
	}
	if _, err := Adopt(t.Context(), path, Margin{Numbers: 1000}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if a, err := s.Allocate(t.Context(), "orders", 10, ""); err != nil || a.Grant.Lo != 3001 {
		t.Errorf("granted %v, %v; want 3001 on", a.Grant, err)
	}
}
