package tinyid_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/witness"
)

// testWitness: a row that was set back is refused by the next process, too, until an
// operator decides; other biz_types are not.
func testWitness(t *testing.T, server *testservers.Server) {
	even, odd := database(t, server, "'test', 100, 10, 2, 0", "'other', 0, 10, 2, 0"), database(t, server, "'test', 0, 10, 2, 1", "'other', 0, 10, 2, 1")
	path := filepath.Join(t.TempDir(), "witness")
	process := func(f func(s *tinyid.Store), urls ...string) {
		t.Helper()
		w, err := witness.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := tinyid.Open(t.Context(), urls, tinyid.Options{Witness: w})
		if err != nil {
			t.Fatal(err)
		}
		f(s)
		if err := errors.Join(s.Close(), w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	allocate := func(want int64) func(s *tinyid.Store) {
		return func(s *tinyid.Store) {
			t.Helper()
			if a, err := s.Allocate(t.Context(), "test", 0, ""); err != nil || a.Grant.Lo != want {
				t.Errorf("got %v, error %v; want from %d", a.Grant, err, want)
			}
		}
	}
	refused := func(s *tinyid.Store) {
		t.Helper()
		if a, err := s.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("got %v, error %v; want ErrFenced", a.Grant, err)
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("Ping: %v; want nil, since other rows can be used", err)
		}
		if all := s.Refused(); len(all) != 1 || !errors.Is(all["test"], hapax.ErrFenced) {
			t.Errorf("refused are %v, want test alone", all)
		}
		if a, err := s.Allocate(t.Context(), "other", 0, ""); err != nil {
			t.Errorf("another biz_type: got %v, error %v", a.Grant, err)
		}
	}
	process(allocate(101), even.URL, odd.URL)
	process(allocate(111), even.URL, odd.URL) // a restart is no reason to refuse
	process(allocate(1), odd.URL, even.URL)   // nor is the other class of numbers
	even.Run(t, "UPDATE tiny_id_info SET max_id = 119 WHERE biz_type = 'test'")
	process(refused, even.URL, odd.URL)
	even.Run(t, "UPDATE tiny_id_info SET max_id = 5000 WHERE biz_type = 'test'") // TinyID went on
	process(refused, even.URL, odd.URL)
	process(func(s *tinyid.Store) {
		found, err := s.Adopt(t.Context(), "", 50, true)
		if err != nil || len(found.Raised) != 4 {
			t.Fatalf("would raise %+v, error %v", found, err)
		}
		if one, err := s.Adopt(t.Context(), "test", 50, true); err != nil || len(one.Raised) != 2 || len(one.Why) != 1 {
			t.Errorf("of one biz_type it would raise %+v, error %v", one, err)
		}
		if none, err := s.Adopt(t.Context(), "other", 50, false); err != nil || len(none.Raised) != 0 {
			t.Errorf("of another one it has raised %+v, error %v", none, err)
		}
		refused(s)
		found, err = s.Adopt(t.Context(), "", 50, false)
		if raised := found.Raised; err != nil || len(raised) != 4 || raised[2] != (witness.Raised{Tag: "test", From: 5000, To: 5050}) || raised[3] != (witness.Raised{Tag: "test", From: 10, To: 60}) {
			t.Errorf("raised %+v, error %v", raised, err)
		}
		allocate(5051)(s)
	}, even.URL, odd.URL)

	// A row that is changed to issue all numbers, in place of the even ones alone: what
	// the even ones were granted counts.
	process(func(s *tinyid.Store) {
		allocate(5061)(s)
		even.Run(t, "UPDATE tiny_id_info SET delta = 1, remainder = 0, max_id = 5065 WHERE biz_type = 'test'")
		refused(s)
	}, even.URL)
}

// testWitnessBusy: calls at the same time beside another process, and a row whose
// delta is changed meanwhile, are no reason to refuse.
func testWitnessBusy(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'test', 0, 12, 1, 0")
	w, err := witness.OpenFile(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s, other := open(t, tinyid.Options{Witness: w}, db.URL), open(t, tinyid.Options{}, db.URL)
	for _, delta := range []string{"1", "2", "3", "1"} {
		db.Run(t, "UPDATE tiny_id_info SET version = version + 1, delta = "+delta)
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				from := s
				if i%3 == 0 {
					from = other
				}
				for range 10 {
					if _, err := from.Allocate(t.Context(), "test", 0, ""); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}
