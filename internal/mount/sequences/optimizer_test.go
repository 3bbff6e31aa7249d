package sequences

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// optimizers are what a program makes of a value of a sequence that counts by a step: the first
// and the last number.
var optimizers = map[string]func(v, step int64) (lo, hi int64){
	"none":      func(v, _ int64) (int64, int64) { return v, v },
	"pooled":    func(v, step int64) (int64, int64) { return v - step + 1, v },
	"pooled-lo": func(v, step int64) (int64, int64) { return v, v + step - 1 },
}

// sequenceEngines are the two that have sequences.
var sequenceEngines = map[string]struct {
	newDB     func(*testing.T) (string, *sql.DB)
	next, set string
}{
	"postgres": {newPostgres, "SELECT nextval('%s_seq')", "SELECT setval('%s_seq', %d)"},
	"mariadb": {
		func(t *testing.T) (string, *sql.DB) { return newMariaDB(t, testservers.SharedMariaDB(t)) },
		"SELECT NEXTVAL(%s_seq)", "SELECT SETVAL(%s_seq, %d)",
	},
}

// Whatever a program makes of the values of its sequence, none of its numbers is the tag's: of
// those that it takes before the sequence is shut, although it went on after it was read, and of
// those up to the sequence's end.
func TestEndOfASequence(t *testing.T) {
	for engine, e := range sequenceEngines {
		t.Run(engine, func(t *testing.T) {
			address, db := e.newDB(t)
			for name, c := range map[string]endOfASequence{
				"ones_fresh":        {1, 0, 0, 1},
				"ones":              {1, 3, 0, 1},
				"ones_living":       {1, 3, 1, 1},
				"twos":              {2, 3, 0, 4},
				"fifties_fresh":     {50, 0, 0, 1},
				"fifties":           {50, 3, 0, 1},
				"fifties_living":    {50, 3, 10, 30},
				"fifties_just_past": {50, 3, 49, 1},
				"fifties_just_not":  {50, 3, 50, 1},
				"thousands":         {2000, 1, 0, 1},
			} {
				for _, how := range []sequences.Switch{sequences.Stop, sequences.Gap} {
					if how == sequences.Stop && c.past == 0 && c.step != 2 {
						continue // nobody issues anything after the source was read
					}
					name := name + "_" + string(how)
					t.Run(name, func(t *testing.T) {
						next := func() (v int64, err error) {
							err = db.QueryRowContext(t.Context(), fmt.Sprintf(e.next, name)).Scan(&v)
							return v, err
						}
						c.test(t, address, db, name, how, fmt.Sprintf(e.set, name, 0), next)
						do(t, db, "DROP SEQUENCE "+name+"_seq", "DROP TABLE "+name) // a reading takes longer with each
					})
				}
			}
		})
	}
}

type endOfASequence struct {
	step   int64
	called int
	past   int64 // how far below the tag's first number a living program comes; 0: there is none
	margin int64
}

func (c endOfASequence) test(t *testing.T, address string, db *sql.DB, name string, how sequences.Switch, set string, next func() (int64, error)) {
	do(t, db, fmt.Sprintf("CREATE SEQUENCE %s_seq START WITH 1 INCREMENT BY %d CACHE 1", name, c.step), fmt.Sprintf("CREATE TABLE %s (id BIGINT PRIMARY KEY)", name))
	var taken []int64
	take := func() {
		t.Helper()
		v, err := next()
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, v)
	}
	for range c.called {
		take()
	}
	store, i := memstore.New(), importing{how: string(how), like: name, feeds: []string{name + "_seq=" + name + ".id"}}
	m := read(t, i, address)
	planned := apply(t, m, store, mount.MoveOptions{Margin: c.margin, IgnoreLiving: true})[name]
	if c.past > 0 {
		do(t, db, strings.Replace(set, ", 0)", fmt.Sprintf(", %d)", planned.After-c.past-c.step), 1))
		take()
	}
	done := apply(t, m, store, mount.MoveOptions{Margin: c.margin, IgnoreLiving: true, Apply: true})[name]
	if done.Reason != nil {
		t.Fatal(done.Reason)
	}
	before := len(taken)
	for v, err := next(); err == nil; v, err = next() {
		if taken = append(taken, v); len(taken) > 1000 {
			t.Fatal("the sequence does not end")
		}
	}
	if after := len(taken) - before; how == sequences.Stop && after > 0 {
		t.Errorf("%d values come after the sequence was shut", after)
	}
	a, err := store.Allocate(t.Context(), name, 100, "")
	if err != nil {
		t.Fatal(err)
	}
	for optimizer, numbers := range optimizers {
		for _, v := range taken {
			if lo, hi := numbers(v, c.step); lo < a.Grant.Hi && hi >= a.Grant.Lo {
				t.Errorf("%s: the program has the numbers %d to %d of the value %d, and the tag issues from %d on", optimizer, lo, hi, v, a.Grant.Lo)
			}
		}
	}
	if verdicts, err := read(t, i, address).Verify(t.Context(), store); err != nil || len(verdicts) != 1 || len(verdicts[0].Wrong) > 0 {
		t.Errorf("verified: %+v, %v", verdicts, err)
	}

	// And back, on the values that it counted by: others may count between them.
	apply(t, read(t, i, address), store, mount.MoveOptions{Undo: true, Apply: true})
	v, err := next()
	if err != nil {
		t.Fatal(err)
	}
	for optimizer, numbers := range optimizers {
		if lo, _ := numbers(v, c.step); lo < a.Grant.Hi {
			t.Errorf("%s: back, the value %d stands for %d, and the tag has issued up to %d", optimizer, v, lo, a.Grant.Hi-1)
		}
	}
	if c.past == 0 && (v-1)%c.step != 0 {
		t.Errorf("back, it goes on with %d, and counted by %d from 1 on", v, c.step)
	}
}

// A plan that is run late, after its sequence has come too close to the tag, changes nothing.
func TestLatePlanOfASequence(t *testing.T) {
	const create, first = "CREATE SEQUENCE orders_seq START WITH 1 INCREMENT BY 50 CACHE 1", 2000
	for engine, e := range sequenceEngines {
		t.Run(engine, func(t *testing.T) {
			address, db := e.newDB(t)
			do(t, db, create, "CREATE TABLE orders (id BIGINT PRIMARY KEY)")
			m := read(t, importing{feeds: []string{"orders_seq=orders.id"}}, address)
			for _, how := range []sequences.Switch{sequences.Gap, sequences.Stop} {
				steps, err := m.all[0].speaks.Steps(m.source(t, "orders"), how, first)
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range []int64{1900, 1960, 1999, 2500} { // 1960 stands for 2000, too
					do(t, db, "DROP SEQUENCE orders_seq", create, fmt.Sprintf(e.set, "orders", v))
					conn, err := db.Conn(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for _, step := range steps {
						for statement := range strings.SplitSeq(step, "//\n") {
							if err == nil {
								_, err = conn.ExecContext(t.Context(), statement)
							}
						}
					}
					if late := v > first-50; (err != nil) != late {
						t.Errorf("%s: a plan for %d and up, and a sequence at %d: %v", how, first, v, err)
					}
					if err := conn.Close(); err != nil {
						t.Error(err)
					}
					var n int64
					switch err2 := db.QueryRowContext(t.Context(), fmt.Sprintf(e.next, "orders")).Scan(&n); {
					case err != nil && (err2 != nil || n != v+50):
						t.Errorf("%s: after a plan that failed, %d is followed by %d, %v", how, v, n, err2)
					case err == nil && how == sequences.Stop && err2 == nil:
						t.Errorf("%s: after %d the sequence goes on with %d", how, v, n)
					}
				}
			}
		})
	}
}
