package witness_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// blind is a handle of a store that looks at no other row with a beat.
type blind struct{ *conn }

func (b blind) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	p.Watch = ""
	return b.conn.Beat(ctx, p)
}

// trio starts three nodes, the first of which has the lowest row, and lets their surveys end.
func (f *fleet) trio(wrap func(*conn) driver.Store) []*machine {
	f.t.Helper()
	f.wrap = wrap
	var all []*machine
	for _, name := range []string{"a", "b", "c"} {
		m := f.start(name)
		m.within(12 * time.Second)
		all = append(all, m)
	}
	time.Sleep(10 * time.Second)
	return all
}

// surveyed waits until the others have surveyed that a row has ended, and returns how long
// that took.
func (f *fleet) surveyed(row, how string, by ...*machine) time.Duration {
	f.t.Helper()
	began := time.Now()
	for time.Since(began) < time.Minute {
		if !slices.ContainsFunc(by, func(m *machine) bool { return witness.HowEnded(m.witness, row) != how }) {
			return time.Since(began)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, m := range by {
		f.t.Errorf("%s has surveyed that %s has ended: %q; want %q", m.name, row, witness.HowEnded(m.witness, row), how)
	}
	return time.Since(began)
}

// rowsOf returns the rows of machines in the order of their starts.
func (f *fleet) rowsOf(n int) []string {
	f.t.Helper()
	all, err := f.store.ListRows(f.t.Context(), driver.TableBeats, "", 100)
	if err != nil || len(all) != n {
		f.t.Fatal(all, err)
	}
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
	}
	return names
}

// A node that crashes is surveyed by all who live within twice the time that a living node
// takes to meet the store, though nobody joins: whoever of them reads, and whether or not the
// store shows with a beat that the reader lives.
func TestCrashIsSurveyed(t *testing.T) {
	for _, wrap := range []func(*conn) driver.Store{nil, func(c *conn) driver.Store { return blind{c} }} {
		for i, name := range []string{"a", "b", "c"} {
			t.Run(fmt.Sprintf("%s,watches=%v", name, wrap == nil), func(t *testing.T) {
				world(t, func(t *testing.T, f *fleet) {
					all := f.trio(wrap)
					row := f.rowsOf(3)[i]
					all[i].must("t", 5000)
					all[i].crash()
					if took := f.surveyed(row, "silent", slices.Delete(slices.Clone(all), i, i+1)...); took > 2*wait {
						t.Errorf("that %s has crashed was surveyed after %v; want %v", name, took, 2*wait)
					}
				})
			})
		}
	}
}

// The reader crashes, and then the one that has read in its place.
func TestNextReads(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		all := f.trio(nil)
		rows := f.rowsOf(3)
		all[0].crash()
		f.surveyed(rows[0], "silent", all[1:]...)
		all[1].crash()
		f.surveyed(rows[1], "silent", all[2])
		all[2].within(time.Second)
	})
}

// Who hears that something has changed finds the mark of silence, however late that comes.
func TestMarkBeforeItIsTold(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		all := f.trio(nil)
		row := f.rowsOf(3)[2]
		var once sync.Once
		swaps := 0
		all[0].link.set(func(op string) error {
			if op == "swap" { // the second is a heartbeat of b later
				if swaps++; swaps%2 == 0 {
					time.Sleep(960 * time.Millisecond)
				}
			}
			return nil
		}, nil)
		all[1].link.set(func(op string) error { // its heartbeats come between a's
			if op == "beat" {
				once.Do(func() { time.Sleep(1400 * time.Millisecond) })
			}
			return nil
		}, nil)
		time.Sleep(3 * time.Second)
		all[2].crash()
		if took := f.surveyed(row, "silent", all[:2]...); took > 25*time.Second {
			t.Errorf("that c has crashed was surveyed after %v, by chance", took)
		}
	})
}

// A process ends without a word: one of an older version leaves, or one is killed after it
// has marked another and before it could say so. The reader says it in its place.
func TestEndsWithoutAWord(t *testing.T) {
	for _, how := range []string{"left", "silent"} {
		world(t, func(t *testing.T, f *fleet) {
			all := f.trio(nil)
			row := f.rowsOf(3)[2]
			all[2].crash()
			raw := f.row(driver.TableBeats, row)
			beat, _, err := driver.DecodeBeat(row, raw)
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := f.store.SwapRow(t.Context(), driver.TableBeats, row, raw, beat.EncodeEnded(how)); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if took := f.surveyed(row, how, all[:2]...); took > 2*wait {
				t.Errorf("it was surveyed after %v; want %v", took, 2*wait)
			}
		})
	}
}

// A node that leaves is surveyed with the next heartbeats.
func TestLeavingIsSurveyed(t *testing.T) {
	for phase := range 10 {
		world(t, func(t *testing.T, f *fleet) {
			all := f.trio(nil)
			row := f.rowsOf(3)[2]
			time.Sleep(time.Duration(phase) * 500 * time.Millisecond)
			all[2].stop()
			if took := f.surveyed(row, "left", all[:2]...); took > 1500*time.Millisecond {
				t.Errorf("that c has left was surveyed after %v; want a heartbeat", took)
			}
		})
	}
}

// A process of an older version has the lowest row: it reads, and tells no other which rows it
// marks, so that it is not the reader.
func TestOlderVersionHasTheLowestRow(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		stop := f.crowd(1, "old", "somewhere")
		defer stop()
		all := f.trio(nil)
		row := f.rowsOf(4)[3]
		all[2].crash()
		if took := f.surveyed(row, "silent", all[:2]...); took > 2*wait {
			t.Errorf("that c has crashed was surveyed after %v; want %v", took, 2*wait)
		}
	})
}

// The reader can beat and cannot read: it keeps its office, and the others find out later
// that has crashed.
func TestReaderCannotRead(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		all := f.trio(nil)
		row := f.rowsOf(3)[2]
		all[0].link.set(func(op string) error {
			if op == "list" {
				return errDown
			}
			return nil
		}, nil)
		all[2].crash()
		time.Sleep(2 * time.Minute)
		f.surveyed(row, "silent", all[1])
	})
}

// What idle nodes read grows with their number: one beat a second each, and the rows of all
// by one.
func TestIdleFleetReadsLittle(t *testing.T) {
	for _, c := range []struct {
		n      int
		blind  bool    // the store shows no other row with a beat
		c, per float64 // calls and rows at most; those of attempts to register that failed stand, too
	}{{3, false, 1.3, 2}, {12, false, 1.3, 2}, {48, false, 1.3, 2}, {12, true, 1.7, 2}} {
		world(t, func(t *testing.T, f *fleet) {
			n := c.n
			var calls, rows atomic.Int64
			f.wrap = func(h *conn) driver.Store { return counted{h, c.blind, &calls, &rows} }
			var all []*machine
			for i := range n {
				all = append(all, f.start(fmt.Sprintf("n%02d", i)))
			}
			f.serve(5*time.Minute, all...)
			time.Sleep(30 * time.Second)
			calls.Store(0)
			rows.Store(0)
			const idle = 10 * time.Minute
			time.Sleep(idle)
			each := float64(n) * idle.Seconds()
			if each, listed := float64(calls.Load())/each, float64(rows.Load())/each; each > c.c || listed > c.per {
				t.Errorf("%d nodes: %.2f calls a node and second, and %.2f rows in lists; want %.1f and %.1f at most", n, each, listed, c.c, c.per)
			}
		})
	}
}

// counted is a handle whose calls are counted, and the rows that it lists.
type counted struct {
	*conn
	blind       bool
	calls, rows *atomic.Int64
}

func (c counted) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	if c.calls.Add(1); c.blind {
		p.Watch = ""
	}
	return c.conn.Beat(ctx, p)
}

func (c counted) Row(ctx context.Context, table, name string) ([]byte, error) {
	c.calls.Add(1)
	return c.conn.Row(ctx, table, name)
}

func (c counted) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	c.calls.Add(1)
	rows, err := c.conn.ListRows(ctx, table, after, limit)
	c.rows.Add(int64(len(rows)))
	return rows, err
}

func (c counted) RowsNamed(ctx context.Context, keys ...driver.Key) ([][]byte, error) {
	c.calls.Add(1)
	c.rows.Add(int64(len(keys)))
	return c.conn.RowsNamed(ctx, keys...)
}

func (c counted) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	c.calls.Add(1)
	return c.conn.SwapRowWith(ctx, p, table, name, old, next)
}

// A store that was put back after a process was seen to beat does not make others believe
// that it does: see Nodes, which reads beside the others.
func TestNodesAreSeen(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		all := f.trio(nil)
		for range 2 {
			nodes, err := all[2].Nodes(t.Context())
			if err != nil || len(nodes) != 3 {
				t.Fatal(nodes, err)
			}
			for _, n := range nodes {
				if !n.Self && n.Seen > 2*time.Second {
					t.Errorf("%s was seen %v ago, and lives", n.Name, n.Seen)
				}
			}
			time.Sleep(90 * time.Second)
		}
	})
}
