package witness_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// standing returns the fence in the store; nil if there is none.
func (f *fleet) standing() *witness.Fence {
	f.t.Helper()
	raw := f.row(driver.TableFence, driver.RowFence)
	if raw == nil {
		return nil
	}
	fence := new(witness.Fence)
	if err := json.Unmarshal(raw, fence); err != nil {
		f.t.Fatal(err)
	}
	return fence
}

// presides reports whether the node is the healer.
func (f *fleet) presides(m *machine) bool {
	f.t.Helper()
	nodes, err := f.store.ListRows(f.t.Context(), driver.TableNodes, "", 100)
	if err != nil {
		f.t.Fatal(err)
	}
	run := f.standing().Healer[:20]
	return slices.ContainsFunc(nodes, func(r driver.Row) bool {
		return strings.Contains(r.Name, run) && strings.Contains(string(r.Value), `"name":"`+m.name+`"`)
	})
}

// serve waits until all are granted something, without a grant of numbers.
func (f *fleet) serve(most time.Duration, nodes ...*machine) {
	f.t.Helper()
	began := time.Now()
	for _, m := range nodes {
		for m.Status().State != witness.Serving {
			if time.Since(began) > most {
				f.t.Fatalf("%s does not serve after %v: %+v", m.name, most, m.Status())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// until waits for something that comes soon.
func (f *fleet) until(what string, is func() bool) {
	f.t.Helper()
	for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			f.t.Fatalf("%s does not come: %+v", what, f.standing())
		}
	}
}

// A node's verdict is that of its latest row: a store that holds this one has not lost
// an earlier one, whatever became of that.
func TestOnlyTheLatestRowJudges(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		a.within(12 * time.Second)
		a.must("t", 10)
		rows, err := f.store.ListRows(t.Context(), driver.TableBeats, "", 10)
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		first := rows[0].Name
		a.crash()
		a.start()
		a.within(12 * time.Second)
		a.must("t", 10)
		a.crash()
		if ok, err := f.store.SwapRow(t.Context(), driver.TableBeats, first, f.row(driver.TableBeats, first), nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
		a.start()
		a.within(12 * time.Second)
		if f.row(driver.TableGuard, "decision") != nil {
			t.Error("a store that lacks nothing was fenced and healed")
		}
	})
}

// A copy is put back that was taken during the healing: it holds the word that was asked
// with, and lacks what was said since. All who have spoken speak again.
func TestCopyFromDuringTheHealing(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, d := f.start("a"), f.start("b"), f.start("d")
		f.serve(12*time.Second, a, b, d)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		a.must("t", 100)
		d.must("t", 100)
		d.crash()
		f.store.Restore(backup)
		f.until("the question", func() bool { fence := f.standing(); return fence != nil && fence.Ask != "" })
		during := f.store.Snapshot()
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		time.Sleep(time.Second)
		f.store.Restore(during)
		time.Sleep(3 * time.Second)
		if fence := f.standing(); fence == nil || len(fence.Missing) != 1 {
			t.Errorf("the fence is %+v; want one missing", fence)
		}
		d.start()
		f.serve(20*time.Second, a, b, d)
		for _, m := range []*machine{a, b, d} {
			m.must("t", 100)
		}
	})
}

// An operator's floor was too low. The node that it was given for returns: the decision
// raised the tokens, so that its pairs are lower than the store's; its marks are not.
func TestReturnsWithTheLowerPair(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		for range 10 {
			b.must("t", 1000)
		}
		b.crash()
		f.store.Restore(backup)
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		if _, err := a.Settle(t.Context(), witness.Statement{Row: "b", Floor: 5000}); err != nil {
			t.Fatal(err)
		}
		f.serve(5*time.Second, a)
		b.start()
		f.serve(12*time.Second, b)
		a.must("t", 100)
		b.must("t", 100)
	})
}

// alarms collects what operators are told of numbers that may have been used twice.
type alarms struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (a *alarms) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.Write(p)
}

func (a *alarms) all() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.String()
}

func (a *alarms) options() witness.Options {
	return witness.Options{Log: slog.New(slog.NewTextHandler(a, &slog.HandlerOptions{Level: slog.LevelError}))}
}

// What may have been used twice is told exactly: from where the decision set the line,
// to where it was granted since, and no further than the node had used it.
func TestAlarmsTellTheRange(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		told := new(alarms)
		a, b := f.start("a"), f.start("b", told.options())
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		b.must("t", 10_000)
		b.crash()
		f.store.Restore(backup)
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		if _, err := a.Settle(t.Context(), witness.Statement{Row: "b", Floor: 5000}); err != nil {
			t.Fatal(err)
		}
		f.serve(5*time.Second, a)
		a.must("t", 100)
		b.start()
		f.serve(12*time.Second, b)
		if text := told.all(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "line=tag/t from=5000 to=5100") {
			t.Errorf("told is %q; want one alarm, from 5000 to 5100", text)
		}
		f.twice = nil // as the operator's floor was too low
	})
}

// What a node handed back it has not used: where others spoke for it, its return raises
// no alarm.
func TestHandBackIsNoAlarm(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		told := new(alarms)
		a, b := f.start("a"), f.start("b", told.options())
		f.serve(12*time.Second, a, b)
		granted, err := b.Allocate(t.Context(), "t", 1000, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.HandBack(t.Context(), granted, granted.Grant.Lo+10); err != nil {
			t.Fatal(err)
		}
		f.enter("b", "t", hapax.Grant{Lo: granted.Grant.Lo, Hi: granted.Grant.Lo + 10})
		b.stop()
		time.Sleep(3 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(3 * time.Second)
		f.store.Restore(backup)
		time.Sleep(1100 * time.Millisecond)
		f.serve(12*time.Second, a)
		a.must("t", 10)
		b.start()
		f.serve(12*time.Second, b)
		b.must("t", 10)
		if text := told.all(); text != "" {
			t.Errorf("told is %q; want nothing", text)
		}
	})
}

// A new node joins a store that was wiped, beside one that has not noticed yet, and the
// primary changes: that does not shorten its wait.
func TestJoinerAtAChangedPrimary(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		b := f.start("b")
		b.link.setPrimary("p1")
		f.serve(12*time.Second, b)
		b.must("t", 1000)
		b.link.hang()
		f.store.Restore(emptyStore())
		time.AfterFunc(3*time.Second, b.link.unhang)
		a := f.start("a")
		a.link.setPrimary("p1")
		time.Sleep(500 * time.Millisecond)
		a.link.setPrimary("p2")
		b.link.setPrimary("p2")
		f.serve(20*time.Second, a, b)
		for _, m := range []*machine{a, b} {
			if err := m.take("t", 100); err != nil {
				t.Error(err)
			}
		}
	})
}

// A joiner finds at another primary that the others have seen it join. That may be from
// before: it waits until they have met this primary, also where it had not beaten at the one before.
func TestSeenFromBeforeThePrimaryChanged(t *testing.T) {
	for _, beaten := range []bool{false, true} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			a.link.setPrimary("p1")
			f.serve(12*time.Second, a)
			b := f.start("b")
			b.link.setPrimary("p1")
			b.link.setBefore(func(op string) error {
				if op != "beat" || beaten {
					return nil
				}
				b.link.cut()
				return errDown
			})
			time.Sleep(time.Second / 2)
			b.link.cut()
			time.Sleep(3 * time.Second) // a says that it has seen b
			replica := f.store.Snapshot()
			a.must("t", 1000)
			a.link.hang()
			f.store.Restore(replica)
			a.link.setPrimary("p2")
			b.link.setPrimary("p2")
			b.link.setBefore(nil)
			b.link.restore()
			time.AfterFunc(2*time.Second, a.link.unhang)
			for range 20 {
				_ = b.take("t", 100)
				time.Sleep(100 * time.Millisecond)
			}
			b.within(20 * time.Second)
			a.within(20 * time.Second)
		})
	}
}

// Who spoke for a decision waits no second time.
func TestHealsWithoutASecondWait(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		f.serve(12*time.Second, a, b, c)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(3 * time.Second)
		a.must("t", 100)
		f.store.Restore(backup)
		began := time.Now()
		time.Sleep(1100 * time.Millisecond)
		f.serve(12*time.Second, a, b, c)
		if took := time.Since(began); took > 2*wait { // 7 s as a rule, and 9 if the nodes meet the fence unluckily
			t.Errorf("they serve after %v; want less than twice %v", took, wait)
		}
		a.must("t", 100)
	})
}

// ... but goes on only when the others who spoke have joined again, too, and know of it:
// else the store could go back once more, and nobody who lives would miss it.
func TestJoinsAgainTogether(t *testing.T) {
	for _, rows := range []int{0, 2} { // the other has not joined again, or does not know yet that this one has
		world(t, func(t *testing.T, f *fleet) {
			a, b := f.start("a"), f.start("b")
			f.serve(12*time.Second, a, b)
			time.Sleep(2 * time.Second)
			backup := f.store.Snapshot()
			time.Sleep(1500 * time.Millisecond)
			a.must("t", 100)
			f.store.Restore(backup)
			f.until("the question", func() bool { fence := f.standing(); return fence != nil && fence.Ask != "" })
			if f.presides(a) { // it will be the first to join again
				a, b = b, a
			}
			f.until("the decision", func() bool { return f.standing() == nil && len(f.beats()) >= rows })
			a.link.hang()
			for range 30 {
				time.Sleep(100 * time.Millisecond)
				if b.Status().State == witness.Serving {
					t.Fatal("it is granted numbers that nobody else would miss")
				}
			}
			a.link.unhang()
			for _, m := range []*machine{a, b} {
				m.within(12 * time.Second)
			}
		})
	}
}

// ... unless it was out of contact since: then it may have missed another loss.
func TestSpokeAndWasCutOff(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, d := f.start("a"), f.start("b"), f.start("d")
		f.serve(12*time.Second, a, b, d)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		d.must("t", 100)
		d.crash()
		f.store.Restore(backup)
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		if f.presides(b) {
			a, b = b, a
		}
		time.Sleep(time.Second)
		b.link.cut()
		if _, err := a.Settle(t.Context(), witness.Statement{Row: "d", Floor: 100_000, Wait: time.Minute}); err != nil {
			t.Fatal(err)
		}
		f.serve(20*time.Second, a)
		time.Sleep(wait)
		a.stop()
		healed := f.store.Snapshot()
		c := f.start("c")
		f.serve(12*time.Second, c)
		for range 3 {
			c.must("t", 1000)
		}
		c.link.hang()
		f.store.Restore(healed)
		time.AfterFunc(2*time.Second, c.link.unhang)
		b.link.restore()
		b.within(20 * time.Second)
		c.within(20 * time.Second)
	})
}

// The store goes back to before a decision that one node alone has taken, in which others
// were heard that have died since. That node, or its next process, knows by the decision
// that the store is behind, and speaks for all that had joined before it.
func TestGoesBackAfterADecision(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		f.serve(12*time.Second, a, b, c)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		c.must("t", 5000)
		f.store.Restore(backup)
		f.until("that all have found it", func() bool { fence := f.standing(); return fence != nil && len(fence.Found) == 3 })
		c.link.hang() // so that another asks
		f.until("the question", func() bool { fence := f.standing(); return fence != nil && fence.Ask != "" })
		c.link.unhang()
		if f.presides(b) {
			a, b = b, a
		}
		f.until("what was heard", func() bool { fence := f.standing(); return fence == nil || fence.Raised != "" })
		b.link.hang()
		c.link.cut()
		f.until("the decision", func() bool { return a.Status().State == witness.Joining })
		a.crash()
		c.crash()
		f.store.Restore(backup)
		b.link.unhang()
		f.until("the fence of b", func() bool { return f.standing() != nil })
		a.start()
		for _, m := range []*machine{a, b} {
			m.within(40 * time.Second)
		}
	})
}

// A wiped store is healed; then the backup of the one before is put back, to which a node
// that joined in between never belonged: all go on.
func TestWipedHealedAndPutBack(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		a.must("t", 1000)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		b.must("t", 1000)
		f.store.Restore(emptyStore())
		time.Sleep(1100 * time.Millisecond)
		f.serve(20*time.Second, a, b)
		a.must("t", 1000)
		c := f.start("c")
		f.serve(12*time.Second, c)
		c.must("t", 1000)
		time.Sleep(2 * time.Second)
		f.store.Restore(backup)
		time.Sleep(1100 * time.Millisecond)
		f.serve(20*time.Second, a, b, c)
		for _, m := range []*machine{a, b, c} {
			m.must("t", 1000)
		}
	})
}

// A new node is the first on a store that was wiped, and would use it: one that lives
// finds the loss while the new one waits.
func TestNewNodeOnAWipedStore(t *testing.T) {
	for _, putBack := range []bool{false, true} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			f.serve(12*time.Second, a)
			a.must("t", 5000)
			backup := f.store.Snapshot()
			a.link.hang()
			f.store.Restore(emptyStore())
			time.AfterFunc(2500*time.Millisecond, a.link.unhang)
			c := f.start("c")
			go func() { // what its service would make at once
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				def, _ := hapax.Tag{Name: "t"}.WithDefaults()
				_, _ = c.CreateTag(ctx, def, hapax.CreateFirstUse)
			}()
			if putBack { // it has used nothing of the wiped one, and belongs to neither yet
				time.Sleep(1500 * time.Millisecond)
				f.store.Restore(backup)
			}
			time.Sleep(3 * time.Second)
			f.serve(25*time.Second, a, c)
			c.within(20 * time.Second)
			a.within(20 * time.Second)
			time.Sleep(20 * time.Second)
		})
	}
}

// The store is away for a minute, for all: they go on under their rows when it is back,
// as soon as they have met it all.
func TestOutage(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		nodes := []*machine{f.start("a"), f.start("b"), f.start("c")}
		f.serve(12*time.Second, nodes...)
		time.Sleep(5 * time.Second)
		before := f.row(driver.TableGuard, driver.RowJoins)
		for _, m := range nodes {
			m.link.cut()
		}
		time.Sleep(time.Minute)
		for _, m := range nodes {
			m.link.restore()
		}
		began := time.Now()
		for _, m := range nodes {
			m.within(5 * time.Second)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("all are granted numbers %v after the return of the store; want 2 s at most", took)
		}
		if !bytes.Equal(before, f.row(driver.TableGuard, driver.RowJoins)) {
			t.Error("they have joined again")
		}
	})
}

// A node was cut off for long. Another joined without it, and the store went back to a
// copy from before: it holds the row of the one that returns as that left it. Who has
// been there all the time finds the loss first.
func TestReturnsToARestoredStore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(5 * time.Second)
		a.link.cut()
		time.Sleep(100 * time.Millisecond)
		backup := f.store.Snapshot()
		time.Sleep(20 * time.Second)
		c := f.start("c")
		f.serve(12*time.Second, c)
		for range 5 {
			b.must("t", 1000)
			c.must("t", 1000)
		}
		b.link.hang()
		c.link.hang()
		time.AfterFunc(2*time.Second, b.link.unhang)
		time.AfterFunc(2*time.Second, c.link.unhang)
		f.store.Restore(backup)
		a.link.restore()
		for _, m := range []*machine{a, b, c} {
			m.within(30 * time.Second)
		}
	})
}

// A node finds a fence, and not the loss: its own row is there, and as many have joined
// since as before. What it surveyed of others tells it, so that it speaks for those who
// have ended.
func TestFindsTheLossByOthersRows(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		d := f.start("d")
		f.serve(12*time.Second, d)
		c := f.start("c")
		f.serve(12*time.Second, c)
		d.must("t", 100)
		d.crash() // for good; c alone knows that it has ended
		time.Sleep(12 * time.Second)
		backup := f.store.Snapshot()
		b := f.start("b")
		b.link.set(func(op string) error { // it does not learn that d has ended
			if op == "tags" {
				return errDown
			}
			return nil
		}, nil)
		time.Sleep(2500 * time.Millisecond) // c has seen it join
		b.link.hang()
		c.crash() // idle since it joined: of its own heartbeats its witness knows the first
		f.store.Restore(backup)
		e := f.start("e") // as many have joined now as c knew
		time.AfterFunc(time.Second, b.link.unhang)
		time.Sleep(3 * time.Second)
		c.start()
		b.link.set(nil, nil)
		for _, m := range []*machine{b, c, e} {
			m.within(30 * time.Second)
		}
	})
}
