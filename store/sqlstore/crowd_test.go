package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// A crowd is handles that are granted numbers of the same tags, many at a time.
type crowd struct {
	t       *testing.T
	handles []*sqlstore.Store
	pulses  []driver.Pulse

	mu      sync.Mutex // guards what follows
	granted map[string][]hapax.Grant
	steps   int
}

const crowdTags = 12

func newCrowd(t *testing.T, url string, handles int) *crowd {
	t.Helper()
	c := &crowd{t: t, granted: map[string][]hapax.Grant{}}
	for i := range handles {
		s := open(t, url, sqlstore.Options{})
		p := driver.Pulse{Row: fmt.Sprint("n", i), Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 1}}
		if ok, err := s.SwapRow(t.Context(), driver.TableBeats, p.Row, nil, p.Was.Encode()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		c.handles, c.pulses = append(c.handles, s), append(c.pulses, p)
	}
	for i := range crowdTags {
		create(t, c.handles[0], fmt.Sprint("tag ", i))
	}
	return c
}

// step has a handle ask for numbers of some tags, named in any order.
func (c *crowd) step(ctx context.Context, handle int) error {
	var all []driver.AllocateOf
	for _, i := range rand.Perm(crowdTags)[:1+rand.IntN(crowdTags)] {
		all = append(all, driver.AllocateOf{Tag: fmt.Sprint("tag ", i), N: 1 + rand.Int64N(5)})
	}
	p := &c.pulses[handle]
	p.Now.Count++
	made, contact, err := c.handles[handle].AllocateAllWith(ctx, *p, all)
	if err != nil {
		return err
	}
	if !contact.Met {
		c.t.Errorf("handle %d: the contact is %+v", handle, contact)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps++
	for i, m := range made {
		if m.Err != nil {
			c.t.Errorf("handle %d: %s: %v", handle, all[i].Tag, m.Err)
		}
		c.granted[all[i].Tag] = append(c.granted[all[i].Tag], m.Grant)
	}
	return nil
}

func (c *crowd) disjoint() {
	c.t.Helper()
	for _, grants := range c.granted {
		disjoint(c.t, grants)
	}
}

// Steps of handles that overlap, in any order, grant nothing twice, and all are made: in
// PostgreSQL, which takes a second to find a deadlock, without one.
func TestOverlappingSteps(t *testing.T) {
	onOwnServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		const rounds = 60
		c := newCrowd(t, url, 4)
		var wg sync.WaitGroup
		for i := range c.handles {
			wg.Go(func() {
				for range rounds {
					if err := c.step(t.Context(), i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		c.disjoint()
		for tag, grants := range c.granted {
			last, err := c.handles[0].Tag(t.Context(), tag)
			sum := int64(1)
			for _, g := range grants {
				sum += g.Hi - g.Lo
			}
			if err != nil || last.Mark != sum {
				t.Errorf("%s: the mark is %d, %v; want %d, with no gap", tag, last.Mark, err, sum)
			}
		}
		if c.handles[0].Name() == sqlstore.PostgreSQL {
			if n, err := sqlstore.Value[int](c.handles[0], "SELECT sum(deadlocks)::int FROM pg_stat_database"); err != nil || n != 0 {
				t.Errorf("there were %d deadlocks, %v", n, err)
			}
		}
	})
}

// Sessions that the server ends in the middle of steps cost those steps alone: what becomes of
// them is unknown, and nothing is granted twice.
func TestTerminatedSessions(t *testing.T) {
	onOwnServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		c := newCrowd(t, url, 3)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range c.handles {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := c.step(ctx, i); err != nil && !errors.Is(err, hapax.ErrStoreUnavailable) {
						t.Error(err)
						return
					}
				}
			})
		}
		db := admin(t, c.handles[0])
		db.SetMaxOpenConns(1)
		steps := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.steps
		}
		for range 30 {
			want := steps() + 10
			patience.Await(t, "more steps", func() (int, error) { return steps(), nil }, func(n int) bool { return n >= want || t.Failed() })
			if c.handles[0].Name() == sqlstore.PostgreSQL {
				if _, err := db.ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"); err != nil {
					t.Fatal(err)
				}
				continue
			}
			rows, err := db.QueryContext(t.Context(), "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'hapax'")
			if err != nil {
				t.Fatal(err)
			}
			var ids []int64
			for rows.Next() {
				var id int64
				if err := rows.Scan(&id); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				_, _ = db.ExecContext(t.Context(), fmt.Sprint("KILL ", id)) // it may have ended
			}
		}
		stop()
		wg.Wait()
		c.disjoint()
		t.Logf("%d steps were made", c.steps)
	})
}

// A grant sees that the row of its process was ended while it was under way, also where it has
// nothing to advance there.
func TestRowEndsDuringAGrant(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		c := newCrowd(t, url, 2)
		p := c.pulses[0]
		before := allocate(t, c.handles[0], "tag 0", 10)
		ended := string(p.Was.EncodeEnded("silent"))
		type answer struct {
			contact driver.Contact
			err     error
		}
		answers := make(chan answer, 1)
		_, err := c.handles[1].KV().(driver.LockingKV).StepLocked(t.Context(), []driver.Key{{Table: driver.TableBeats, Name: p.Row}}, func(cells []driver.Cell) (driver.Step, error) {
			go func() {
				_, contact, err := storetest.AllocateWith(t.Context(), c.handles[0], p, "tag 0", 10, "")
				answers <- answer{contact, err}
			}()
			becomes(t, admin(t, c.handles[0]), waiting(c.handles[0], url))
			return driver.Step{Each: []driver.Change{{Key: driver.Key{Table: driver.TableBeats, Name: p.Row}, Old: cells[0], Next: []byte(ended)}}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if a := <-answers; a.err != nil || a.contact.Met || string(a.contact.Row) != ended {
			t.Errorf("the grant's contact is %+v, %v; want the row %s", a.contact, a.err, ended)
		}
		if tag, err := c.handles[1].Tag(t.Context(), "tag 0"); err != nil || tag.Mark != before.Hi {
			t.Errorf("the mark is %d, %v; want %d", tag.Mark, err, before.Hi)
		}
	})
}

// A COMMIT whose answer is lost leaves its step open: it is an error, and nothing is made again.
func TestLostCommit(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server, url string) {
		server.MustProxy()
		proxy := testservers.NewProxy(t, server.Addr)
		s, direct := open(t, proxy.URL(url), sqlstore.Options{MaxConns: 1}), open(t, url, sqlstore.Options{})
		key, raised := driver.Key{Name: "tag"}, driver.Key{Table: "t", Name: "r"}
		value := func() (driver.Cell, string) {
			t.Helper()
			cells, err := direct.KV().Get(t.Context(), driver.Current, key)
			if err != nil {
				t.Fatal(err)
			}
			return cells[0], string(cells[0].Value)
		}
		calls := 0
		lost := func(what string, call func(old driver.Cell, next []byte) error) {
			t.Helper()
			old, before := value()
			next := []byte(before + "x")
			proxy.CutReply(testservers.Contains("COMMIT"))
			if s.Name() == sqlstore.PostgreSQL {
				proxy.CutReply(testservers.Contains("commit\x00")) // all of a statement
			}
			fired := proxy.Fired()
			err := call(old, next)
			proxy.Pass()
			wantErr(t, what, err, hapax.ErrStoreUnavailable)
			if proxy.Fired() != fired+1 {
				t.Fatalf("%s: %d connections were cut", what, proxy.Fired()-fired)
			}
			patience.Until(t, what+" was carried out once", func() bool { _, now := value(); return now == string(next) })
		}
		lost("a step of locked rows", func(old driver.Cell, next []byte) error {
			_, err := s.KV().(driver.LockingKV).StepLocked(t.Context(), []driver.Key{key}, func(cells []driver.Cell) (driver.Step, error) {
				calls++
				return driver.Step{Each: []driver.Change{{Key: key, Old: cells[0], Next: next}}}, nil
			})
			return err
		})
		if calls != 1 {
			t.Errorf("the step was made up %d times", calls)
		}
		if s.Name() == sqlstore.MySQL {
			lost("a step of several rows", func(old driver.Cell, next []byte) error {
				_, err := s.KV().Step(t.Context(), driver.Step{
					Raise: []driver.Put{{Key: raised, Value: []byte("1")}}, Then: []driver.Change{{Key: key, Old: old, Next: next}},
				})
				return err
			})
		}
	})
}
