package leaf_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

func openWitness(t *testing.T, path string) *witness.Witness {
	t.Helper()
	w, err := witness.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// testWitness: a row that was set back is refused by the next process, too, whatever
// becomes of it meanwhile, until an operator decides; the other rows are not.
func testWitness(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1000, 10), ('other', 1, 10), ('bad', 1, 0)")
	path := filepath.Join(t.TempDir(), "witness")
	var told []string
	warn := func(code, _ string) {
		if code != "not_durable" && code != "bad_row" {
			told = append(told, code)
		}
	}
	process := func(f func(table *leaf.Table)) {
		t.Helper()
		w := openWitness(t, path)
		table := openTable(t, db.URL, leaf.TableOptions{Witness: w, Warn: warn})
		f(table)
		if err := errors.Join(table.Close(), w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(table *leaf.Table) {
		t.Helper()
		if a, err := table.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("got %v, error %v; want ErrFenced", a.Grant, err)
		}
		if _, err := table.Tag(t.Context(), "test"); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("Tag: %v; want ErrFenced", err)
		}
		if err := table.Ping(t.Context()); err != nil {
			t.Errorf("Ping: %v; want nil, since other rows can be used", err)
		}
		if all := table.Refused(); len(all) != 1 || !errors.Is(all["test"], hapax.ErrFenced) {
			t.Errorf("refused are %v, want test alone", all)
		}
		if a, err := table.Allocate(t.Context(), "other", 0, ""); err != nil {
			t.Errorf("another row: got %v, error %v", a.Grant, err)
		}
	}
	process(func(table *leaf.Table) {
		if _, err := table.Allocate(t.Context(), "test", 0, ""); err != nil {
			t.Fatal(err)
		}
	})
	process(func(table *leaf.Table) { // a restart is no reason to refuse
		if a, err := table.Allocate(t.Context(), "test", 0, ""); err != nil || a.Grant.Lo != 1010 {
			t.Fatalf("after a restart: %v, %v", a.Grant, err)
		}
	})
	db.Run(t, "UPDATE leaf_alloc SET max_id = 1019 WHERE biz_tag = 'test'")
	if len(told) != 0 {
		t.Errorf("told of %q before anything was wrong", told)
	}
	process(func(table *leaf.Table) { // the first that is asked for is another row
		if a, err := table.Allocate(t.Context(), "other", 0, ""); err != nil {
			t.Errorf("another row: got %v, error %v", a.Grant, err)
		}
		refused(table)
	})
	if !slices.Equal(told, []string{"fenced"}) {
		t.Errorf("told of %q; want that the row is refused, once", told)
	}
	db.Run(t, "UPDATE leaf_alloc SET max_id = 5000 WHERE biz_tag = 'test'")
	process(refused)
	process(func(table *leaf.Table) {
		for _, dryRun := range []bool{true, false} {
			found, err := table.Adopt(t.Context(), "", 100, dryRun)
			raised := found.Raised
			other := witness.Raised{Tag: "other", From: raised[0].From, To: raised[0].From + 100}
			if err != nil || len(raised) != 2 || raised[0] != other || raised[1] != (witness.Raised{Tag: "test", From: 5000, To: 5100}) {
				t.Fatalf("dry run %v: raised %+v, error %v", dryRun, raised, err)
			}
			if dryRun {
				refused(table)
			}
		}
		if a, err := table.Allocate(t.Context(), "test", 0, ""); err != nil || a.Grant.Lo != 5100 {
			t.Errorf("after it was adopted: %v, %v", a.Grant, err)
		}
		if found, err := table.Adopt(t.Context(), "", 100, false); err != nil || found.Raised != nil {
			t.Errorf("adopted once more: %+v, %v", found, err)
		}
	})
	process(func(table *leaf.Table) { // what a refresh would notice
		if _, err := table.Allocate(t.Context(), "test", 0, ""); err != nil {
			t.Fatal(err)
		}
		db.Run(t, "UPDATE leaf_alloc SET max_id = 7 WHERE biz_tag = 'test'")
		if _, err := table.Tag(t.Context(), "test"); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("Tag of a row that was set back: %v", err)
		}
		refused(table)
	})
}

// testWitnessBadRow: a row that was never granted and cannot be used is refused by its
// name; it is no sign that the table was set back.
func testWitnessBadRow(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('below', -5, 10), ('test', 1, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{Witness: openWitness(t, filepath.Join(t.TempDir(), "witness"))})
	if a, err := table.Allocate(t.Context(), "test", 0, ""); err != nil || a.Grant != (hapax.Grant{Lo: 1, Hi: 11}) {
		t.Errorf("beside a bad row: got %v, error %v; want [1, 11)", a.Grant, err)
	}
	if a, err := table.Allocate(t.Context(), "below", 0, ""); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("the bad row: got %v, error %v; want ErrStoreCorrupt", a.Grant, err)
	}
	if err := table.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// testWitnessBusy: calls at the same time, and a row that others move on and that is
// looked at meanwhile, are no reason to refuse.
func testWitnessBusy(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{Witness: openWitness(t, filepath.Join(t.TempDir(), "witness"))})
	other := openTable(t, db.URL, leaf.TableOptions{})
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 15 {
				var err error
				switch i % 4 {
				case 0:
					_, err = other.Allocate(t.Context(), "test", 0, "")
				case 1:
					_, err = table.Tag(t.Context(), "test")
				default:
					_, err = table.Allocate(t.Context(), "test", 0, "")
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// testTornLoad: value, max and step of a segment were three writes of Leaf's, so that a
// first load which failed half-way could leave a range of two loads. Here a load
// gives a segment or none.
func testTornLoad(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 10)")
	proxy := testservers.NewProxy(t, server.Addr)
	for _, at := range []string{"START TRANSACTION", "UPDATE", "SELECT max_id", "COMMIT"} {
		proxy.Pass()
		table := openTable(t, proxy.URL(db.URL), leaf.TableOptions{})
		s := testdb.NewIssuers(t, table)
		first := db.Number(t, "SELECT max_id FROM leaf_alloc")
		db.Run(t, "UPDATE leaf_alloc SET step = step + 7")
		proxy.CutReply(testservers.Contains(at))
		if a, err := table.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("cut at %s: got %v, error %v; want ErrStoreUnavailable", at, a.Grant, err)
		}
		proxy.Pass()
		for range 40 {
			id, err := s.Next(t.Context(), "test")
			if err != nil || int64(id) < first || int64(id) >= db.Number(t, "SELECT max_id FROM leaf_alloc") {
				t.Fatalf("cut at %s: got %d, error %v; want one from %d, below max_id", at, id, err, first)
			}
			first = int64(id) + 1
		}
	}
}

// testHealthyDatabase: with 200 threads and a healthy database Leaf failed 477 of
// 40,000 calls, since nobody waited for the next segment.
func testHealthyDatabase(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 100)")
	s := testdb.NewIssuers(t, openTable(t, db.URL, leaf.TableOptions{}))
	var failed, issued atomic.Int64
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			for range 200 {
				if _, err := s.Next(t.Context(), "test"); err != nil {
					failed.Add(1)
				}
				issued.Add(1)
			}
		})
	}
	wg.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d calls failed", failed.Load(), issued.Load())
	}
}

// offClock is the system's clock, set off by as much as one likes.
type offClock struct{ off atomic.Int64 }

func (c *offClock) Now() (time.Time, time.Duration) {
	return time.Now().Add(time.Duration(c.off.Load())), time.Since(began)
}

var began = time.Now()

// testClockBack: a Leaf waited for the next millisecond in a loop, lock held, for as
// long as the clock was behind. Here numbers go on rising, and a call that has to wait
// ends when its context does.
func testClockBack(t *testing.T, e *tree) {
	clock := &offClock{}
	s := issuer(t, e.open(t, leaf.TreeOptions{}), hapax.SnowflakeOptions{Clock: clock})
	last := hapax.ID(0)
	for i := range 3000 {
		if i == 1000 {
			clock.off.Store(int64(-time.Hour))
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience.Call)
		id, err := s.Next(ctx)
		cancel()
		if err != nil || id <= last {
			t.Fatalf("number %d: %d after %d, error %v", i, id, last, err)
		}
		last = id
	}
}

// TestEndOfTime: past its 41 bits of time Leaf's numbers turned negative.
func TestEndOfTime(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	end := time.UnixMilli(1288834974657 + 1<<41)
	for _, before := range []time.Duration{2 * time.Second, 0, -time.Hour} {
		clock := &offClock{}
		clock.off.Store(int64(time.Until(end) - before))
		s, err := hapax.NewSnowflake(t.Context(), memstore.New(), hapax.SnowflakeOptions{Layout: layout, Clock: clock})
		for over := time.Now().Add(patience.Long); err == nil; {
			var id hapax.ID
			if id, err = s.Next(t.Context()); id < 0 {
				t.Fatalf("%v before the end: %d", before, id)
			}
			if time.Now().After(over) {
				t.Fatalf("%v before the end it goes on", before)
			}
		}
		if !errors.Is(err, hapax.ErrTimeExhausted) {
			t.Errorf("%v before the end: %v; want ErrTimeExhausted", before, err)
		}
		if s != nil {
			_ = s.Close(context.WithoutCancel(t.Context())) // its time is over
		}
	}
}
