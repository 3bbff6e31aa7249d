package sqlstore_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// Rows that are locked are nobody else's until the step that is made up of them is done, and
// where none is made they are free again.
func TestLockedRows(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		a, b := open(t, url, sqlstore.Options{}), open(t, url, sqlstore.Options{})
		keys := []driver.Key{{Table: "t", Name: "r"}, {Name: "tag"}, {Name: "another"}}
		put := func(s *sqlstore.Store, key driver.Key, old driver.Cell, next string) driver.Outcome {
			t.Helper()
			r, err := s.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: old, Next: []byte(next)}}})
			if err != nil {
				t.Error(err)
				return driver.Outcome{}
			}
			return r.Each[0]
		}
		none := driver.Cell{Known: true}
		for _, key := range keys[:2] {
			if !put(a, key, none, "1").Done {
				t.Fatal("no row")
			}
		}
		kv := a.KV().(driver.LockingKV)
		others := make(chan driver.Outcome, 1)
		r, err := kv.StepLocked(t.Context(), keys, func(cells []driver.Cell) (driver.Step, error) {
			if len(cells) != 3 || string(cells[0].Value) != "1" || string(cells[1].Value) != "1" || cells[2].Value != nil || !cells[2].Known {
				t.Errorf("the locked rows are %+v", cells)
			}
			go func() { others <- put(b, keys[1], cells[1], "other") }()
			becomes(t, admin(t, b), waiting(b, url))
			return driver.Step{
				If:    []driver.Cond{{Key: keys[0], Least: []byte("1")}, {Key: driver.Key{Table: "t", Name: "none"}}},
				Raise: []driver.Put{{Key: keys[0], Value: []byte("2")}},
				Each:  []driver.Change{{Key: keys[1], Old: cells[1], Next: []byte("2")}, {Key: keys[2], Old: cells[2], Next: []byte("2")}},
			}, nil
		})
		if err != nil || !r.Met || !r.Each[0].Done || !r.Each[1].Done || !strings.Contains(r.Primary, "/start ") {
			t.Fatalf("the step is %+v, %v", r, err)
		}
		if o := <-others; o.Done || o.Now.Known && string(o.Now.Value) != "2" {
			t.Errorf("the other's change, which had to wait, is %+v", o)
		}
		// Neither a locked row is taken for the one that the step names, nor one that is not locked.
		for _, key := range keys[1:] {
			r, err = kv.StepLocked(t.Context(), keys[:2], func([]driver.Cell) (driver.Step, error) {
				return driver.Step{
					If:    []driver.Cond{{Key: keys[0], Least: []byte("1")}},
					Raise: []driver.Put{{Key: keys[0], Value: []byte("2")}},
					Each:  []driver.Change{{Key: key, Old: driver.Cell{Known: true, Value: []byte("1")}, Next: []byte("stale")}},
				}, nil
			})
			if err != nil || r.Each[0].Done {
				t.Errorf("the change of %q, made up of another row than there is, is %+v, %v", key.Name, r, err)
			}
		}
		failed := errors.New("made up nothing")
		if _, err := kv.StepLocked(t.Context(), keys, func([]driver.Cell) (driver.Step, error) { return driver.Step{}, failed }); !errors.Is(err, failed) {
			t.Errorf("the error is %v", err)
		}
		cells, err := b.KV().Get(t.Context(), driver.Current, keys...)
		if err != nil {
			t.Fatal(err)
		}
		for i, cell := range cells {
			if string(cell.Value) != "2" || !put(b, keys[i], cell, "3").Done {
				t.Errorf("row %d is %q, or still locked", i, cell.Value)
			}
		}
	})
}

// A grant that waits for the row of its process sees what was made of it meanwhile: one that has
// been ended is granted nothing, and stays ended.
func TestGrantBesideTheEndOfItsProcess(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		a, b := open(t, url, sqlstore.Options{}), open(t, url, sqlstore.Options{})
		own, tag := driver.Key{Table: "t", Name: "own"}, driver.Key{Name: "tag"}
		before := driver.Cell{Value: []byte("1"), Known: true}
		for _, key := range []driver.Key{own, tag} {
			r, err := a.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: driver.Cell{Known: true}, Next: before.Value}}})
			if err != nil || !r.Each[0].Done {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		granted := make(chan driver.Result, 1)
		ended, err := a.KV().(driver.LockingKV).StepLocked(t.Context(), []driver.Key{own}, func(cells []driver.Cell) (driver.Step, error) {
			go func() {
				r, err := b.KV().Step(t.Context(), driver.Step{
					If:    []driver.Cond{{Key: own, Least: before.Value}, {Key: driver.Key{Table: "t", Name: "fence"}}},
					Raise: []driver.Put{{Key: own, Value: []byte("2")}},
					Each:  []driver.Change{{Key: tag, Old: before, Next: []byte("2")}},
					Look:  []driver.Key{{Table: "t", Name: "none"}},
				})
				if err != nil {
					t.Error(err)
				}
				granted <- r
			}()
			becomes(t, admin(t, b), waiting(b, url))
			return driver.Step{Each: []driver.Change{{Key: own, Old: cells[0], Next: []byte("!")}}}, nil
		})
		if err != nil || !ended.Each[0].Done {
			t.Fatalf("the end is %+v, %v", ended, err)
		}
		if r := <-granted; r.Met || len(r.If) == 0 || string(r.If[0].Value) != "!" {
			t.Errorf("the grant is %+v", r)
		}
		cells, err := a.KV().Get(t.Context(), driver.Current, own, tag)
		if err != nil || string(cells[0].Value) != "!" || string(cells[1].Value) != "1" {
			t.Errorf("the rows are %q and %q, %v", cells[0].Value, cells[1].Value, err)
		}
	})
}

// A grant for a process without a row, or of a tag without one, is none, and no error.
func TestGrantWithoutItsRows(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{})
		own, tag := driver.Key{Table: "t", Name: "own"}, driver.Key{Name: "tag"}
		step := driver.Step{
			If:    []driver.Cond{{Key: own, Least: []byte("1")}, {Key: driver.Key{Table: "t", Name: "fence"}}},
			Raise: []driver.Put{{Key: own, Value: []byte("2")}},
			Each:  []driver.Change{{Key: tag, Old: driver.Cell{Value: []byte("1"), Known: true}, Next: []byte("2")}},
			Look:  []driver.Key{{Table: "t", Name: "none"}},
		}
		for _, there := range [][]driver.Key{nil, {own}, {tag}} {
			for _, key := range []driver.Key{own, tag} {
				cells, err := s.KV().Get(t.Context(), driver.Current, key)
				if err != nil {
					t.Fatal(err)
				}
				var next []byte
				if slices.Contains(there, key) {
					next = []byte("1")
				}
				if next == nil && cells[0].Value == nil {
					continue
				}
				if _, err := s.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: cells[0], Next: next}}}); err != nil {
					t.Fatal(err)
				}
			}
			r, err := s.KV().Step(t.Context(), step)
			if err != nil || r.Each[0].Done {
				t.Errorf("with %v alone: %+v, %v", there, r, err)
			}
		}
	})
}

// waiting is a query that tells whether a statement on the store's rows waits for a lock.
func waiting(s *sqlstore.Store, url string) string {
	if s.Name() == sqlstore.PostgreSQL {
		return "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%" + prefixOf(url) + "rows%'"
	}
	return "SELECT COUNT(*) > 0 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%" + prefixOf(url) + "rows%'"
}
