package witness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A refusal of bad input names the field, its value and what is allowed.
func TestRefusalsNameTheField(t *testing.T) {
	b := rowOf(2, "B")
	lostWithB := func() (*scene, *Fence) {
		c, f, _ := lostScene(t)
		c.peer(b, "b", driver.Beat{Count: 3, Grants: 500}, "")
		return c, f
	}
	judge := func(st Statement) error {
		c, f := lostWithB()
		h, err := c.g.inquire(t.Context(), c.store, f)
		if err == nil {
			_, err = c.g.judgeStatement(t.Context(), c.store, st, h, &Adoption{})
		}
		return err
	}
	for name, v := range map[string]struct {
		f       func() error
		field   string
		value   any
		allowed string
	}{
		"a statement for nobody": {func() error { _, err := newScene(t).g.Settle(t.Context(), Statement{}); return err }, "node", "", "the name or the row of a node"},
		"a floor below none":     {func() error { _, err := newScene(t).g.Adopt(t.Context(), Statement{Floor: -1}); return err }, "floor", int64(-1), "1 to "},
		"a floor beyond all": {func() error {
			_, err := newScene(t).g.Adopt(t.Context(), Statement{Floor: maxFloor + 1})
			return err
		}, "floor", int64(maxFloor) + 1, "0 for none"},
		"a node that is not missing": {func() error { return judge(Statement{Row: "nobody"}) }, "node", "nobody", "one of those that are missing"},
		"a floor below a known mark": {func() error { return judge(Statement{Floor: 99}) }, "floor", int64(99), "at least 100"},
		"a heartbeat too short":      {func() error { _, err := Options{Heartbeat: 1}.withDefaults(); return err }, "heartbeat", time.Duration(1), "100ms to 1m0s"},
		"an address too long": {func() error {
			_, err := Options{Address: strings.Repeat("x", MaxAddress+1)}.withDefaults()
			return err
		}, "address", "(257 bytes)", "at most 256 bytes"},
		"a statement that comes too late": {func() error { return tooLate(Node{Row: b, Name: "b"}, Statement{Floor: 9}, 5) }, "floor", int64(9), "at most 5"},
		"a row that nobody has": {func() error {
			c := servingScene(t)
			_, err := c.g.endRow(t.Context(), c.store, Statement{Row: "nobody"})
			return err
		}, "node", "nobody", "another node that the store knows"},
	} {
		err := v.f()
		bad, ok := errors.AsType[*hapax.ValueError](err)
		if !ok || bad.Field != v.field || bad.Value != v.value || !strings.Contains(bad.Allowed, v.allowed) || !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v; want field %q, value %v, allowed %q", name, err, v.field, v.value, v.allowed)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		c.peer(b, "b", driver.Beat{Count: 3}, "")
		time.AfterFunc(time.Second, func() { c.put(driver.TableBeats, b, driver.Beat{Count: 4}.Encode()) })
		_, err := c.g.endRow(t.Context(), c.store, Statement{Row: "b"})
		if bad, ok := errors.AsType[*hapax.ValueError](err); !ok || bad.Field != "node" || bad.Value != "b" || !strings.Contains(bad.Allowed, "does not run") {
			t.Errorf("a node that runs: %v", err)
		}
		for _, how := range []string{"left", "gone"} { // while it was observed
			c := servingScene(t)
			c.peer(b, "b", driver.Beat{Count: 3}, "")
			time.AfterFunc(time.Second, func() {
				if c.put(driver.TableBeats, b, nil); how != "gone" {
					c.put(driver.TableBeats, b, driver.Beat{Count: 9}.EncodeEnded(how))
				}
			})
			if _, err := c.g.endRow(t.Context(), c.store, Statement{Row: "b"}); err != nil || strings.Contains(c.row(driver.TableBeats, b), "silent") {
				t.Errorf("a row that is %s meanwhile: %v, %q", how, err, c.row(driver.TableBeats, b))
			}
		}
	})
	c := servingScene(t)
	if a, err := c.g.Adopt(t.Context(), Statement{Floor: maxFloor, DryRun: true}); err != nil || a.Fence != nil || a.StoreID == "" {
		t.Errorf("the highest floor, where nothing is wrong: %+v, %v", a, err)
	}
}

// An operator's word is recorded with how far it reaches, approves the fence, and is told of while no
// node acts on it.
func TestAdoptsUnderAFence(t *testing.T) {
	b := rowOf(2, "B")
	for _, dry := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c, _, _ := lostScene(t)
			c.peer(b, "b", driver.Beat{Count: 3, Grants: 500}, "")
			c.fence(Fence{ID: "F", Ask: "ASK", Manual: true, Missing: []Node{missingB}})
			a, err := c.g.Adopt(t.Context(), Statement{Row: "x", Floor: 100_000, Wait: time.Second, DryRun: dry})
			if a.Fence == nil || a.Fence.ID != "F" || a.Proposed == 0 || len(a.Missing) > 0 || len(a.Stated) != 2 {
				t.Errorf("found is %+v", a)
			}
			h, err2 := c.g.inquire(t.Context(), c.store, a.Fence)
			if err2 != nil || (h.stated[b] == statement{}) != dry || !dry && (h.stated[b].Floor != 100_000 || h.stated[b].Ahead != DefaultAhead || h.stated[b].Name != "b") {
				t.Errorf("stated is %+v, %v", h.stated, err2)
			}
			if (c.g.approved == "F") == dry || c.standing().Approved == dry {
				t.Errorf("approved is %q, %+v", c.g.approved, c.standing())
			}
			if dry && err != nil || !dry && (!errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), "stays there, but no node has acted on it yet: the next one")) {
				t.Errorf("a dry run %v: %v", dry, err)
			}
		})
	}
}

// The result of an operator's word for another store names both, whether or not somebody acts on it in time.
func TestAdoptsAnotherStore(t *testing.T) {
	for _, dry := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t, func(b *record) { b.Store = "mine" })
			c.g.state, c.g.cause = Refusing, fmt.Errorf("%w (%w)", hapax.ErrStoreReplaced, errOther)
			id, err := c.store.Store.StoreID(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			a, err := c.g.Adopt(t.Context(), Statement{Wait: time.Second, DryRun: dry})
			if a.StoreID != id || a.Other != "mine" || (err == nil) != dry || !dry && !errors.Is(err, hapax.ErrStoreUnavailable) || (c.g.accepted == id) == dry {
				t.Errorf("dry %v: %+v, %v; accepted is %q", dry, a, err, c.g.accepted)
			}
		})
	}
}

// A person's word holds where somebody else changes the fence at the same time.
func TestApprovesAChangingFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		f, _ := c.fence(Fence{ID: "F", Ask: "ASK", Manual: true})
		tries := 0
		c.store.swapped = func(string) bool { tries++; return tries > 2 }
		if err := c.g.write(t.Context(), c.store, f, Statement{}, nil, nil); err != nil || !c.standing().Approved {
			t.Errorf("after %d tries: %v, the fence is %+v", tries, err, c.standing())
		}
	})
}

// Before another store is accepted, a statement is judged as if all who live there, and all who lived
// on the node's own, had given evidence.
func TestJudgesAnotherStore(t *testing.T) {
	lives, ended, there, still := rowOf(21, "L"), rowOf(22, "E"), rowOf(23, "T"), rowOf(24, "S")
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		c.joins(0)
		c.put(driver.TableBeats, c.g.me.row, nil)
		c.g.me = member{row: rowOf(20, "R"), acked: driver.Beat{Count: 9, Grants: 7}, beat: driver.Beat{Count: 9, Grants: 7}}
		all := record{Own: map[string]own{}, Lines: map[string]Pair{"tag/t": {0, 5000}, "tag/flake": {0, 9000}}, Defs: map[string]def{"tag/flake": {Kind: hapax.KindSnowflake}}}
		all.Peers = map[string]peer{lives: {Grants: 7}, ended: {Grants: 3, How: "left"}}
		for i := range int64(19) {
			all.Own[rowOf(i+1, "O")] = own{Count: 3}
		}
		c.know(func(b *record) { b.Own, b.Lines, b.Defs, b.Peers = all.Own, all.Lines, all.Defs, all.Peers })
		for _, row := range []string{there, still} {
			c.peer(row, strings.ToLower(row[20:21]), driver.Beat{Count: 3, Grants: 2}, "")
		}
		time.AfterFunc(time.Second, func() { c.put(driver.TableBeats, there, driver.Beat{Count: 4, Grants: 2}.Encode()) })
		began := time.Now()
		var a Adoption
		err := c.g.judgeOther(t.Context(), c.store, Statement{}, &a)
		if !errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), still) || time.Since(began) < 5*time.Second {
			t.Errorf("without a word for %s: %v after %v", still, err, time.Since(began))
		}
		time.AfterFunc(time.Second, func() { c.put(driver.TableBeats, there, driver.Beat{Count: 5, Grants: 2}.Encode()) })
		a = Adoption{}
		err = c.g.judgeOther(t.Context(), c.store, Statement{Floor: 6000, Ahead: time.Second}, &a)
		stated := slices.ContainsFunc(a.Stated, func(n Node) bool { return n.Row == still })
		if err != nil || len(a.Missing) > 0 || a.Spoke != 3 || len(a.Stated) != 1 || !stated || a.Proposed != 5000+proposedMargin {
			t.Errorf("with one: %v, %+v", err, a)
		}
		if err := c.g.judgeOther(t.Context(), c.store, Statement{Floor: 4999, Ahead: time.Second}, &a); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("a floor below the node's own marks: %v", err)
		}
	})
	e := evidenceOfFile(Testimony{record{Lines: map[string]Pair{"tag/t": {1, 2}}, Defs: map[string]def{"tag/t": {Start: 3}}}})
	if !maps.Equal(e.Lines, map[string]Pair{"tag/t": {1, 2}}) || e.Defs["tag/t"].Start != 3 {
		t.Errorf("a witness file says %+v", e)
	}
}
