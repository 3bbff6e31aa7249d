package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/examples/store/sqlitestore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/storetest"
)

// patient is for processes that all want the lock of one file.
var patient = sqlitestore.Options{Timeout: 2 * time.Minute}

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return sqlitestore.Open(ctx, url, patient)
	})
}

func TestConformance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a store?100%.sqlite")
	h := storetest.Harness{
		URL:          path,
		Capabilities: storetest.Capabilities{Shared: true, Durable: true},
		Open:         func(t testing.TB) storetest.Handle { return open(t, path) },
	}
	storetest.RunKV(t, h)
	storetest.Run(t, h)
}

func open(t testing.TB, path string) *sqlitestore.Store {
	t.Helper()
	s, err := sqlitestore.Open(t.Context(), path, patient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// raw opens the file past the driver.
func raw(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// step tries to write a row.
func step(t testing.TB, s *sqlitestore.Store, name string) error {
	_, err := s.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{
		Key: driver.Key{Table: "t", Name: name}, Old: driver.Cell{Known: true}, Next: []byte("1"),
	}}})
	return err
}

// A handle writes to no other store than it has opened.
func TestReplaced(t *testing.T) {
	for what, replace := range map[string]func(path string) error{
		"deleted": os.Remove,
		"another file": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		},
		"another ID": func(path string) error {
			_, err := raw(t, path).Exec("UPDATE hapax_store SET id = 'other'")
			return err
		},
		"no ID": func(path string) error {
			_, err := raw(t, path).Exec("DELETE FROM hapax_store")
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			s := open(t, path)
			if err := step(t, s, "before"); err != nil {
				t.Fatal(err)
			}
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second one on a connection of its own
				if err := step(t, s, "after"); !errors.Is(err, hapax.ErrStoreReplaced) {
					t.Errorf("a step after it: %v; want ErrStoreReplaced", err)
				}
				if err := s.Ping(t.Context()); !errors.Is(err, hapax.ErrStoreReplaced) {
					t.Errorf("a ping after it: %v; want ErrStoreReplaced", err)
				}
			}
			if _, err := os.Stat(path); what == "deleted" && !errors.Is(err, os.ErrNotExist) {
				t.Error("the handle has made a file in place of the one that was deleted")
			}
		})
	}
}

// A step that failed halfway leaves nothing behind, and the next one is made. The engine
// refuses a value that is too long.
func TestHalfAStep(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s"))
	change := func(name string, n int) driver.Change {
		return driver.Change{Key: driver.Key{Table: "t", Name: name}, Old: driver.Cell{Known: true}, Next: make([]byte, n)}
	}
	_, err := s.KV().Step(t.Context(), driver.Step{Then: []driver.Change{change("a", 1), change("b", driver.MaxValueBytes+1)}})
	if !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a step with a value that is too long: %v; want ErrStoreUnavailable", err)
	}
	if err := step(t, s, "c"); err != nil {
		t.Error(err)
	}
	page, err := s.KV().Scan(t.Context(), "t", "", 10)
	if err != nil || len(page) != 1 || page[0].Name != "c" {
		t.Errorf("the rows are %v, error %v; want c alone", page, err)
	}
}

// A call that waits for another process's lock ends with its context, and has done nothing.
func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := open(t, path)
	other, err := raw(t, path).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = s.KV().Step(ctx, driver.Step{Raise: []driver.Put{{Key: driver.Key{Table: "t", Name: "a"}, Value: []byte("1")}}})
	if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside a lock: %v; want ErrStoreUnavailable and the deadline", err)
	}
	if _, err := other.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := step(t, s, "a"); err != nil {
		t.Error(err)
	}
}

// What is no store of this format is refused.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "format")
	open(t, other).Close()
	if _, err := raw(t, other).Exec("UPDATE hapax_store SET format = 7"); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	utf16 := filepath.Join(dir, "utf16")
	if _, err := raw(t, utf16).Exec("PRAGMA encoding = 'UTF-16le'; CREATE TABLE mine (x)"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		"": hapax.ErrInvalidArgument, filepath.Join(dir, "none", "s"): hapax.ErrStoreUnavailable,
		other: hapax.ErrStoreCorrupt, text: hapax.ErrStoreCorrupt, utf16: hapax.ErrStoreUnsafe,
	} {
		if s, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{}); !errors.Is(err, want) {
			t.Errorf("%q: %v, %v; want %v", path, s, err, want)
		}
	}
}
