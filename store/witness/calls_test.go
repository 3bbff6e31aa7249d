package witness

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// set makes a scene, and returns what is to be done in it.
type set func(t *testing.T) (*scene, func(context.Context, store) error)

// lost is a scene in which the guard's process has found a loss, with a fence that it asks
// about, and lines, pools and rows to read.
func lostScene(t *testing.T) (*scene, *Fence, []byte) {
	t.Helper()
	c := newScene(t)
	c.tag("t", 100)
	layout := "leaf"
	if _, err := c.store.CreatePool(t.Context(), "p", layout); err != nil {
		t.Fatal(err)
	}
	c.joins(2)
	row := c.member(1, 9)
	c.peer(rowOf(2, "B"), "b", driver.Beat{Count: 3}, "left")
	id, err := c.store.Store.StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.know(func(b *record) {
		b.Store, b.Former, b.Joins = id, []string{"before"}, 2
		b.Lines = map[string]Pair{"tag/t": {0, 5000}, WorkerLine("p", 1): {3, 700}}
		b.Defs = map[string]def{poolDef("p"): {Layout: layout}}
		b.Own[row] = own{Count: 9, Grants: 2, Asked: 64}
		b.Peers[rowOf(2, "B")] = peer{Name: "b", Address: "at-b", Count: 3, How: "left"}
		b.Latch = &latch{State: Refusing, Why: "a test", Row: row, Count: 9, Fence: "F"}
	})
	f, raw := c.fence(Fence{ID: "F", Ask: "ASK", Healer: theRun, Found: map[string]int64{row: 9}, Stores: []string{id, "older"}})
	c.g.state, c.g.cause, c.g.fence = Refusing, hapax.ErrStoreRolledBack, f
	return c, f, raw
}

// decided puts a decision of several rows into the store, that the guard does not know.
func (c *scene) decided(number int64, change func(*decision)) *decision {
	c.t.Helper()
	id, err := c.store.Store.StoreID(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	d := decision{
		decisionID: decisionID{number, "D"}, Fence: Fence{ID: "F"}, Store: id, Joins: 3, Heard: []string{runOf("A")},
		Stated: map[string]statement{rowOf(2, "B"): {Floor: 1000, Name: "b"}},
	}
	if change != nil {
		change(&d)
	}
	whole := d
	parts := d.split()
	for i, part := range parts {
		c.putJSON(driver.TableGuard, partName(d.prefix(), i), part)
	}
	c.putJSON(driver.TableGuard, rowDecision, d)
	return &whole
}

// More processes than a row of a decision holds.
func manyRuns() (runs []string) {
	for i := range decisionRows + 5 {
		runs = append(runs, rowName(int64(i), "run"))
	}
	return runs
}

// Where a call of the store fails, whatever called it fails with that: what could not be
// read is never taken for something that is not there.
func TestAnyFailedCallIsAnError(t *testing.T) {
	simple := func(f func(c *scene, ctx context.Context, s store) error, prepare ...func(*scene)) set {
		return func(t *testing.T) (*scene, func(context.Context, store) error) {
			c := newScene(t)
			c.tag("t", 100)
			for _, p := range prepare {
				p(c)
			}
			return c, func(ctx context.Context, s store) error { return f(c, ctx, s) }
		}
	}
	healing := func(f func(c *scene, ctx context.Context, s store, f *Fence, raw []byte) error, prepare ...func(*scene)) set {
		return func(t *testing.T) (*scene, func(context.Context, store) error) {
			c, fence, raw := lostScene(t)
			for _, p := range prepare {
				p(c)
			}
			return c, func(ctx context.Context, s store) error { return f(c, ctx, s, fence, raw) }
		}
	}
	member := func(c *scene) { c.member(1, 2); c.joins(1) }
	command := func(f func(ctx context.Context, o driver.Store) error, prepare ...func(*scene)) set {
		return simple(func(c *scene, ctx context.Context, s store) error {
			o, err := OneShot(s)
			if err != nil {
				return err
			}
			return f(ctx, o)
		}, append(prepare, func(c *scene) { c.peer(rowOf(1, "B"), "b", driver.Beat{Count: 2}, ""); c.joins(1) })...)
	}
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		t.Fatal(err)
	}
	acquire := func(ctx context.Context, s hapax.WorkerStore) (hapax.Lease, error) {
		return s.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 8}, Holder: "h", Term: testTerm()})
	}
	guard := []string{"list guard"}                                                    // of its rows only those count that tell what is owed
	removed := []string{"list processes", "list beats", "list guard", "list evidence"} // whatever they say
	for name, c := range map[string]struct {
		set     set
		ignores []string // calls whose failure is made good
		whole   []string // rows that are compared, and not read
	}{
		"checkFormat": {set: simple(func(c *scene, ctx context.Context, s store) error { _, err := checkFormat(ctx, s); return err })},
		"claim":       {set: simple(func(c *scene, ctx context.Context, s store) error { _, err := claim(ctx, s); return err })},
		"identify": {set: simple(func(c *scene, ctx context.Context, s store) error { _, _, _, err := c.g.identify(ctx, s); return err }, func(c *scene) {
			c.know(func(b *record) { b.Store = "another" })
		})},
		"identify, of a store with copies": {set: simple(func(c *scene, ctx context.Context, s store) error { _, _, _, err := c.g.identify(ctx, s); return err }, func(c *scene) {
			c.joins(1)
			c.knowsCopies(c.retirement("C", 0))
			c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(c.retirement("C", 0)))
		}), whole: []string{"row " + driver.RowCopied("C")}},
		"haveMoved": {set: simple(func(c *scene, ctx context.Context, s store) error {
			said := newRecord()
			r := c.retirement("C", 0)
			said.Copies["C"] = r
			c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(r))
			return haveMoved(ctx, s, r.Store, []Testimony{{said}})
		}), whole: []string{"row " + driver.RowCopied("C")}},
		"checkStore": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.checkStore(ctx, s) })},
		"judge": {set: simple(func(c *scene, ctx context.Context, s store) error {
			c.g.me.acked.Count = 9
			err := c.g.judge(ctx, s, c.g.pulse(false), driver.Contact{Row: driver.Beat{Count: 1}.Encode()})
			if c.store.fails > len(c.store.made()) { // the verdict
				err = nil
			}
			return err
		}, member)},
		"judge, of a row that is gone": {set: simple(func(c *scene, ctx context.Context, s store) error {
			err := c.g.judge(ctx, s, c.g.pulse(false), driver.Contact{})
			if c.store.fails > len(c.store.made()) { // the verdict
				err = nil
			}
			return err
		}, member)},
		"judgeLatest": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := c.g.judgeLatest(ctx, s, map[string]own{rowOf(1, "A"): {Count: 5}})
			return err
		})},
		"findArrived": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := findArrived(ctx, s, map[string]own{rowOf(1, "A"): {}}, 3)
			return err
		}, func(c *scene) { c.store.split = true; c.peer(rowOf(1, "A"), "me", driver.Beat{Count: 1}, "") }), whole: []string{"list beats"}}, // their names alone
		"judgeAll": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			_, err := c.g.judgeAll(ctx, s)
			return err
		})},
		"findOwn": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, raw []byte) error {
			_, err := c.g.findOwn(ctx, s, f, raw)
			return err
		}, func(c *scene) { c.know(func(b *record) { b.Latch = &latch{State: Fenced, Fence: "F"} }) })},
		"heal": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error { return c.g.heal(ctx, s) }), whole: removed},
		"heal, where the store stands in another's place": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error { return c.g.heal(ctx, s) }, func(c *scene) {
			c.know(func(b *record) { b.Store = "another" })
		}), whole: removed},
		"heal, of a store that lacks copies": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error { return c.g.heal(ctx, s) }, func(c *scene) {
			c.know(func(b *record) { b.Copies["C"] = driver.Retirement{Copy: "C", Store: "before", To: "redis://C/0"} })
		}), whole: append([]string{"row " + driver.RowCopied("C")}, removed...)},
		"heal, without a fence": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error { return c.g.heal(ctx, s) }, func(c *scene) {
			c.put(driver.TableFence, driver.RowFence, nil)
		})},
		"heal, after a decision": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error { return c.g.heal(ctx, s) }, func(c *scene) {
			c.put(driver.TableFence, driver.RowFence, nil)
			c.decided(1, func(d *decision) { d.Heard = manyRuns() })
		}), whole: guard},
		"giveEvidence": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, _ []byte) error {
			return c.g.giveEvidence(ctx, s, f.Ask)
		})},
		"inquire": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, _ []byte) error {
			_, err := c.g.inquire(ctx, s, f)
			return err
		})},
		"raise": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, _ []byte) error {
			r := c.g.witness.snapshot()
			_, err := c.g.raise(ctx, s, &account{lines: lines{r.Lines, r.Defs}})
			return err
		}), whole: guard},
		"raise, beside a line that cannot be read": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, _ []byte) error {
			r := c.g.witness.snapshot()
			_, err := c.g.raise(ctx, s, &account{lines: lines{r.Lines, r.Defs}})
			return err
		}, func(c *scene) {
			c.store.pages = func(page *[]hapax.Tag) {
				for i := range *page {
					(*page)[i].Kind = hapax.KindUnreadable
				}
			}
		}), whole: guard},
		"decide": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, raw []byte) error {
			r := c.g.witness.snapshot()
			return c.g.decide(ctx, s, f, raw, &account{
				joins: 5, heard: manyRuns(), stores: []string{"one", "two"}, lines: lines{map[string]Pair{"tag/t": r.Lines["tag/t"]}, nil},
				statements: map[string]statement{},
			})
		}, func(c *scene) {
			c.put(driver.TableEvidence, "old/x/000000000", []byte("{}"))
			c.put(driver.TableGuard, "decision/OLD/000000000", []byte("{}"))
			c.put(driver.TableBeats, rowOf(2, "B"), driver.Beat{Count: 3}.EncodeEnded("left"))
		}), whole: removed},
		"askAndDecide": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, raw []byte) error {
			return c.g.askAndDecide(ctx, s, f, raw)
		}, func(c *scene) {
			c.g.seenAt = c.g.now() - time.Minute
		})},
		"catchUp": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			d, err := c.g.newDecision(ctx, s)
			if err != nil {
				return err
			}
			return c.g.catchUp(ctx, s, d, "id")
		}, func(c *scene) {
			c.decided(1, func(d *decision) { d.Heard = manyRuns() })
			c.put(driver.TableFence, driver.RowFence, nil)
		}), whole: guard},
		"catchUp, beside a line that cannot be read": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			return c.g.catchUp(ctx, s, &decision{decisionID: decisionID{1, "D"}}, "id")
		}, func(c *scene) {
			c.putJSON(driver.TableGuard, rowDecision, decision{decisionID: decisionID{1, "D"}})
			c.ofKind(hapax.KindUnreadable, "")
		}), whole: guard},
		"complete": {set: simple(func(c *scene, ctx context.Context, s store) error {
			d, _, err := readDecision(ctx, s)
			if err != nil {
				return err
			}
			return d.complete(ctx, s)
		}, func(c *scene) { c.decided(1, func(d *decision) { d.Heard = manyRuns() }) })},
		"removeUpTo": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.removeUpTo(ctx, s, 2) }, func(c *scene) {
			c.peer(rowOf(1, "A"), "a", driver.Beat{Count: 3}, "left")
			c.peer(rowOf(2, "B"), "b", driver.Beat{Count: 3}, "left")
		}), whole: removed},
		"readEvidence": {set: simple(func(c *scene, ctx context.Context, s store) error { _, err := readEvidence(ctx, s, "W/"); return err })},
		"readStatements": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, _, err := readStatements(ctx, s, "F")
			return err
		})},
		"readLines": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := readLines(ctx, s, newLines())
			return err
		}, withPool)},
		"compareLines": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := compareLines(ctx, s, record{Lines: map[string]Pair{"tag/gone": {0, 1}}})
			return err
		}, withPool)},
		"compare": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.compare(ctx, s) }, func(c *scene) {
			c.know(func(b *record) { b.Lines = map[string]Pair{"tag/t": {0, 100}} })
			c.g.used.add("t")
			c.store.named = func(tags *[]hapax.Tag) { *tags = nil } // a server that lags behind
		})},
		"say": {set: simple(func(c *scene, ctx context.Context, s store) error {
			return c.g.say(ctx, s, rowSaid+"F/r", statement{Floor: 5})
		})},
		"settledBefore": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := settledBefore(ctx, s, Statement{Row: "b"})
			return err
		}, func(c *scene) { c.decided(1, func(d *decision) { d.Heard = manyRuns() }) })},
		"inTime": {set: simple(func(c *scene, ctx context.Context, s store) error {
			return inTime(ctx, s, "F", Statement{Row: "b"}, &Adoption{Stated: []Node{{Row: rowOf(2, "B")}}})
		}, func(c *scene) { c.decided(1, func(d *decision) { d.Heard = manyRuns() }) })},
		"judgeOther": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			return c.g.judgeOther(ctx, s, Statement{Floor: 100_000, Ahead: time.Second}, &Adoption{})
		}), whole: []string{"list beats"}},
		"speakFor": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, _ []byte) error {
			return c.g.speakFor(ctx, s, f, Statement{
				Floor: 100_000, Ahead: time.Second,
				Witness: []Testimony{{record{Own: map[string]own{rowOf(3, "C"): {Count: 2}}, Lines: map[string]Pair{"tag/t": {0, 200}}}}},
			}, &Adoption{})
		}, func(c *scene) {
			c.peer(rowOf(2, "B"), "b", driver.Beat{Count: 3, Grants: 500}, "")
			f, _ := c.fence(Fence{ID: "F", Ask: "ASK", Manual: true})
			c.g.fence = f
		})},
		"write, for a person": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, _ []byte) error {
			f.Manual = true
			return c.g.write(ctx, s, f, Statement{}, nil, nil)
		}, func(c *scene) { c.fence(Fence{ID: "F", Ask: "ASK", Manual: true}) }), ignores: []string{"swap loss"}},
		"awaitAccount": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			_, err := c.g.awaitAccount(ctx, s, time.Second)
			return err
		}, func(c *scene) { c.fence(Fence{ID: "F", Ask: "ASK", Manual: true}) })},
		"awaitDecision": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			return c.g.awaitDecision(ctx, s, "G", Statement{Wait: time.Second}, &Adoption{})
		})},
		"declare": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			_, err := c.g.declare(ctx, Statement{Row: "b", Floor: 100_000, DryRun: true})
			return err
		}, func(c *scene) {
			c.peer(rowOf(2, "B"), "b", driver.Beat{Count: 3, Grants: 500}, "")
			c.fence(Fence{ID: "F", Ask: "ASK", Missing: []Node{{Row: rowOf(2, "B")}}})
		})},
		"endRow": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := c.g.endRow(ctx, s, Statement{Row: "b"})
			return err
		}, member, func(c *scene) { c.peer(rowOf(2, "B"), "b", driver.Beat{Count: 3}, ""); c.g.shared = false })},
		"Nodes": {set: healing(func(c *scene, ctx context.Context, s store, f *Fence, _ []byte) error {
			_, err := c.g.Nodes(ctx)
			return err
		}, func(c *scene) {
			f, _ := c.fence(Fence{ID: "F", Ask: "ASK", More: 1})
			c.g.fence = f
		})},
		"LookAt": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := LookAt(ctx, s, c.t.TempDir()+"/none")
			return err
		}, func(c *scene) {
			c.put(driver.TableGuard, rowFormat, []byte(`{"format":3,"by":"1"}`))
		})},
		"judgeAs": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			r := c.g.witness.snapshot()
			r.Latch, r.Lines = nil, map[string]Pair{"tag/t": {0, 1}}
			_, err := judgeAs(ctx, s, r)
			return err
		})},
		"judgeAs, of a store that was retired": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			r := c.g.witness.snapshot()
			c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(c.latchesRetired(&r)))
			r.Lines = nil
			_, err := judgeAs(ctx, s, r)
			return err
		}), whole: []string{"row " + driver.RowCopied("C")}},
		"prepare": {set: simple(func(c *scene, ctx context.Context, s store) error { _, _, err := c.g.prepare(ctx, s); return err })},
		"prepare, after a decision": {set: healing(func(c *scene, ctx context.Context, s store, _ *Fence, _ []byte) error {
			_, _, err := c.g.prepare(ctx, s)
			return err
		}, func(c *scene) {
			c.put(driver.TableFence, driver.RowFence, nil)
			c.decided(1, nil)
			c.g.state = Joining
		}), whole: append([]string{"row " + driver.RowJoins, "row 0"}, guard...)}, // the rows are for a process that registers
		"join, at first": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.join(ctx, s) })},
		"join, at last": {set: simple(func(c *scene, ctx context.Context, s store) error {
			err := c.g.join(ctx, s)
			if err == nil && c.g.state != Serving {
				err = errors.New("it does not serve")
			}
			return err
		}, member, func(c *scene) {
			c.store.primary = "p"
			c.g.state, c.g.me.primary, c.g.me.asks, c.g.me.known, c.g.me.quick = Joining, "p", true, true, true
			c.put(tablePrimaries, rowOf(9, "X"), []byte("p"))
		}), whole: []string{"list primaries"}},
		"join, before its survey": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.join(ctx, s) }, member, func(c *scene) {
			c.store.shared = false // nobody shares it, and its survey is under way
			c.g.state, c.g.me.known, c.g.me.busy, c.g.me.waits = Joining, false, true, c.g.now()-surveyHead
		}), whole: append([]string{"row 0", "row " + driver.RowJoins}, guard...)},
		"join, with its survey": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.join(ctx, s) }, member, func(c *scene) {
			c.g.state, c.g.me.known, c.g.me.quick = Joining, false, true
			c.peer(rowOf(3, "E"), "before", driver.Beat{Count: 5}, "")
			c.know(func(b *record) { b.Own[rowOf(3, "E")] = own{Count: 5} })
		})},
		"register": {set: simple(func(c *scene, ctx context.Context, s store) error {
			_, err := c.g.register(ctx, s)
			return err
		}, func(c *scene) {
			c.joins(1)
			c.peer(rowOf(1, "R"), "me", driver.Beat{Count: 5}, "left")
			c.know(func(b *record) {
				b.Own[rowOf(1, "R")] = own{Count: 5}
				b.Left = &departure{Row: rowOf(1, "R"), Joins: 1, Boot: "boot"}
			})
			SetUptime(c.t, func() (string, int64) { return "boot", 1 })
		})},
		"renew": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.renew(ctx, s) }, member)},
		"closeEarlier": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.closeEarlier(ctx, s) }, member, func(c *scene) {
			c.put(driver.TableGuard, rowCompacted, driver.EncodeCounter(1))
			c.peer(rowOf(3, "E"), "before", driver.Beat{Count: 5}, "")
			c.know(func(b *record) { b.Own[rowOf(3, "E")] = own{Count: 5} })
		})},
		"ready": {set: simple(func(c *scene, ctx context.Context, s store) error { _, err := c.g.ready(ctx, s); return err }, member, func(c *scene) {
			c.g.me.asks, c.g.me.quick = true, true
			c.put(tablePrimaries, c.g.me.row, []byte("p"))
		}), whole: []string{"list primaries"}},
		"sayOfItself": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.announce(ctx, s) }, member)},
		"read":        {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.read(ctx, s) }, member, aSilentRow)},
		"peek":        {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.peek(ctx, s, rowOf(2, "B")) }, member), whole: []string{"row "}},
		"survey":      {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.survey(ctx, s) }, member, aSilentRow, withPool, func(c *scene) { c.g.me.known = false })},
		"survey, of the lines": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.survey(ctx, s) }, member, withPool, func(c *scene) {
			c.g.me.rowsAgain = c.g.now() + time.Hour
		})},
		"survey, of what is owed": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.survey(ctx, s) }, member, func(c *scene) {
			c.put(driver.TableGuard, driver.RowCopied("C"), []byte("~")) // the store's identity stands in for it
			c.put(driver.TableGuard, rowOwed+"tag/t", driver.EncodeRow(owedLine{Pair: Pair{0, 50}}))
		})},
		"survey, of the lines and what is owed": {set: simple(func(c *scene, ctx context.Context, s store) error { return c.g.survey(ctx, s) }, member, func(c *scene) {
			c.g.me.rowsAgain, c.g.blocked = c.g.now()+time.Hour, map[string]bool{"tag/t": true}
			c.put(driver.TableGuard, rowOwed+"tag/t", driver.EncodeRow(owedLine{Pair: Pair{0, 50}}))
		})},
		"compact": {set: simple(func(c *scene, ctx context.Context, s store) error {
			beats, err := readRows(ctx, s, driver.TableBeats)
			if err != nil {
				return err
			}
			return c.g.compact(ctx, s, beats, 0)
		}, func(c *scene) {
			for i := range int64(compactAt) {
				c.put(driver.TableBeats, rowOf(i+1, "E"), driver.Beat{Count: 1}.EncodeEnded("left"))
			}
			c.joins(compactAt + 1)
			c.member(compactAt+1, 2)
		}), whole: removed},
		"command: Ping":     {set: command(func(ctx context.Context, o driver.Store) error { return o.Ping(ctx) })},
		"command: Allocate": {set: command(func(ctx context.Context, o driver.Store) error { _, err := o.Allocate(ctx, "t", 10, ""); return err })},
		"command: CreateTag": {set: command(func(ctx context.Context, o driver.Store) error {
			def, _ := hapax.Tag{Name: "u"}.WithDefaults()
			_, err := o.CreateTag(ctx, def, hapax.CreateExplicit)
			return err
		})},
		"command: worker": {set: command(func(ctx context.Context, o driver.Store) error {
			l, err := acquire(ctx, o)
			if err == nil {
				l, err = o.ExtendWorker(ctx, l, layout, testTerm())
			}
			if err == nil {
				err = o.SealWorker(ctx, l, l.Grant.Lo)
			}
			return err
		})},
		"worker": {set: simple(func(c *scene, ctx context.Context, _ store) error {
			l, err := acquire(ctx, c.g)
			if err == nil {
				l, err = c.g.ExtendWorker(ctx, l, layout, testTerm())
			}
			if err == nil {
				err = c.g.SealWorker(ctx, l, l.Grant.Lo)
			}
			return err
		}, member)},
		"a claim of a lease": {set: simple(func(c *scene, ctx context.Context, s store) error {
			err := c.g.claimed(ctx, s, hapax.Lease{Pool: "p", Worker: 1}, Pair{}, false)
			if c.store.fails > len(c.store.made()) { // the verdict
				err = nil
			}
			return err
		}, member, withPool)},
		"CreateTag": {set: simple(func(c *scene, ctx context.Context, _ store) error {
			def, _ := hapax.Tag{Name: "t"}.WithDefaults()
			_, err := c.g.CreateTag(ctx, def, hapax.CreateFirstUse)
			if c.store.fails > len(c.store.made()) { // it exists
				err = nil
			}
			return err
		}, member, func(c *scene) { c.know(func(b *record) { b.Lines = map[string]Pair{"tag/t": {0, 1}} }) })},
		"Ping": {set: simple(func(c *scene, ctx context.Context, _ store) error { return c.g.Ping(ctx) }, member)},
		"HandBack": {set: simple(func(c *scene, ctx context.Context, _ store) error {
			a, err := c.g.Allocate(ctx, "t", 10, "")
			if err == nil {
				err = c.g.HandBack(ctx, a, a.Grant.Lo+1)
			}
			return err
		}, member)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { failing(t, c.set, c.ignores...) })
			synctest.Test(t, func(t *testing.T) { garbling(t, c.set, c.whole...) })
		})
	}
}

// aSilentRow is the row of another process, that is to be marked silent.
func aSilentRow(c *scene) {
	row, beat := rowOf(2, "B"), driver.Beat{Count: 3}
	c.joins(2)
	c.peer(row, "b", beat, "")
	c.g.peers[row] = &sighting{value: string(beat.Encode()), beat: beat, at: c.g.now() - time.Minute}
	c.g.me.joins, c.g.me.seen = 2, 2
	c.know(func(b *record) { b.Peers[row] = peer{Name: "b", Count: 3} })
}

// testTerm is the term of a lease at the time of a bubble.
func testTerm() hapax.Term {
	return hapax.Term{Now: time.Now().AddDate(15, 0, 0), Length: time.Second, TTL: 2 * time.Second}
}

func withPool(c *scene) {
	c.t.Helper()
	if _, err := c.store.CreatePool(c.t.Context(), "p", leaf()); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.store.Store.HealWorker(c.t.Context(), leaf(), driver.Worker{Pool: "p", ID: 1, Mark: 50, Token: 2}); err != nil {
		c.t.Fatal(err)
	}
}

// leaf is the layout "leaf" as stores keep it.
func leaf() string {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		panic(err)
	}
	return layout.String()
}

// An unanswering store leaves calls without an answer.
type unanswering struct{ *counted }

func (unanswering) StoreID(ctx context.Context) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func (unanswering) DeletePool(ctx context.Context, _ string) (driver.Pool, error) {
	<-ctx.Done()
	return driver.Pool{}, ctx.Err()
}

// A call ends with the guard's time-out where the store does not answer, or cannot be dialled; where
// it waits for a node that joins that wait counts.
func TestCallsAreBounded(t *testing.T) {
	reads := func(c *scene, ctx context.Context) error { _, err := c.g.StoreID(ctx); return err }
	changes := func(c *scene, ctx context.Context) error { _, err := c.g.DeletePool(ctx, "p"); return err }
	serves := func(c *scene) {
		c.g.mu.Lock()
		defer c.g.mu.Unlock()
		c.g.state = Serving
		close(c.g.changed)
		c.g.changed = make(chan struct{})
	}
	undialled := func(c *scene) {
		h := newHandle(func(ctx context.Context) (driver.Store, error) { <-ctx.Done(); return nil, ctx.Err() }, false)
		h.clock, h.again = c.g.opts.Clock, true
		c.g.calls = h
		c.t.Cleanup(func() { _ = h.close() })
	}
	for name, v := range map[string]struct {
		call func(*scene, context.Context) error
		set  func(*scene)
	}{
		"one that reads":                  {reads, func(*scene) {}},
		"... without a handle":            {reads, undialled},
		"one that changes":                {changes, func(*scene) {}},
		"... without a handle, too":       {changes, undialled},
		"... while the node joins":        {changes, func(c *scene) { c.g.state = Joining }},
		"... and serves half-way through": {changes, func(c *scene) { c.g.state = Joining; time.AfterFunc(c.g.opts.Timeout/2, func() { serves(c) }) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			c.hasStore(unanswering{c.store})
			c.g.opts.Timeout = 3 * time.Second
			v.set(c)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := c.g.now()
			if err := v.call(c, ctx); err == nil || c.g.now()-began != c.g.opts.Timeout {
				t.Errorf("%s ends after %v: %v; want %v", name, c.g.now()-began, err, c.g.opts.Timeout)
			}
		})
	}
}
