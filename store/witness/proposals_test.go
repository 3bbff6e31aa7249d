package witness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A floor is proposed once for each list of missing nodes.
func TestProposesAFloor(t *testing.T) {
	c, f, _ := lostScene(t)
	propose := func(f *Fence, calls bool) {
		t.Helper()
		c.store.reset(0)
		if err := c.g.propose(t.Context(), c.store, f); err != nil || (len(c.store.made()) > 0) != calls {
			t.Errorf("for %v: %v after %v", f.Missing, err, c.store.made())
		}
	}
	propose(f, false)
	if c.g.proposal != (proposal{}) {
		t.Errorf("proposed for nobody: %+v", c.g.proposal)
	}
	f.Missing = []Node{{Row: rowOf(2, "B")}}
	propose(f, true)
	if c.g.proposal.fence != "F" || c.g.proposal.floor != 100+proposedMargin {
		t.Errorf("proposed: %+v", c.g.proposal)
	}
	propose(f, false)
	f.More = 1
	propose(f, true)
	for n := 1; ; n++ {
		c.g.proposal = proposal{}
		c.store.reset(n)
		err := c.g.propose(t.Context(), c.store, f)
		if len(c.store.made()) < n {
			break
		}
		if !errors.Is(err, errInjected) || c.g.proposal != (proposal{}) {
			t.Errorf("call %d fails: %v, proposed %+v", n, err, c.g.proposal)
		}
	}
}

// A fence that was written is known at once, and one that was not is not.
func TestKnowsItsFence(t *testing.T) {
	c := servingScene(t)
	f := &Fence{ID: "NEW"}
	if err := c.g.swapFence(t.Context(), c.store, nil, f); err != nil || c.g.fence != f || c.g.state != Fenced {
		t.Errorf("its own: %v, %+v, it is %s", err, c.g.fence, c.g.state)
	}
	c = servingScene(t)
	c.store.swapped = func(string) bool { return false }
	if err := c.g.swapFence(t.Context(), c.store, nil, f); !errors.Is(err, hapax.ErrStoreUnavailable) || c.g.fence != nil || c.g.state != Serving {
		t.Errorf("another's: %v, %+v, it is %s", err, c.g.fence, c.g.state)
	}
}

// A node that adds itself to a fence gives no evidence under the word before.
func TestFinderBeginsAnew(t *testing.T) {
	c, _, _ := lostScene(t)
	c.fence(Fence{ID: "F", Ask: "ASK", Healer: "H"})
	if err := c.g.heal(t.Context(), c.store); err != nil || c.standing().Ask != "" || len(c.standing().Found) == 0 {
		t.Errorf("%v, the fence is %+v", err, c.standing())
	}
	if said, err := readEvidence(t.Context(), c.store, "ASK/"); err != nil || len(said) > 0 {
		t.Errorf("said is %v, %v", said, err)
	}
	c, _, _ = lostScene(t)
	c.g.cause = fmt.Errorf("%w (%w)", hapax.ErrStoreReplaced, errOther)
	c.know(func(b *record) { b.Latch = &latch{} })
	c.put(driver.TableFence, driver.RowFence, nil)
	if err := c.g.heal(t.Context(), c.store); err != nil || c.g.state != Joining {
		t.Errorf("the URL was corrected: %v, it is %s", err, c.g.state)
	}
	c, _, _ = lostScene(t)
	c.know(func(b *record) { b.Latch = &latch{} })
	if err := c.g.heal(t.Context(), c.store); err != nil || c.g.state == Joining {
		t.Errorf("it was never another: %v, it is %s", err, c.g.state)
	}
}

// A decision of many is whole again once its parts are read; it names no missing node.
func TestDecisionOfMany(t *testing.T) {
	d := decision{decisionID: decisionID{1, "D"}, Stated: map[string]statement{}}
	for i := range 2*decisionRows + 5 {
		d.Stated[rowName(int64(i+1), "x")] = statement{Floor: int64(i + 1)}
	}
	d.Heard = manyRuns()
	whole, heard := maps.Clone(d.Stated), slices.Clone(d.Heard)
	parts := d.split()
	if len(parts) != 2 || d.Parts != 2 || len(d.Stated) != decisionRows || len(d.Heard) != decisionRows {
		t.Fatalf("%d parts, and %d statements and %d runs in the first", len(parts), len(d.Stated), len(d.Heard))
	}
	c := newScene(t)
	for i, part := range parts {
		c.putJSON(driver.TableGuard, partName(d.prefix(), i), part)
	}
	if err := d.complete(t.Context(), c.store); err != nil || !maps.Equal(d.Stated, whole) || !slices.Equal(d.Heard, heard) {
		t.Errorf("read again: %d statements, %d runs, %v", len(d.Stated), len(d.Heard), err)
	}

	c, _, _ = lostScene(t)
	f, raw := c.fence(Fence{ID: "F", Ask: "ASK", Healer: theRun, Missing: []Node{missingB}, More: 3})
	if err := c.g.decide(t.Context(), c.store, f, raw, &account{joins: 5, lines: newLines()}); err != nil {
		t.Fatal(err)
	}
	got, _, err := readDecision(t.Context(), c.store)
	if err != nil || len(got.Fence.Missing) > 0 || got.Fence.More != 0 {
		t.Errorf("decided is %+v, %v", got.Fence, err)
	}
}

// A node without lines, or one whose witness is closed, takes a decision with care.
func TestTakesADecisionWithoutLines(t *testing.T) {
	c, _, _ := lostScene(t)
	c.know(func(b *record) { b.Decision = &decisionID{1, "BEFORE"} })
	c.g.witness.state.Lines = map[string]Pair{}
	d := c.decided(2, nil)
	if err := c.g.catchUp(t.Context(), unhealable{c.store}, d, "id"); err != nil || c.g.witness.decision() != d.decisionID {
		t.Errorf("of a store that cannot be healed: %v, it knows %v", err, c.g.witness.decision())
	}
	c, _, _ = lostScene(t)
	d = c.decided(2, nil)
	if err := c.g.catchUp(t.Context(), unhealable{c.store}, d, "id"); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("with lines that it lacks: %v", err)
	}
	if _, err := c.g.raise(t.Context(), unhealable{c.store}, &account{lines: newLines()}); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("its lines are raised: %v", err)
	}
	_ = c.g.witness.Close()
	if err := c.g.catchUp(t.Context(), c.store, d, "id"); !errors.Is(err, hapax.ErrClosed) || c.g.state != Refusing {
		t.Errorf("with a witness that is closed: %v, it is %s", err, c.g.state)
	}
}

// What an inquiry reads besides the evidence counts as well.
func TestInquiresInTheStore(t *testing.T) {
	a, b := rowOf(1, "A"), rowOf(2, "B")
	for name, manual := range map[string][2]bool{"nobody": {false, false}, "the first": {true, false}, "the last": {false, true}} {
		c := newScene(t)
		c.joins(7)
		for i, row := range []string{a, b} {
			c.peer(row, "x", driver.Beat{Count: 3, Grants: 2}, "")
			c.put(driver.TableNodes, row, nodeRow{Name: "x", Manual: manual[i]}.encode())
		}
		h, err := c.g.inquire(t.Context(), c.store, &Fence{ID: "F", Ask: "W"})
		if err != nil || h.joins != 7 || h.manual != (manual[0] || manual[1]) || len(h.present) != 2 || h.present[a].Grants != 2 {
			t.Errorf("%s wants a person: %+v, %v", name, h, err)
		}
	}
	c := newScene(t)
	c.put(driver.TableEvidence, "W/A/000000000", []byte("~"))
	if _, err := readEvidence(t.Context(), c.store, "W/"); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("evidence that is none: %v", err)
	}
	withPool(c)
	flake := lines{map[string]Pair{"tag/flake": {3, 9}, WorkerLine("none", 1): {1, 1}}, map[string]def{"tag/flake": {Kind: hapax.KindSnowflake, Pool: "p"}}}
	raised, err := c.g.raise(t.Context(), c.store, &account{lines: flake})
	if err == nil || !strings.Contains(err.Error(), "worker/none/1") || len(raised) != 1 || raised[0].Tag != "flake" {
		t.Errorf("raised are %v, %v", raised, err)
	}
	if len(c.store.heals) != 1 || c.store.heals[0].Token != 3 || c.store.heals[0].Mark != 0 {
		t.Errorf("healed are %+v", c.store.heals)
	}
}

// What is proposed lies above two segments, the one in use and the next, of any size that a tag allows.
func TestProposedFloor(t *testing.T) {
	for name, d := range map[string]def{
		"a plain tag": {}, "numbers that are apart": {Delta: 100, Remainder: 7}, "large segments": {Step: 5_000_000, MaxStep: 50_000_000},
		"a large step": {Step: 20_000_000}, "both": {MaxStep: 50_000_000, Delta: 100},
	} {
		tag, err := d.tag("t", Pair{Mark: 5000}).WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		line := lines{map[string]Pair{TagLine("t"): {Mark: 5000}, TagLine("u"): {Mark: 9000}, TagLine("s"): {Mark: 1 << 50}}, map[string]def{TagLine("t"): d, TagLine("s"): {Kind: hapax.KindSnowflake}}}
		for _, floor := range []int64{proposedFloor(line, newLines()), proposedFloor(newLines(), line)} {
			if least := 5000 + 2*tag.MaxStep*tag.Delta; floor < least || floor > 9000+10*tag.MaxStep*tag.Delta {
				t.Errorf("%s: a floor of %d is proposed, and two segments end at %d", name, floor, least)
			}
		}
	}
	widest := lines{map[string]Pair{TagLine("t"): {Mark: hapax.MaxMark}}, map[string]def{TagLine("t"): {Step: hapax.MaxStep, Delta: hapax.MaxDelta}}}
	if floor := proposedFloor(widest, newLines()); floor != maxFloor {
		t.Errorf("at the end of a line a floor of %d is proposed; want %d", floor, int64(maxFloor))
	}
}
