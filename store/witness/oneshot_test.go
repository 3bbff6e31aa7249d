package witness_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// command takes n numbers of a tag as a command does, which does not join.
func (f *fleet) command(l *link, n int64) error {
	if l == nil {
		l = &link{store: f.store}
	}
	s, err := witness.OneShot(&conn{Store: f.store, link: l})
	if err != nil {
		return err
	}
	a, err := s.Allocate(f.t.Context(), "t", n, "")
	if err == nil {
		f.enter("a command", "t", a.Grant)
	}
	return err
}

func (f *fleet) beats() []driver.Row {
	f.t.Helper()
	rows, err := f.store.ListRows(f.t.Context(), driver.TableBeats, "", 1000)
	if err != nil {
		f.t.Fatal(err)
	}
	return rows
}

// Many commands at once do not keep each other from their numbers, nor a node from
// joining; the nodes know within a heartbeat what they took.
func TestManyCommands(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1100 * time.Millisecond)
		var wg sync.WaitGroup
		began := time.Now()
		for range 50 {
			wg.Go(func() {
				for range 5 {
					if err := f.command(nil, 2); err != nil {
						t.Error(err)
					}
				}
			})
		}
		b := f.start("b")
		wg.Wait()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("250 commands took %v; want less than 1 s for each", took)
		}
		if took := b.within(5 * time.Second); took > 2500*time.Millisecond {
			t.Errorf("b was granted its first numbers after %v; want 2.5 s at most", took)
		}
		time.Sleep(1100 * time.Millisecond)
		f.store.Restore(backup)
		time.Sleep(1100 * time.Millisecond)
		f.serve(12*time.Second, a, b)
		a.must("t", 10)
	})
}

// Rows of commands are compacted where nodes live, and nobody leaves one where none does.
func TestRowsOfCommands(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		for range 20 {
			if err := f.command(nil, 1); err != nil {
				t.Fatal(err)
			}
		}
		if rows := f.beats(); len(rows) != 1 {
			t.Errorf("commands that nobody is told of have left %v", rows)
		}
		a := f.start("a")
		f.serve(12*time.Second, a)
		for range 300 {
			if err := f.command(nil, 1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if rows := f.beats(); len(rows) > 120 {
			t.Errorf("there are %d rows after 300 commands; want them compacted", len(rows))
		}
	})
}

// A command refuses under a fence, also one that comes after its grant.
func TestCommandsUnderAFence(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		l := &link{store: f.store}
		var once sync.Once
		l.set(nil, func(op string) error {
			if op == "allocate" {
				once.Do(func() { f.fence("another") })
			}
			return nil
		})
		for _, when := range []string{"after the grant", "before it"} {
			if err := f.command(l, 10); !errors.Is(err, hapax.ErrFenced) {
				t.Errorf("a fence %s: %v; want ErrFenced", when, err)
			}
		}
	})
}

// A node joins between a command's grant and what it tells, and dies at once: what its
// directory says later does not speak for the command.
func TestCommandBesideAJoiner(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		time.Sleep(2 * time.Second)
		a.link.set(func(op string) error { // its surveys fail, its heartbeats do not
			if op == "tags" {
				return errDown
			}
			return nil
		}, nil)
		backup := f.store.Snapshot()
		time.Sleep(1100 * time.Millisecond)
		l := &link{store: f.store}
		swaps := 0
		var c *machine
		l.set(func(op string) error {
			if op == "swap" {
				swaps++
			}
			if swaps == 4 && c == nil { // the row of commands and its own are there, and its number is to be counted
				c = f.start("c")
				c.link.set(a.link.before, nil)
				f.until("that c has registered", func() bool { return len(f.beats()) == 4 })
				time.Sleep(10 * time.Millisecond)
				c.crash()
			}
			return nil
		}, nil)
		if err := f.command(l, 5000); err != nil {
			t.Fatal(err)
		}
		if c == nil {
			t.Fatal("nobody has joined meanwhile")
		}
		time.Sleep(1500 * time.Millisecond)
		f.store.Restore(backup)
		c.start()
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		a.link.set(nil, nil)
		if err := a.take("t", 10); err == nil {
			t.Error("a is granted numbers of which the command's may be")
		}
	})
}
