package witness_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// rowOf returns the row of a tag in a store.
func rowOf(t *testing.T, s *memstore.Store, tag string) driver.Cell {
	t.Helper()
	cells, err := s.KV().Get(t.Context(), driver.Current, driver.Key{Name: tag})
	if err != nil {
		t.Fatal(err)
	}
	return cells[0]
}

// edit writes the row of a tag by hand, past all rules, and returns what stood there.
func (f *fleet) edit(tag string, value []byte) (before []byte) {
	f.t.Helper()
	old := rowOf(f.t, f.store, tag)
	r, err := f.store.KV().Step(f.t.Context(), driver.Step{Each: []driver.Change{{Key: driver.Key{Name: tag}, Old: old, Next: value}}})
	if err != nil || !r.Each[0].Done {
		f.t.Fatalf("the row is not edited: %+v, %v", r, err)
	}
	return old.Value
}

// unreadable are rows that are no definitions of tags.
var unreadable = map[string]string{
	"no JSON":            `{"kind":"segment`,
	"another type":       `{"kind":"segment","step":"ten"}`,
	"an unknown field":   `{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":10,"delta":1,"mark":11,"steps":10}`,
	"something follows":  `{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":10,"delta":1,"mark":11} {}`,
	"no kind":            `{"kind":"counter","start":1}`,
	"a mark that is out": `{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":10,"delta":1,"mark":-5}`,
	"text":               "orders are at 500",
	"another kind":       anotherKind,
	"other numbers":      otherNumbers,
}

// otherNumbers is a sound row of a tag that issues other numbers: another region's.
const otherNumbers = `{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":10,"delta":2,"remainder":1,"mark":11}`

// anotherKind is a sound row, but not of a tag with numbers.
const anotherKind = `{"kind":"snowflake","pool":"default"}`

// blocked reports a call for the tag that does not fail for its row, by name.
func (m *machine) blocked(tag string) {
	m.f.t.Helper()
	err := m.take(tag, 10)
	u, ok := errors.AsType[*driver.UnreadableError](err)
	if !ok || u.Tag != tag || !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), "correct its row") {
		m.f.t.Errorf("%s asks for numbers of %s, whose row cannot be read: %v", m.name, tag, err)
	}
}

// owes waits until the store tells how far a line was granted.
func (f *fleet) owes(line, what string) {
	f.t.Helper()
	f.until("what is owed of "+line, func() bool { return strings.Contains(string(f.row(driver.TableGuard, "owed/"+line)), what) })
}

// A row that cannot be read blocks its own line alone: other tags are granted from, nodes
// start, nobody is fenced; and when it is mended it is granted from again.
func TestUnreadableRow(t *testing.T) {
	for what, value := range unreadable {
		t.Run(what, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				a, b := f.start("a"), f.start("b")
				f.serve(12*time.Second, a, b)
				f.create("good")
				a.must("t", 500)
				b.must("good", 10)
				before := f.edit("t", []byte(value))
				a.blocked("t")
				b.blocked("t")
				c := f.start("c")
				f.serve(12*time.Second, c)
				c.blocked("t")
				for _, m := range []*machine{a, b, c} {
					m.must("good", 10)
				}
				f.owes("tag/t", `"m":501`)
				if _, err := a.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err == nil {
					t.Error("the tag was made over its row")
				}
				tags, err := c.Tags(t.Context(), "", 10)
				if err != nil || len(tags) != 2 || tags[1] != (hapax.Tag{Name: "t", Kind: hapax.KindUnreadable}) {
					t.Errorf("the tags are listed as %+v, %v", tags, err)
				}
				for what, change := range map[string]func() error{
					"updated": func() error {
						_, err := c.UpdateTag(t.Context(), "t", driver.TagUpdate{})
						return err
					},
					"deleted": func() error {
						_, err := c.DeleteTag(t.Context(), "t")
						return err
					},
				} {
					if err := change(); !errors.Is(err, hapax.ErrStoreCorrupt) {
						t.Errorf("the tag is %s: %v", what, err)
					}
				}
				if err := command(t, f, "good"); err != nil {
					t.Errorf("a command: %v", err)
				}
				time.Sleep(3 * time.Minute)
				f.edit("t", before)
				for _, m := range []*machine{c, b, a} {
					m.within(5 * time.Second)
				}
				f.until("that nothing is owed any more", func() bool { return f.row(driver.TableGuard, "owed/tag/t") == nil })
				f.neverFenced()
			})
		})
	}
}

// command takes numbers of a tag as a command does.
func command(t *testing.T, f *fleet, tag string) error {
	t.Helper()
	s, err := witness.OneShot(f.store)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Allocate(t.Context(), tag, 5, "")
	if err == nil {
		f.enter("a command", tag, a.Grant)
	}
	return err
}

// A row that is mended comes back no lower than it was, though nobody is left who was granted
// numbers of it: those who are there raise it.
func TestUnreadableRowComesBackLower(t *testing.T) {
	for _, c := range []struct{ who, row string }{
		{"a new node", "{"},
		{"a node that knows less", "{"},
		{"a command", "{"},
		{"a new node", anotherKind},
		{"a command", anotherKind},
		{"a new node", otherNumbers},
		{"a command", otherNumbers},
	} {
		who := c.who
		t.Run(who+" "+c.row, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				a := f.start("a")
				f.serve(12*time.Second, a)
				b := a
				if who == "a node that knows less" {
					b = f.start("b")
					f.serve(12*time.Second, b)
				}
				first := rowOf(t, f.store, "t").Value
				a.must("t", 5000)
				f.edit("t", []byte(c.row))
				a.blocked("t")
				f.owes("tag/t", `"m":5001`)
				a.stop()
				time.Sleep(3 * time.Second) // heartbeats, with which the others hear of both
				if err := os.Remove(a.path); err != nil {
					t.Fatal(err)
				}
				switch who {
				case "a new node":
					b = f.start("b")
					f.serve(12*time.Second, b)
					b.blocked("t")
				case "a command":
					f.edit("t", first)
					if err := command(t, f, "t"); !errors.Is(err, hapax.ErrStoreRolledBack) {
						t.Errorf("a command is granted numbers of a row that is lower than what is owed: %v", err)
					}
					return
				}
				f.edit("t", first)
				b.within(30 * time.Second)
				if mark := f.tag("t").Mark; mark < 5011 {
					t.Errorf("the mark is %d; want it above 5001", mark)
				}
			})
		})
	}
}

func (f *fleet) tag(name string) hapax.Tag {
	f.t.Helper()
	tag, err := f.store.Tag(f.t.Context(), name)
	if err != nil {
		f.t.Fatal(err)
	}
	return tag
}

// A store that went back, and in which a row cannot be read, is healed but for that row; what
// all knew of it is raised when it is mended, also where they are gone.
func TestHealsBesideAnUnreadableRow(t *testing.T) {
	for _, row := range []string{"?", anotherKind, otherNumbers} {
		world(t, func(t *testing.T, f *fleet) { healsBeside(t, f, row) })
	}
}

func healsBeside(t *testing.T, f *fleet, row string) {
	a, b := f.start("a"), f.start("b")
	f.serve(12*time.Second, a, b)
	f.create("good")
	a.must("good", 10)
	time.Sleep(2 * time.Second)
	backup := f.store.Snapshot()
	first := rowOf(t, backup, "t").Value
	a.must("t", 3000)
	b.must("t", 4000)
	a.must("good", 1000)
	f.store.Restore(backup)
	f.edit("t", []byte(row))
	f.until("a decision", func() bool { return f.row(driver.TableGuard, "decision") != nil && f.standing() == nil })
	f.serve(12*time.Second, a, b)
	for _, m := range []*machine{a, b} {
		m.must("good", 10)
		m.blocked("t")
	}
	f.owes("tag/t", `"m":7001`)
	for _, m := range []*machine{a, b} {
		m.stop()
		if err := os.Remove(m.path); err != nil {
			t.Fatal(err)
		}
	}
	c := f.start("c")
	f.serve(12*time.Second, c)
	f.edit("t", first)
	c.within(30 * time.Second)
	if mark := f.tag("t").Mark; mark < 7011 {
		t.Errorf("the mark is %d; want it above 7001", mark)
	}
}

// A tag whose row is a sound one of another kind is refused as one whose row cannot be read, whatever
// the kinds are and however high the row is.
func TestRowOfAnotherKind(t *testing.T) {
	for what, row := range map[string]string{
		"numbers":      `{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":1000000,"delta":1,"mark":9000000}`,
		"another pool": `{"kind":"snowflake","pool":"other"}`,
	} {
		t.Run(what, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				if _, err := f.store.CreateTag(t.Context(), hapax.Tag{Name: "s", Kind: hapax.KindSnowflake, Pool: "p"}, hapax.CreateExplicit); err != nil {
					t.Fatal(err)
				}
				a := f.start("a")
				f.serve(12*time.Second, a)
				before := f.edit("s", []byte(row))
				f.until("that it is found", func() bool { return f.row(driver.TableGuard, "owed/tag/s") != nil })
				b := f.start("b")
				f.serve(12*time.Second, b)
				for _, m := range []*machine{a, b} {
					if _, err := m.Tag(t.Context(), "s"); !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), `the tag is a snowflake of pool "p"`) {
						t.Errorf("%s reads %v", m.name, err)
					}
					if _, err := m.Allocate(t.Context(), "s", 10, ""); !errors.Is(err, hapax.ErrStoreCorrupt) && !errors.Is(err, hapax.ErrKindMismatch) {
						t.Errorf("%s is granted numbers: %v", m.name, err)
					}
					if tags, err := m.Tags(t.Context(), "", 1); err != nil || tags[0] != (hapax.Tag{Name: "s", Kind: hapax.KindUnreadable}) {
						t.Errorf("%s lists %+v, %v", m.name, tags, err)
					}
					m.must("t", 10)
				}
				if err := command(t, f, "s"); !errors.Is(err, hapax.ErrStoreCorrupt) && !errors.Is(err, hapax.ErrKindMismatch) {
					t.Errorf("a command is granted numbers: %v", err)
				}
				f.edit("s", before)
				f.until("that nothing is owed any more", func() bool { return f.row(driver.TableGuard, "owed/tag/s") == nil })
				for _, m := range []*machine{a, b} {
					if tag, err := m.Tag(t.Context(), "s"); err != nil || tag.Pool != "p" {
						t.Errorf("%s reads %+v, %v", m.name, tag, err)
					}
				}
				f.neverFenced()
			})
		})
	}
}

// A node that has learnt of a tag from a row of another kind takes the word of those who knew the tag
// before, whether the store has gone back meanwhile or not.
func TestLearntFromARowOfAnotherKind(t *testing.T) {
	for _, goesBack := range []bool{false, true} {
		t.Logf("the store goes back: %t", goesBack)
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			f.serve(12*time.Second, a)
			f.create("good")
			a.must("t", 500)
			a.must("good", 10)
			a.stop()
			before := f.edit("t", []byte(anotherKind))
			b := f.start("b")
			f.serve(12*time.Second, b)
			if tag, err := b.Tag(t.Context(), "t"); err != nil || tag.Kind != hapax.KindSnowflake {
				t.Fatalf("b, which never knew the tag, reads %+v, %v", tag, err)
			}
			if goesBack {
				time.Sleep(2 * time.Second)
				backup := f.store.Snapshot()
				b.must("good", 1000)
				b.stop()
				f.store.Restore(backup)
				b.start()
			}
			a.start()
			f.serve(40*time.Second, a, b)
			a.blocked("t")
			f.owes("tag/t", `"m":501`)
			f.until("that b knows it, too", func() bool { _, err := b.Tag(t.Context(), "t"); return errors.Is(err, hapax.ErrStoreCorrupt) })
			for _, m := range []*machine{a, b} {
				m.must("good", 10)
				m.blocked("t")
			}
			if !goesBack {
				f.neverFenced()
			}
			f.edit("t", before)
			for _, m := range []*machine{a, b} {
				m.within(30 * time.Second)
			}
		})
	}
}

// A node that has learnt of a tag from a row with other numbers, and was granted more of them than
// anybody before, takes the word of those who knew it with numbers further apart: the others may be
// another region's.
func TestLearntFromARowOfOtherNumbers(t *testing.T) {
	for _, goesBack := range []bool{false, true} {
		t.Logf("the store goes back: %t", goesBack)
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			f.serve(12*time.Second, a)
			f.create("good")
			if _, err := f.store.CreateTag(t.Context(), hapax.Tag{Name: "odd", Delta: 2, Remainder: 1}, hapax.CreateExplicit); err != nil {
				t.Fatal(err)
			}
			a.must("odd", 500)
			a.must("good", 10)
			a.stop()
			before := f.edit("odd", []byte(`{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":1000,"delta":1,"mark":2001}`))
			b := f.start("b")
			f.serve(12*time.Second, b)
			b.must("odd", 500)
			if goesBack {
				time.Sleep(2 * time.Second)
				backup := f.store.Snapshot()
				b.must("good", 1000)
				b.stop()
				f.store.Restore(backup)
				b.start()
			}
			a.start()
			f.serve(40*time.Second, a, b)
			a.blocked("odd")
			f.owes("tag/odd", `"delta":2,"rem":1`)
			f.until("that b knows it, too", func() bool { _, err := b.Tag(t.Context(), "odd"); return errors.Is(err, hapax.ErrStoreCorrupt) })
			for _, m := range []*machine{a, b} {
				m.must("good", 10)
				m.blocked("odd")
			}
			if !goesBack {
				f.neverFenced()
			}
			f.owes("tag/odd", `"m":2501`)
			f.edit("odd", before)
			f.until("that odd is mended", func() bool { return a.take("odd", 10) == nil && b.take("odd", 10) == nil })
			if odd := f.tag("odd"); odd.Delta != 2 || odd.Remainder != 1 || odd.Mark < 2501 {
				t.Errorf("the tag is %+v", odd)
			}
		})
	}
}

// A node that comes while a store is healed, and learns how far a line is owed, learns of what numbers: else the
// mended row is another tag's to it.
func TestLearntFromWhatIsOwed(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		f.create("good")
		if _, err := f.store.CreateTag(t.Context(), hapax.Tag{Name: "odd", Delta: 2, Remainder: 1}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		a.must("odd", 500)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		a.must("good", 1000)
		f.store.Restore(backup)
		before := f.edit("odd", []byte("?"))
		f.until("a fence", func() bool { return f.standing() != nil })
		c := f.start("c")
		f.until("that c knows of the line", func() bool { _, known := c.Witness().Pair(witness.TagLine("odd")); return known })
		c.crash()
		a.within(30 * time.Second)
		f.edit("odd", before)
		f.until("that odd is mended", func() bool { return a.take("odd", 10) == nil && f.row(driver.TableGuard, "owed/tag/odd") == nil })
		c.start()
		f.serve(12*time.Second, a, c)
		c.must("odd", 10)
	})
}

// Living nodes that know a tag with different numbers come to an end of it: they take those that lie further
// apart, or the one that reads the row goes on, and a person decides for the other one. Neither has the others
// survey the store for it over and over.
func TestAccountsThatDisagree(t *testing.T) {
	for _, c := range []struct {
		name, numbers  string
		agree, blocked bool
	}{
		{"further apart", `"delta":4,"remainder":1`, true, false},
		{"nearer", `"delta":1`, true, true},
		{"another remainder", `"delta":2`, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				a := f.start("a")
				f.serve(12*time.Second, a)
				if _, err := f.store.CreateTag(t.Context(), hapax.Tag{Name: "odd", Delta: 2, Remainder: 1}, hapax.CreateExplicit); err != nil {
					t.Fatal(err)
				}
				a.must("odd", 500)
				a.stop()
				f.edit("odd", []byte(`{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":1000,`+c.numbers+`,"mark":2001}`))
				b := f.start("b")
				f.serve(12*time.Second, b)
				b.must("odd", 500)
				a.start()
				f.serve(40*time.Second, a, b)
				time.Sleep(2 * time.Minute) // each has surveyed the store
				changes := string(f.row(driver.TableGuard, driver.RowChanges))
				time.Sleep(5 * time.Minute)
				if now := string(f.row(driver.TableGuard, driver.RowChanges)); now != changes {
					t.Errorf("the number of changes went from %s to %s", changes, now)
				}
				for _, m := range []*machine{a, b} {
					if c.blocked && (c.agree || m == a) {
						m.blocked("odd")
					} else {
						m.must("odd", 10)
					}
				}
				if owed := f.row(driver.TableGuard, "owed/tag/odd"); (owed != nil) != c.blocked {
					t.Errorf("owed is %s", owed)
				}
				f.neverFenced()
			})
		})
	}
}
