package witness

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
)

// A store is judged by its identity: one that goes on in the place of the node's own is its own from
// then on, an empty one was lost, and one that has none cannot be judged.
func TestJudgesTheIdentity(t *testing.T) {
	c := newScene(t)
	c.store.ids = func(string) string { return "" }
	if err := c.g.checkStore(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreUnavailable) || !strings.Contains(err.Error(), "no identity") {
		t.Errorf("without an identity: %v", err)
	}
	c = newScene(t, func(b *record) { b.Store = "mine" })
	c.put(driver.TableGuard, rowReplaces+"mine", []byte(`"F"`))
	id, err := c.store.Store.StoreID(t.Context())
	if err2 := c.g.checkStore(t.Context(), c.store); err != nil || err2 != nil || c.g.witness.StoreID() != id || !slices.Contains(c.g.witness.stores(), "mine") {
		t.Errorf("in its place: %v, %v, the witness knows %q", err, err2, c.g.witness.stores())
	}
	c = newScene(t, func(b *record) { b.Store = "mine" })
	if err := c.g.checkStore(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreReplaced) || !errors.Is(err, hapax.ErrFenced) || c.g.state != Refusing {
		t.Errorf("an empty one: %v, it is %s", err, c.g.state)
	}
}

// A node that knows a store refuses while there is none, and makes one only after it was gone for long.
func TestStoreThatIsNotThere(t *testing.T) {
	none := fmt.Errorf("x: %w", &driver.WouldChangeError{What: driver.NewStore})
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t, func(b *record) { b.Store = "mine" })
		w := c.g.witness
		step := func(wait time.Duration, err error, knows bool) {
			t.Helper()
			time.Sleep(wait)
			if c.g.seeIfGone(err); w.KnowsStore() != knows {
				t.Errorf("after %v, and %v: it must not make one: %v", wait, err, w.KnowsStore())
			}
		}
		time.Sleep(time.Hour)
		step(0, errInjected, true)
		if c.g.state != Joining {
			t.Errorf("a store that does not answer: it is %s", c.g.state)
		}
		step(0, none, true)
		if c.g.state != Refusing || w.latch().State != Refusing || !strings.Contains(w.latch().Why, "there is none now") {
			t.Errorf("it is %s, %+v", c.g.state, w.latch())
		}
		step(15*time.Second-1, none, true)
		step(1, none, false)
		step(0, errInjected, false) // which tells nothing
		step(0, nil, true)
		step(0, none, true)
		step(10*time.Second, errInjected, true)
		step(10*time.Second, none, true) // since when it is gone is counted anew
		step(15*time.Second, none, false)
		other := &driver.WouldChangeError{What: "a tag"}
		step(0, other, false)
		step(0, none, true)
	})
	c := newScene(t)
	if c.g.seeIfGone(none); c.g.state != Joining || c.g.witness.KnowsStore() {
		t.Errorf("a node that knows none: it is %s", c.g.state)
	}
}

// The answer to a call that made no beat says why: by the row, the fence, and a decision that explains
// a loss.
func TestJudgesAnAnswer(t *testing.T) {
	fine, low := driver.Beat{Count: 2}.Encode(), driver.Beat{Count: 1}.Encode()
	for name, v := range map[string]struct {
		set   func(c *scene, p *pulse)
		at    driver.Contact
		want  string
		is    error
		state State
	}{
		"nothing is wrong any more":  {func(*scene, *pulse) {}, driver.Contact{Row: fine}, "lifted meanwhile", hapax.ErrStoreUnavailable, Serving},
		"... and a decision is new":  {func(c *scene, _ *pulse) { c.decided(1, nil) }, driver.Contact{Row: fine}, "lifted meanwhile", hapax.ErrStoreUnavailable, Serving},
		"it is behind":               {func(*scene, *pulse) {}, driver.Contact{Row: low}, "heartbeat 1", hapax.ErrStoreRolledBack, Refusing},
		"... as a decision explains": {func(c *scene, _ *pulse) { c.decided(1, nil) }, driver.Contact{Row: low}, "ended as healed", hapax.ErrStoreUnavailable, Joining},
		"under another row":          {func(_ *scene, p *pulse) { p.Row = "x" }, driver.Contact{Row: low}, "abandoned", hapax.ErrStoreUnavailable, Serving},
		"a fence that is not sound":  {func(*scene, *pulse) {}, driver.Contact{Row: fine, Fence: []byte("~")}, "fence", hapax.ErrStoreCorrupt, Serving},
		"a store that is closed":     {func(*scene, *pulse) {}, driver.Contact{Row: fine, Fence: []byte(`{"id":"F","closed":"rows are missing"}`)}, "rows are missing", hapax.ErrStoreUnavailable, Serving},
		"a row that is not sound":    {func(*scene, *pulse) {}, driver.Contact{Row: []byte("~")}, "", hapax.ErrStoreCorrupt, Serving},
	} {
		c := servingScene(t)
		p := c.g.pulse(false)
		v.set(c, &p)
		err := c.g.judge(t.Context(), c.store, p, v.at)
		if !errors.Is(err, v.is) || !strings.Contains(err.Error(), v.want) || c.g.state != v.state {
			t.Errorf("%s: %v, it is %s; want %q, %s", name, err, c.g.state, v.want, v.state)
		}
	}
}

// Used tags are compared in one call, and once more by themselves where that answer was too old.
func TestComparesOnce(t *testing.T) {
	var high Pair
	set := func() *scene {
		c := servingScene(t)
		c.tag("u", 50)
		u, err := c.store.Store.HealTag(t.Context(), hapax.Tag{Name: "u", Start: 1, Step: 1000, Mark: 50, Token: 4})
		if err != nil || u.Token < 4 {
			t.Fatal(u, err)
		}
		high = Pair{u.Token, u.Mark}
		c.know(func(b *record) { b.Lines = map[string]Pair{"tag/t": {0, 100}, "tag/u": high} })
		c.g.used.add("t")
		c.g.used.add("u")
		c.g.used.turn = c.g.now() + time.Hour
		return c
	}
	c := set()
	if err := c.g.compare(t.Context(), c.store); err != nil || strings.Join(c.store.made(), " ") != "named" {
		t.Errorf("it calls %v, %v", c.store.made(), err)
	}
	c.store.reset(0)
	if err := c.g.compare(t.Context(), c.store); err != nil || len(c.store.made()) > 0 {
		t.Errorf("where nothing is due: %v, %v", c.store.made(), err)
	}
	c = set()
	c.store.reset(1)
	if err := c.g.compare(t.Context(), c.store); !errors.Is(err, errInjected) || !c.g.used.due(c.g.now()) {
		t.Errorf("a call that fails: %v, due again %v", err, c.g.used.due(c.g.now()))
	}
	if err := c.g.compare(t.Context(), c.store); err != nil || c.g.used.due(c.g.now()) {
		t.Errorf("the next: %v, due again %v", err, c.g.used.due(c.g.now()))
	}
	c = set()
	c.store.named = func(tags *[]hapax.Tag) { *tags = nil }
	if err := c.g.compare(t.Context(), c.store); err != nil || c.g.state != Serving {
		t.Errorf("a server that lags behind: %v, it is %s", err, c.g.state)
	}
	c = set()
	c.know(func(b *record) { b.Lines["tag/u"] = Pair{high.Token, high.Mark + 1} })
	if err := c.g.compare(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreRolledBack) || !strings.Contains(err.Error(), fmt.Sprintf("is at token %d, mark %d, and was at token %[1]d, mark %[3]d", high.Token, high.Mark, high.Mark+1)) {
		t.Errorf("a lower mark: %v", err)
	}
	u := &used{}
	for i := range driver.MaxNamed + 50 {
		u.add(fmt.Sprint("t", i))
	}
	u.since, u.turn = nil, 0
	for tag := range u.known {
		u.known[tag] = false
	}
	seen := map[string]int{}
	for range 4 {
		for _, tag := range u.next(1) {
			seen[tag]++
		}
	}
	if len(seen) != driver.MaxNamed+50 {
		t.Errorf("in turn %d tags are compared", len(seen))
	}
	u.again([]string{"t1"})
	if u.add("t1"); len(u.since) != 1 {
		t.Errorf("a tag that waits is compared %d times", len(u.since))
	}
}

// A call that was made while a fence stood is answered after the decision about it: the fence is not taken,
// neither in the process nor in the witness, and so not raised again.
func TestFenceThatWasDecidedAboutMeanwhile(t *testing.T) {
	c := newScene(t)
	c.joins(1)
	row := c.member(1, 2)
	f := &Fence{ID: "F", Why: "a test"}
	told := 0
	c.g.opts.Changed = func(Status) { told++ }
	if !c.g.takeFenceUnder(row, f) || c.g.state != Fenced || c.g.witness.latch().Fence != "F" {
		t.Fatalf("a fence that stands: %s, %+v", c.g.state, c.g.witness.latch())
	}
	if told != 1 || len(c.g.kick) != 1 {
		t.Errorf("of a fence that stands it tells %d times, and has %d turns taken at once; want one each", told, len(c.g.kick))
	}
	d := &decision{decisionID: decisionID{1, "D"}, Fence: *f, Joins: 1}
	c.putJSON(driver.TableGuard, rowDecision, d)
	if err := c.g.catchUp(t.Context(), c.store, d, c.g.witness.StoreID()); err != nil {
		t.Fatal(err)
	}
	<-c.g.kick
	told = 0
	if c.g.takeFenceUnder(row, f) || c.g.state != Joining || c.g.fence != nil || c.g.witness.latch().State != "" {
		t.Errorf("the fence that was decided about: %s, %v, %+v", c.g.state, c.g.fence, c.g.witness.latch())
	}
	if told > 0 || len(c.g.kick) > 0 {
		t.Errorf("of the fence that was decided about it tells %d times, and has %d turns taken at once", told, len(c.g.kick))
	}
}

// A call whose answer shows a fence is abandoned where the row ends before the fence is taken: with no error its
// caller would take what the store did not do for done.
func TestAbandonsAFenceOfAnEarlierRow(t *testing.T) {
	c := servingScene(t)
	p := c.g.pulse(false)
	at := driver.Contact{Row: driver.Beat{Count: 2}.Encode(), Fence: c.putJSON(driver.TableFence, driver.RowFence, Fence{ID: "F"})}
	c.g.verdicts.Lock() // as whoever takes the decision has it
	judged := make(chan error, 1)
	go func() { judged <- c.g.judge(t.Context(), c.store, p, at) }()
	stacks := make([]byte, 1<<20)
	patience.Until(t, "the call takes the fence", func() bool {
		for of := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(of, "takeFenceUnder") && strings.Contains(of, t.Name()) {
				return true
			}
		}
		return false
	})
	c.g.mu.Lock()
	c.g.me.row = rowOf(2, "R")
	c.g.mu.Unlock()
	c.g.verdicts.Unlock()
	if err := patience.Receive(t, "its verdict", judged); err == nil || err.Error() != errAbandoned().Error() || c.g.state != Serving || c.g.fence != nil {
		t.Errorf("%v, it is %s, and knows %v", err, c.g.state, c.g.fence)
	}
}

// A syncing file tells of each Sync, which waits until the test lets it go on.
type syncing struct {
	logFile
	begun, may chan struct{}
}

func (s syncing) Sync() error {
	s.begun <- struct{}{}
	<-s.may
	return s.logFile.Sync()
}

// Nobody waits for the disk with the verdicts held: a caller's verdict would wait for another's write.
func TestNoVerdictWaitsForTheDisk(t *testing.T) {
	d := &decision{decisionID: decisionID{1, "D"}, Joins: 1}
	for name, v := range map[string]struct {
		prepare func(*scene)
		take    func(*scene) error
	}{
		"a loss":     {func(*scene) {}, func(c *scene) error { c.g.apply(behind, errInjected, nil); return nil }},
		"a fence":    {func(*scene) {}, func(c *scene) error { c.g.takeFenceUnder(c.g.me.row, &Fence{ID: "F"}); return nil }},
		"a decision": {func(c *scene) { c.putJSON(driver.TableGuard, rowDecision, d) }, func(c *scene) error { return c.g.catchUp(c.t.Context(), c.store, d, "id") }},
		"the store that goes on": {func(c *scene) {
			r := c.retirement("C", 0)
			c.knowsCopies(r)
			c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(r))
		}, func(c *scene) error { return c.g.follow(c.t.Context(), c.store, c.retirement("C", 0)) }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newScene(t)
			c.joins(1)
			c.member(1, 2)
			l := c.g.witness.log
			slow := syncing{l.file, make(chan struct{}), make(chan struct{})}
			v.prepare(c)
			l.file = slow
			done := make(chan error)
			go func() { done <- v.take(c) }()
			<-slow.begun
			free := c.g.verdicts.TryLock()
			if free {
				c.g.verdicts.Unlock()
			}
			close(slow.may)
			if err := <-done; err != nil || !free {
				t.Errorf("free while it is written: %v; %v", free, err)
			}
		})
	}
}

// A node takes a decision with what is owed, which it attests for from then on; and none of a store that it has
// seen retired meanwhile.
func TestTakesADecisionWhole(t *testing.T) {
	c := newScene(t)
	c.joins(1)
	c.tag("t", 100)
	c.put(driver.TableGuard, rowOwed+"tag/gone", driver.EncodeRow(owedLine{Pair: Pair{0, 70}}))
	d := &decision{decisionID: decisionID{1, "D"}, Joins: 1}
	c.putJSON(driver.TableGuard, rowDecision, d)
	if err := c.g.catchUp(t.Context(), c.store, d, "id"); err != nil {
		t.Fatal(err)
	}
	if got := c.g.witness.Lines(); got["tag/gone"].Mark != 70 || got["tag/t"].Mark != 100 {
		t.Errorf("it knows %v", got)
	}
	c, r := retiredScene(t)
	c.putJSON(driver.TableGuard, rowDecision, d)
	if err := c.g.catchUp(t.Context(), c.store, d, r.Store); !errors.Is(err, hapax.ErrStoreRetired) || c.g.state != Refusing || !c.g.witness.latch().isRetired() {
		t.Errorf("a retired store: %v, and it is %s", err, c.g.state)
	}
}
