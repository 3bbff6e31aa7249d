package sqlstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// A row that was lost to another handle is told as it is now, not as it was when the statement
// began, so that the next attempt is made of it; and rows that are locked are as they are then.
// A handle that reads without the lock is caught.
func TestLostRaceTellsNow(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		for name, spoil := range map[string]func(*sqlstore.Store){"": nil, "twin that reads what was": (*sqlstore.Store).ReadStale} {
			t.Run(name, func(t *testing.T) {
				url := fresh(url)
				winner, loser := open(t, url, sqlstore.Options{}), open(t, url, sqlstore.Options{})
				if spoil != nil {
					spoil(loser)
				}
				told := loseRaces(t, url, winner, loser)
				if caught := slices.ContainsFunc(told, func(now string) bool { return now != "now" }); caught != (spoil != nil) {
					t.Errorf("the loser was told the rows %q", told)
				}
			})
		}
	})
}

// loseRaces has a handle want a row while another one changes it to "now", once by each kind of
// step, and returns as what the first was told the row.
func loseRaces(t *testing.T, url string, winner, loser *sqlstore.Store) (told []string) {
	t.Helper()
	const own = "n"
	db := admin(t, winner)
	beat := driver.Beat{Count: 1}.Encode()
	if ok, err := winner.SwapRow(t.Context(), driver.TableBeats, own, nil, beat); !ok || err != nil {
		t.Fatal(ok, err)
	}
	pulse := func(step driver.Step) driver.Step {
		key := driver.Key{Table: driver.TableBeats, Name: own}
		step.If = []driver.Cond{{Key: key, Least: beat}}
		step.Raise = []driver.Put{{Key: key, Value: beat}}
		return step
	}
	for name, want := range map[string]func(old driver.Cell, key driver.Key) (string, error){
		"a change": func(old driver.Cell, key driver.Key) (string, error) {
			r, err := loser.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: old, Next: []byte("lost")}}})
			return outcomeOf(r, err)
		},
		"a change with a beat": func(old driver.Cell, key driver.Key) (string, error) {
			r, err := loser.KV().Step(t.Context(), pulse(driver.Step{Each: []driver.Change{{Key: key, Old: old, Next: []byte("lost")}}}))
			return outcomeOf(r, err)
		},
		"a change together with another": func(old driver.Cell, key driver.Key) (string, error) {
			r, err := loser.KV().Step(t.Context(), driver.Step{Then: []driver.Change{
				{Key: key, Old: old, Next: []byte("lost")}, {Key: driver.Key{Table: "t", Name: "another"}, Old: driver.Cell{Known: true}, Next: []byte("lost")},
			}})
			return outcomeOf(r, err)
		},
		"a locked row": func(_ driver.Cell, key driver.Key) (now string, err error) {
			_, err = loser.KV().(driver.LockingKV).StepLocked(t.Context(), []driver.Key{key}, func(cells []driver.Cell) (driver.Step, error) {
				now = string(cells[0].Value)
				return driver.Step{}, nil
			})
			return now, err
		},
	} {
		key := driver.Key{Table: "t", Name: name}
		if ok, err := winner.SwapRow(t.Context(), key.Table, key.Name, nil, []byte("before")); !ok || err != nil {
			t.Fatal(ok, err)
		}
		answers := make(chan string, 1)
		waiting := func() (waits bool, err error) {
			err = db.QueryRowContext(t.Context(), waiting(winner, url)).Scan(&waits)
			return waits, err
		}
		// MariaDB shows the wait of the step before, until it was not asked for a tenth of a second.
		patience.Await(t, "nobody waits", waiting, func(waits bool) bool { return !waits })
		_, err := winner.KV().(driver.LockingKV).StepLocked(t.Context(), []driver.Key{key}, func(cells []driver.Cell) (driver.Step, error) {
			go func() {
				now, err := want(cells[0], key)
				if err != nil {
					t.Error(name, err)
				}
				answers <- now
			}()
			waits := func() (bool, error) {
				waits, err := waiting()
				return waits || len(answers) > 0, err
			}
			patience.Await(t, "the other waits, or has read", waits, func(waits bool) bool { return waits })
			return driver.Step{Each: []driver.Change{{Key: key, Old: cells[0], Next: []byte("now")}}}, nil
		})
		if err != nil {
			t.Fatal(name, err)
		}
		told = append(told, <-answers)
	}
	return told
}

// outcomeOf returns as what a step that was lost tells its row.
func outcomeOf(r driver.Result, err error) (string, error) {
	if err != nil {
		return "", err
	}
	o := slices.Concat(r.Then, r.Each)[0]
	return fmt.Sprintf("%s%s", o.Now.Value, map[bool]string{true: ", and it was done"}[o.Done]), nil
}

// attempts counts the steps that one call makes.
type attempts struct {
	driver.LockingKV
	made, locked int
}

func (a *attempts) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	a.made++
	return a.LockingKV.Step(ctx, step)
}

func (a *attempts) StepLocked(ctx context.Context, keys []driver.Key, f func([]driver.Cell) (driver.Step, error)) (driver.Result, error) {
	a.made++
	a.locked++
	return a.LockingKV.StepLocked(ctx, keys, f)
}

// A crowd of handles that want the same hundred tags at the same time is served, each of them
// by its second step at the latest: one race may be lost, and then the rows are locked. A handle
// that never locks is caught: it loses more.
func TestEverybodyInACrowdIsServed(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		for name, twin := range map[string]bool{"": false, "twin that never locks": true} {
			t.Run(name, func(t *testing.T) {
				const most = 2
				url := fresh(url)
				rounds, worst := 3, 0
				if twin {
					rounds = 20
				}
				c := newRush(t, url, twin)
				for round := 0; round < rounds && (worst <= most || !twin); round++ {
					worst = max(worst, c.all(t))
				}
				if !twin && worst > most || twin && worst <= most {
					t.Errorf("a call was made of %d steps; at most %d where rows are locked", worst, most)
				}
				c.whole(t)
			})
		}
	})
}

// A rush is handles that want the same tags at the same time.
type rush struct {
	tags    []driver.AllocateOf
	stores  []*driver.Base
	kvs     []*attempts
	pulses  []driver.Pulse
	mu      sync.Mutex // guards granted
	granted map[string][]hapax.Grant
}

func newRush(t *testing.T, url string, twin bool) *rush {
	t.Helper()
	const handles, tags = 30, 100
	r := &rush{granted: map[string][]hapax.Grant{}}
	for i := range handles {
		s := open(t, url, sqlstore.Options{MaxConns: 1})
		a := &attempts{LockingKV: s.KV().(driver.LockingKV)}
		var kv driver.KV = a
		if twin {
			kv = struct{ driver.KV }{a}
		}
		p := driver.Pulse{Row: fmt.Sprint("n", i), Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 1}}
		if ok, err := s.SwapRow(t.Context(), driver.TableBeats, p.Row, nil, p.Was.Encode()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		r.kvs, r.pulses = append(r.kvs, a), append(r.pulses, p)
		r.stores = append(r.stores, driver.NewBase(&driver.Calls{Service: "rush", Timeout: patience.Long}, kv, driver.BaseOptions{MaxChanges: tags, ByValue: true}))
		if i > 0 {
			continue
		}
		for j := range tags {
			r.tags = append(r.tags, driver.AllocateOf{Tag: fmt.Sprint("tag ", j), N: 10})
			create(t, s, r.tags[j].Tag)
		}
	}
	return r
}

// all has all handles ask for all tags, and returns of how many steps the longest call was.
func (r *rush) all(t *testing.T) (worst int) {
	t.Helper()
	var wg sync.WaitGroup
	for i, s := range r.stores {
		wg.Go(func() {
			r.pulses[i].Now.Count++
			r.kvs[i].made = 0
			made, c, err := s.AllocateAllWith(t.Context(), r.pulses[i], r.tags)
			if err != nil || !c.Met {
				t.Errorf("handle %d: %+v, %v", i, c, err)
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			worst = max(worst, r.kvs[i].made)
			for _, m := range made {
				if m.Err != nil {
					t.Errorf("handle %d: %v", i, m.Err)
				}
				r.granted[m.Tag.Name] = append(r.granted[m.Tag.Name], m.Grant)
			}
		})
	}
	wg.Wait()
	return worst
}

// whole sees that nothing was granted twice, and nothing left out.
func (r *rush) whole(t *testing.T) {
	t.Helper()
	for _, of := range r.tags {
		grants := r.granted[of.Tag]
		disjoint(t, grants)
		tag, err := r.stores[0].Tag(t.Context(), of.Tag)
		if want := int64(1 + 10*len(grants)); err != nil || tag.Mark != want {
			t.Errorf("%s: the mark is %d, %v; want %d, with no gap", of.Tag, tag.Mark, err, want)
		}
	}
}

// Steps of one process for different tags, of which one changes a single tag and another locks
// many first, wait for each other's rows in one order: the server finds no deadlock.
func TestStepsOfOneProcessDoNotDeadlock(t *testing.T) {
	onOwnServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		const rounds, tags = 40, 20
		s := open(t, url, sqlstore.Options{})
		beat := driver.Beat{Count: 1}.Encode()
		own := driver.Key{Table: driver.TableBeats, Name: "n"}
		if ok, err := s.SwapRow(t.Context(), own.Table, own.Name, nil, beat); !ok || err != nil {
			t.Fatal(ok, err)
		}
		keys := []driver.Key{own}
		for i := range tags {
			keys = append(keys, driver.Key{Name: fmt.Sprintf("tag %02d", i)})
			create(t, s, keys[i+1].Name)
		}
		kv := s.KV().(driver.LockingKV)
		pulse := func(key driver.Key, old driver.Cell) driver.Step {
			return driver.Step{
				If:    []driver.Cond{{Key: own, Least: beat}},
				Raise: []driver.Put{{Key: own, Value: beat}},
				Each:  []driver.Change{{Key: key, Old: old, Next: append([]byte(" "), old.Value...)}},
			}
		}
		var wg sync.WaitGroup
		run := func(f func(i int) error) {
			wg.Go(func() {
				for i := range rounds {
					if err := f(i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 3 {
			run(func(int) error { // as another process that holds tags while it waits for one
				_, err := kv.StepLocked(t.Context(), keys[1:], func([]driver.Cell) (driver.Step, error) { return driver.Step{}, nil })
				return err
			})
			run(func(i int) error {
				_, err := kv.StepLocked(t.Context(), keys, func([]driver.Cell) (driver.Step, error) { return driver.Step{}, nil })
				return err
			})
			run(func(i int) error {
				_, err := kv.Step(t.Context(), pulse(keys[1+i%tags], driver.Cell{Known: true, Value: []byte("another")}))
				return err
			})
		}
		wg.Wait()
		noDeadlocks(t, s)
	})
}

// noDeadlocks sees that the server has found none since its start.
func noDeadlocks(t *testing.T, s *sqlstore.Store) {
	t.Helper()
	query := "SELECT sum(deadlocks)::int FROM pg_stat_database"
	if s.Name() == sqlstore.MySQL {
		query = "SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM information_schema.global_status WHERE VARIABLE_NAME = 'Innodb_deadlocks'"
	}
	if n, err := sqlstore.Value[int](s, query); err != nil || n != 0 {
		t.Errorf("there were %d deadlocks, %v", n, err)
	}
}

// A heartbeat, a grant and a registration that wait for the counter of joins, which another
// registration has, keep it from nothing else that it needs: its process's row stands where the fence would.
func TestRegistrationsDoNotDeadlock(t *testing.T) {
	onOwnServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		a, b := open(t, url, sqlstore.Options{}), open(t, url, sqlstore.Options{})
		beat, none := driver.Beat{Count: 1}.Encode(), driver.Cell{Known: true}
		own, tag := driver.Key{Table: driver.TableBeats, Name: "1"}, driver.Key{Name: "tag"}
		joins, changes, format := driver.Key{Table: driver.TableGuard, Name: driver.RowJoins}, driver.Key{Table: driver.TableGuard, Name: driver.RowChanges}, driver.Key{Table: driver.TableGuard, Name: "format"}
		fence := driver.Cond{Key: driver.Key{Table: driver.TableFence, Name: driver.RowFence}}
		for key, value := range map[driver.Key][]byte{own: beat, tag: []byte("1"), joins: driver.EncodeCounter(1), format: []byte("3")} {
			if r, err := a.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: none, Next: value}}}); err != nil || !r.Each[0].Done {
				t.Fatal(r, err)
			}
		}
		pulse := func(each ...driver.Change) driver.Step {
			return driver.Step{If: []driver.Cond{{Key: own, Least: beat}, fence}, Raise: []driver.Put{{Key: own, Value: beat}}, Each: each, Look: []driver.Key{joins, changes}}
		}
		registration := func(row string, cell driver.Cell, next int64) driver.Step {
			return driver.Step{If: []driver.Cond{fence}, Then: []driver.Change{
				{Key: driver.Key{Table: driver.TableNodes, Name: row}, Old: none, Next: []byte("{}")},
				{Key: driver.Key{Table: driver.TableBeats, Name: row}, Old: none, Next: beat},
				{Key: joins, Old: cell, Next: driver.EncodeCounter(next)},
			}}
		}
		db, number := admin(t, a), int64(1)
		for name, other := range map[string]driver.Step{
			"a heartbeat":                 pulse(),
			"a grant":                     pulse(driver.Change{Key: tag, Old: driver.Cell{Value: []byte("1"), Known: true}, Next: []byte("2")}),
			"a registration that is late": registration("9", driver.Cell{Value: driver.EncodeCounter(1), Known: true}, 9),
		} {
			made, attempts := make(chan driver.Result, 1), 0
			r, err := a.KV().(driver.LockingKV).StepLocked(t.Context(), []driver.Key{joins}, func(cells []driver.Cell) (driver.Step, error) {
				if attempts++; attempts == 1 {
					go func() {
						r, err := b.KV().Step(t.Context(), other)
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
						made <- r
					}()
					patience.Await(t, "the other waits, or is done", func() (waits bool, err error) {
						err = db.QueryRowContext(t.Context(), waiting(a, url)).Scan(&waits)
						return waits || len(made) > 0, err
					}, func(waits bool) bool { return waits })
				}
				number++
				return registration(fmt.Sprint(number), cells[0], number), nil
			})
			if err != nil || !r.Met || attempts != 1 {
				t.Errorf("beside %s a registration is %+v, %v, after %d attempts", name, r, err, attempts)
			}
			if r := <-made; r.Met != (len(other.Then) == 0) {
				t.Errorf("%s beside a registration: %+v", name, r)
			}
		}
		noDeadlocks(t, a)
	})
}
