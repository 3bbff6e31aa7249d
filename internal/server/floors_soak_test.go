package server

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
)

// floorsRounds is how often a store is lost for each kind; fewer for a part of the soak.
var floorsRounds = flag.Int("floors.rounds", 200, "how often TestStoreRestoredWithoutWitnessesSoak loses a store")

// As TestStoreRestoredWithoutWitnesses, two hundred times over a million rows, also with a
// column that cannot be read for a while in every second round, and with snowflakes of
// fleets that live in the same milliseconds.
func TestStoreRestoredWithoutWitnessesSoak(t *testing.T) {
	patience.Soak(t, "a million rows, and two hundred fleets of new nodes for each kind")
	for _, snowflakes := range []bool{false, true} {
		for _, kind := range []struct {
			name          string
			floors, hides bool
			rounds        int
		}{{"without floors", false, false, 10}, {"with floors", true, false, *floorsRounds}, {"unreadable for a while", true, true, *floorsRounds}} {
			name := "segment"
			if snowflakes {
				name = "snowflake"
			}
			s := newShop(t)
			s.floors, s.snowflakes, s.step = kind.floors, snowflakes, 1000
			t.Run(name+"/"+kind.name, func(t *testing.T) {
				t.Parallel() // most of it waits until fleets have joined
				s.t, s.batch = t, 10_000
				s.issue(filepath.Join(t.TempDir(), "early"), 34)
				if n := s.number("SELECT count(*) FROM orders"); n < 1_000_000 || s.duplicates() > 0 {
					t.Fatalf("%d rows, %d of them twice", n, s.duplicates())
				}
				s.batch = 10
				if snowflakes {
					s.batch, s.busy = 20, 25 // so that two fleets meet in their milliseconds
				}
				if kind.hides {
					s.hides = s.hide
				}
				s.losses(kind.rounds)
			})
		}
	}
}

// hide has the column not be read, in one of two ways, until calls were refused.
func (s *shop) hide() (end func()) {
	before, done := s.refused.Load(), make(chan error, 1)
	hide, show := "ALTER TABLE orders RENAME TO hidden", "ALTER TABLE hidden RENAME TO orders"
	if s.hidden++; s.hidden%2 == 0 {
		hide, show = "DROP INDEX orders_id_idx", "CREATE INDEX ON orders (id)"
	}
	s.exec(s.orders, hide)
	go func() {
		err := patience.Try("calls were refused", func() bool { return s.refused.Load() >= before+10 })
		if _, err2 := s.orders.ExecContext(s.t.Context(), show); err == nil {
			err = err2
		}
		done <- err
	}()
	return func() {
		if err := <-done; err != nil {
			s.t.Fatal(fmt.Errorf("the column: %w", err))
		}
	}
}
