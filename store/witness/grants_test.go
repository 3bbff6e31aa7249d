package witness

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// What a call has found decides whether what came with it may be used.
func TestWhatACallHasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		met := driver.Contact{Met: true, Joins: 5, Primary: "p1"}
		type found struct {
			c      *scene
			p      pulse
			ct     driver.Contact
			err    error
			result error
		}
		call := func(change func(f *found)) *found {
			c := newScene(t)
			c.joins(5)
			c.member(5, 9)
			c.g.me.primary = "p1"
			c.g.peers[rowOf(2, "B")] = &sighting{value: "v", met: true}
			f := &found{c: c, p: c.g.pulse(true), ct: met}
			change(f)
			f.result = c.g.found(t.Context(), c.store, f.p, f.ct, f.err)
			return f
		}
		if f := call(func(*found) {}); f.result != nil || f.c.g.state != Serving || f.c.g.me.acked != f.p.Now || !f.c.g.peers[rowOf(2, "B")].met {
			t.Errorf("all is well: %v, %s, acknowledged %v of %v", f.result, f.c.g.state, f.c.g.me.acked, f.p.Now)
		}
		if f := call(func(f *found) { f.ct, f.err = driver.Contact{}, errInjected }); f.result != errInjected || f.c.g.state != Serving || len(f.c.store.made()) > 0 {
			t.Errorf("a call that does not tell: %v, %s", f.result, f.c.g.state)
		}
		if f := call(func(f *found) { f.err = hapax.ErrTagNotFound }); !errors.Is(f.result, hapax.ErrTagNotFound) || f.c.g.me.acked != f.p.Now {
			t.Errorf("an error of the tag: %v, acknowledged %v", f.result, f.c.g.me.acked)
		}
		if f := call(func(f *found) { f.p.Row = "another" }); f.result == nil || f.c.g.me.acked == f.p.Now {
			t.Errorf("the node has another row by now: %v", f.result)
		}
		for joins, behind := range map[int64]bool{4: true, 5: false, 6: false} {
			f := call(func(f *found) { f.ct.Joins = joins })
			if errors.Is(f.result, hapax.ErrStoreRolledBack) != behind || (f.c.g.state == Refusing) != behind || !behind && f.c.g.me.joins != joins {
				t.Errorf("%d have joined, of 5: %v, %s, known are %d", joins, f.result, f.c.g.state, f.c.g.me.joins)
			}
		}
		if f := call(func(f *found) { f.p.joins, f.c.g.me.joins = 4, 6; f.ct.Joins = 4 }); f.result != nil || f.c.g.me.joins != 6 {
			t.Errorf("an answer from before two others joined: %v, known are %d", f.result, f.c.g.me.joins)
		}
		if f := call(func(f *found) { f.c.g.me.acked = driver.Beat{Count: 99} }); f.result != nil || f.c.g.me.acked.Count != 99 {
			t.Errorf("an answer that a later one has overtaken: %v, acknowledged %v", f.result, f.c.g.me.acked)
		}
		for row, beat := range map[string][]byte{"behind": driver.Beat{Count: 8}.Encode(), "gone": nil} {
			f := call(func(f *found) {
				f.ct = driver.Contact{Row: beat, Joins: 5}
				if beat == nil {
					f.ct.Fence = []byte(`{"id":"F"}`)
				}
			})
			if !errors.Is(f.result, hapax.ErrStoreRolledBack) || f.c.g.state != Refusing {
				t.Errorf("the row is %s: %v, %s", row, f.result, f.c.g.state)
			}
		}
		if f := call(func(f *found) {
			f.ct = driver.Contact{Row: driver.Beat{Count: 9}.Encode(), Fence: []byte(`{"id":"F"}`)}
		}); !errors.Is(f.result, hapax.ErrFenced) || f.c.g.state != Fenced || f.c.g.fence.ID != "F" {
			t.Errorf("a fence: %v, %s", f.result, f.c.g.state)
		}
		if f := call(func(f *found) { f.ct = driver.Contact{Row: driver.Beat{Count: 9}.EncodeEnded("silent")} }); f.result == nil || f.c.g.state != Joining || f.c.g.me.row != "" || !strings.Contains(f.result.Error(), "ended as silent") {
			t.Errorf("the row was ended: %v, %s", f.result, f.c.g.state)
		}
		if f := call(func(f *found) { f.ct = driver.Contact{Row: driver.Beat{Count: 9}.Encode()} }); f.result == nil || f.c.g.state != Serving || !strings.Contains(f.result.Error(), "lifted meanwhile") {
			t.Errorf("a fence that was lifted: %v, %s", f.result, f.c.g.state)
		}

		w := 5 * time.Second // out of contact: from the last call's beginning to this one's
		for name, v := range map[string]struct {
			sent  time.Duration
			apart bool
			state State
			away  bool
		}{
			"just in time":             {w, false, Serving, false},
			"too late":                 {w + 1, false, Serving, true},
			"too late while joining":   {w + 1, false, Joining, true},
			"on a store of its own":    {w + 1, true, Serving, false},
			"the answer alone is late": {0, false, Serving, false},
		} {
			f := call(func(f *found) {
				f.c.g.state, f.c.g.shared = v.state, !v.apart
				f.p.sent = f.c.g.me.contact + v.sent
				time.Sleep(w + time.Second)
			})
			if f.c.g.me.contact != f.p.sent {
				t.Errorf("%s: the last contact is %v; want the time of sending, %v", name, f.c.g.me.contact, f.p.sent)
			}
			if (f.result != nil) != (v.away && v.state == Serving) || (f.c.g.state == Serving) != (v.state == Serving && !v.away) || (f.c.g.me.waits == f.c.g.now()) != v.away || f.c.g.peers[rowOf(2, "B")].met == v.away {
				t.Errorf("%s: %v, %s, it waits since %v, and the others have met it %v", name, f.result, f.c.g.state, f.c.g.now()-f.c.g.me.waits, f.c.g.peers[rowOf(2, "B")].met)
			}
			if v.away && f.c.g.me.asks {
				t.Errorf("%s: it needs nobody else who serves", name)
			}
		}
		if f := call(func(f *found) { f.c.g.me.contact += time.Second; f.p.sent = 0 }); f.c.g.me.contact == 0 {
			t.Error("an early call's late answer sets the contact back")
		}

		for name, v := range map[string]struct {
			was, now string
			state    State
			asked    bool
			moved    bool
			asks     bool
		}{
			"the same":                      {"p1", "p1", Serving, false, false, false},
			"another":                       {"p1", "p2", Serving, false, true, true},
			"the first that tells":          {"", "p2", Serving, false, false, false},
			"one that does not tell":        {"p1", "", Serving, false, false, false},
			"another while joining":         {"p1", "p2", Joining, false, true, false},
			"another while it asks already": {"p1", "p2", Joining, true, true, true},
		} {
			f := call(func(f *found) {
				f.c.g.me.primary, f.ct.Primary, f.c.g.state, f.c.g.me.asks = v.was, v.now, v.state, v.asked
				time.Sleep(time.Second)
			})
			want := v.now
			if want == "" {
				want = v.was
			}
			if f.c.g.me.primary != want || (f.result != nil) != (v.moved && v.state == Serving) || (f.c.g.state == Serving) != (v.state == Serving && !v.moved) || f.c.g.me.asks != v.asks || (f.c.g.me.waits == f.c.g.now()) != v.moved {
				t.Errorf("primary %s: %v, %s, it is %s, asks %v", name, f.result, f.c.g.state, f.c.g.me.primary, f.c.g.me.asks)
			}
			if strings.Contains(f.c.log.String(), "primary has changed") != v.moved {
				t.Errorf("primary %s: it logs %q", name, f.c.log)
			}
		}
	})
}

// A grant is durable in the witness before it is used, and abandoned where the node does not
// serve any more, has another row, or was cut off meanwhile.
func TestWhatIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		got := granted{"tag/t", Pair{0, 10}, Pair{0, 20}, "tag/t", def{Start: 3}}
		for name, v := range map[string]struct {
			change func(c *scene, p *pulse)
			used   bool
			row    bool
		}{
			"it serves":                 {func(*scene, *pulse) {}, true, true},
			"it joins again":            {func(c *scene, _ *pulse) { c.g.state = Joining }, false, true},
			"it is fenced":              {func(c *scene, _ *pulse) { c.g.state, c.g.cause = Fenced, hapax.ErrFenced }, false, true},
			"under another row":         {func(_ *scene, p *pulse) { p.Row = "another" }, false, false},
			"in contact just in time":   {func(*scene, *pulse) { time.Sleep(5 * time.Second) }, true, true},
			"out of contact since":      {func(*scene, *pulse) { time.Sleep(5*time.Second + 1) }, false, true},
			"... on a store of its own": {func(c *scene, _ *pulse) { c.g.shared = false; time.Sleep(5*time.Second + 1) }, true, true},
		} {
			c := newScene(t)
			row := c.member(5, 9)
			p := c.g.pulse(true)
			v.change(c, &p)
			err := c.g.record(p, []granted{got})
			r := c.g.witness.snapshot()
			if (err == nil) != v.used || c.g.state == Fenced && !errors.Is(err, hapax.ErrFenced) {
				t.Errorf("%s: %v", name, err)
			}
			if r.Lines["tag/t"] != got.to || r.Defs["tag/t"] != got.def {
				t.Errorf("%s: the witness knows %v, %v", name, r.Lines, r.Defs)
			}
			if want := (own{Count: 9, Grants: 1, Asked: 1 + askAhead}); v.row && (r.Own[row] != want || r.Joins != 5) || !v.row && len(r.Own) > 0 {
				t.Errorf("%s: of the row it knows %+v, %d joins; want %+v", name, r.Own, r.Joins, want)
			}
			if !slices.Contains(c.g.used.next(c.g.now()), "t") {
				t.Errorf("%s: its line is not compared from now on", name)
			}
		}
		c := newScene(t)
		c.member(5, 9)
		syncs := CountSyncs(c.g.witness)
		for range askAhead {
			if err := c.g.reserve(c.g.pulse(true)); err != nil {
				t.Fatal(err)
			}
		}
		if n := syncs(); n != 1 {
			t.Errorf("%d grants that are asked for took %d syncs; want one", askAhead, n)
		}
		c.g.me.beat.Grants, c.g.me.asked = 64, 64
		if err := c.g.reserve(c.g.pulse(true)); err != nil || syncs() != 2 || c.g.witness.rows().Own[c.g.me.row].Asked != 65+askAhead {
			t.Errorf("the next: %v, %d syncs, asked for %+v", err, syncs(), c.g.witness.rows().Own)
		}
		p := c.g.pulse(true)
		p.Row, p.Now.Grants = "another", 1000
		if err := c.g.reserve(p); err != nil || syncs() != 2 {
			t.Errorf("under another row: %v, %d syncs", err, syncs())
		}
	})
}

// A grant is judged by itself, and by the pair known before the call.
func TestJudgesGrants(t *testing.T) {
	for _, v := range []struct {
		lo, hi int64
		sound  bool
	}{{0, 1, true}, {1, 2, true}, {-1, 2, false}, {5, 5, false}, {5, 4, false}, {-3, -4, false}} {
		err := sound("tag/t", hapax.Grant{Lo: v.lo, Hi: v.hi})
		if (err == nil) != v.sound || err != nil && !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("[%d, %d): %v", v.lo, v.hi, err)
		}
	}
	for _, v := range []struct {
		from, want Pair
		known      bool
		behind     bool
	}{
		{Pair{1, 10}, Pair{1, 10}, true, false},
		{Pair{1, 9}, Pair{1, 10}, true, true},
		{Pair{2, 9}, Pair{1, 10}, true, false},
		{Pair{0, 99}, Pair{1, 10}, true, true},
		{Pair{1, 9}, Pair{1, 10}, false, false},
	} {
		c := newScene(t)
		c.member(1, 2)
		err := c.g.judgeGrant(granted{line: "tag/t", from: v.from}, v.want, v.known)
		if errors.Is(err, hapax.ErrStoreRolledBack) != v.behind || (err != nil) != v.behind || (c.g.state == Refusing) != v.behind {
			t.Errorf("from %v where %v was known: %v: %v, %s", v.from, v.want, v.known, err, c.g.state)
		}
	}
}

// serving is a scene in which the guard serves, with a tag.
func servingScene(t *testing.T) *scene {
	t.Helper()
	c := newScene(t)
	c.tag("t", 100)
	c.joins(1)
	c.member(1, 2)
	return c
}

// What a store answers to a grant, and is no grant, is not used.
func TestUnsoundAnswers(t *testing.T) {
	c := servingScene(t)
	c.store.alloc = func(a *hapax.Allocation) { a.Grant.Hi = a.Grant.Lo }
	if _, err := c.g.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("an empty grant: %v", err)
	}
	c = servingScene(t)
	if _, err := c.g.Allocate(t.Context(), "no\x00name", 10, ""); err == nil || len(c.store.made()) > 0 {
		t.Errorf("a name that is none: %v, %v", err, c.store.made())
	}
	if _, err := c.g.Allocate(t.Context(), "gone", 10, ""); !errors.Is(err, hapax.ErrTagNotFound) || c.g.state != Serving {
		t.Errorf("a tag that nobody knows: %v, %s", err, c.g.state)
	}
	c.know(func(b *record) { b.Lines["tag/gone"] = Pair{0, 7} })
	if _, err := c.g.Allocate(t.Context(), "gone", 10, ""); !errors.Is(err, hapax.ErrStoreRolledBack) || c.g.state != Refusing || !strings.Contains(err.Error(), "used below 7") {
		t.Errorf("a tag that was used: %v, %s", err, c.g.state)
	}
}

// Nothing is called for a node that has just been made to join again.
func TestNoCallWithoutARow(t *testing.T) {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(c *scene) error{
		"Allocate": func(c *scene) error { _, err := c.g.Allocate(t.Context(), "t", 10, ""); return err },
		"HandBack": func(c *scene) error {
			return c.g.HandBack(t.Context(), hapax.Allocation{Tag: hapax.Tag{Name: "t"}, Grant: hapax.Grant{Lo: 1, Hi: 9}, Key: "k"}, 5)
		},
		"AcquireWorker": func(c *scene) error {
			_, err := c.g.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 8}, Holder: "h", Term: testTerm()})
			return err
		},
		"a change of rows": func(c *scene) error {
			_, err := pulsed{c.store, c.g, c.store, nil}.SwapRow(t.Context(), driver.TableGuard, "x", nil, []byte("y"))
			return err
		},
	} {
		c := servingScene(t)
		c.g.me.row = ""
		err := call(c)
		made := strings.Join(c.store.made(), " ")
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !strings.Contains(err.Error(), "abandoned") || strings.Contains(made, "allocate") || strings.Contains(made, "handback") || strings.Contains(made, "swap") {
			t.Errorf("%s: %v after %s", name, err, made)
		}
	}
	c := servingScene(t)
	p := c.g.pulse(true)
	rows := pulsed{c.store, c.g, c.store, &p}
	if ok, err := rows.SwapRow(t.Context(), driver.TableGuard, "x", nil, []byte("y")); err != nil || !ok {
		t.Errorf("under the row of its call: %v, %v", ok, err)
	}
	p.Row = "another"
	if _, err := rows.SwapRow(t.Context(), driver.TableGuard, "x", []byte("y"), []byte("z")); err == nil || c.row(driver.TableGuard, "x") != "y" {
		t.Errorf("under another row than its call's: %v", err)
	}
}

// Leases of workers are grants as all others: recorded before they are used, with the definition that their
// line is made anew from.
func TestLeasesAreGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		layout, err := hapax.ParseLayout("leaf")
		if err != nil {
			t.Fatal(err)
		}
		ctx, req := t.Context(), hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 3, Hi: 4}, Holder: "h", Term: testTerm()}
		l, err := c.g.AcquireWorker(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		line := WorkerLine("p", 3)
		known := func() Pair { p, _ := c.g.witness.Pair(line); return p }
		if l.Worker != 3 || known() != (Pair{l.Token, l.Grant.Hi}) || c.g.witness.snapshot().Defs[poolDef("p")].Layout != layout.String() {
			t.Errorf("the lease is %+v, and the witness knows %v, %v", l, known(), c.g.witness.snapshot().Defs)
		}
		term := testTerm()
		term.Now = term.Now.Add(time.Second)
		more, err := c.g.ExtendWorker(ctx, l, layout, term)
		if err != nil || more.Grant.Hi <= l.Grant.Hi || known() != (Pair{more.Token, more.Grant.Hi}) {
			t.Errorf("the extension is %+v, %v, and the witness knows %v", more, err, known())
		}
		if again, err := c.g.AcquireWorker(ctx, req); err == nil {
			t.Errorf("the only worker was leased again: %+v", again)
		}
		claim := more
		claim.Grant.Hi += 1000 // what a caller says is no evidence
		if got, err := c.g.ExtendWorker(ctx, claim, layout, term); !errors.Is(err, hapax.ErrLeaseLost) || got.Grant.Hi != claim.Grant.Hi || c.g.state != Serving {
			t.Errorf("a lease that is further than its row: %+v, %v, %s", got, err, c.g.state)
		}
		if err := c.g.SealWorker(ctx, more, more.Grant.Lo+1); err != nil || known().Token <= more.Token {
			t.Errorf("sealed: %v, and the witness knows %v", err, known())
		}
		if err := c.g.SealWorker(ctx, more, more.Grant.Lo+1); !errors.Is(err, hapax.ErrLeaseLost) {
			t.Errorf("sealed again: %v", err)
		}

		for name, v := range map[string]struct {
			want   Pair
			known  bool
			behind bool
		}{
			"unknown":            {Pair{9, 9}, false, false},
			"as it was":          {Pair{2, 50}, true, false},
			"its mark is lower":  {Pair{2, 51}, true, true},
			"its token is lower": {Pair{3, 0}, true, true},
		} {
			c := servingScene(t)
			withPool(c)
			if _, err := c.store.Store.HealWorker(t.Context(), leaf(), driver.Worker{Pool: "p", ID: 0, Mark: 900, Token: 90}); err != nil {
				t.Fatal(err)
			}
			workers, err := c.store.Store.Workers(t.Context(), "p")
			if err != nil || len(workers) != 2 {
				t.Fatal(workers, err)
			}
			v.want.Token += workers[1].Token - 2
			err = c.g.claimed(t.Context(), c.store, hapax.Lease{Pool: "p", Worker: 1}, v.want, v.known)
			if errors.Is(err, hapax.ErrStoreRolledBack) != v.behind || errors.Is(err, hapax.ErrLeaseLost) == v.behind || (c.g.state == Refusing) != v.behind {
				t.Errorf("a claim, and its row is %s: %v, %s", name, err, c.g.state)
			}
		}
		c = servingScene(t)
		if err := c.g.claimed(t.Context(), c.store, hapax.Lease{Pool: "p", Worker: 1}, Pair{1, 1}, true); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("a claim of a worker that is gone: %v", err)
		}
	})
}

// The witness takes a hand-back only where it is later than its own record.
func TestKnowsWhatWasHandedBack(t *testing.T) {
	c := newScene(t)
	c.know(func(b *record) { b.Lines = map[string]Pair{"tag/a": {1, 50}, "tag/b": {3, 50}} })
	c.g.gaveBack(map[string]Pair{"tag/a": {2, 7}, "tag/b": {2, 7}, "tag/c": {2, 7}})
	if got, want := c.g.witness.Lines(), (map[string]Pair{"tag/a": {2, 7}, "tag/b": {3, 50}}); !maps.Equal(got, want) {
		t.Errorf("it knows %v; want %v", got, want)
	}
}

// A first use of a tag that was used is none: the tag is there, deleted, or lost.
func TestFirstUseOfAKnownTag(t *testing.T) {
	for name, v := range map[string]struct {
		change func(c *scene)
		mode   hapax.CreateMode
		want   error
	}{
		"there":                   {func(*scene) {}, hapax.CreateFirstUse, hapax.ErrTagExists},
		"deleted":                 {func(c *scene) { _, _ = c.store.DeleteTag(t.Context(), "t") }, hapax.CreateFirstUse, hapax.ErrTagDeleted},
		"deleted, and made again": {func(c *scene) { _, _ = c.store.DeleteTag(t.Context(), "t") }, hapax.CreateExplicit, nil},
		"lost":                    {func(c *scene) { c.know(func(b *record) { b.Lines["tag/u"] = Pair{0, 1} }) }, hapax.CreateFirstUse, hapax.ErrStoreRolledBack},
		"new":                     {func(*scene) {}, hapax.CreateFirstUse, nil},
	} {
		c := servingScene(t)
		c.know(func(b *record) { b.Lines["tag/t"] = Pair{0, 100} })
		v.change(c)
		tag := "t"
		if name == "lost" || name == "new" {
			tag = "u"
		}
		def, err := hapax.Tag{Name: tag}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.g.CreateTag(t.Context(), def, v.mode); !errors.Is(err, v.want) {
			t.Errorf("%s: %v; want %v", name, err, v.want)
		}
	}
}

// Hand-backs that come while one is under way are one call, each is told how it ended, and the
// witness knows those that were made.
func TestHandsBackTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		c.tag("u", 10)
		c.tag("v", 10)
		made := map[string]hapax.Allocation{}
		for _, tag := range []string{"t", "u", "v"} {
			a, err := c.g.Allocate(t.Context(), tag, 10, "")
			if err != nil {
				t.Fatal(err)
			}
			made[tag] = a
		}
		lost := made["v"]
		lost.Tag.Token += 5
		gate := make(chan struct{})
		c.store.before = func(call string) {
			if call == "handback" {
				<-gate
			}
		}
		results := map[string]error{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		hand := func(name string, a hapax.Allocation) {
			wg.Go(func() {
				err := c.g.HandBack(t.Context(), a, a.Grant.Lo+1)
				mu.Lock()
				defer mu.Unlock()
				results[name] = err
			})
			synctest.Wait()
		}
		hand("t", made["t"])
		hand("u", made["u"])
		hand("v", lost)
		close(gate)
		wg.Wait()
		if results["t"] != nil || results["u"] != nil || !errors.Is(results["v"], hapax.ErrLeaseLost) {
			t.Errorf("they are told %v", results)
		}
		sizes := []int{}
		for _, all := range c.store.handed {
			sizes = append(sizes, len(all))
		}
		if !slices.Equal(sizes, []int{1, 2}) {
			t.Errorf("the calls are of %v tags; want of 1 and 2", sizes)
		}
		for tag, back := range map[string]bool{"t": true, "u": true, "v": false} {
			if p, _ := c.g.witness.Pair(TagLine(tag)); (p.Mark == made[tag].Grant.Lo+1) != back {
				t.Errorf("of %s the witness knows %v, handed back %v", tag, p, back)
			}
		}
		if err := c.g.HandBack(t.Context(), made["t"], made["t"].Grant.Hi+1); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("a hand-back above its end: %v", err)
		}
		c.store.before = nil
		c.store.reset(1)
		if err := c.g.HandBack(t.Context(), made["v"], made["v"].Grant.Lo+1); !errors.Is(err, errInjected) {
			t.Errorf("a call that fails: %v", err)
		}
		c.store.reset(0)
		c.g.me.row = ""
		if err := c.g.HandBack(t.Context(), made["v"], made["v"].Grant.Lo+1); err == nil || len(c.store.made()) > 0 {
			t.Errorf("without a row: %v after %v", err, c.store.made())
		}
		c.g.me.row = "again"
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c.store.before = func(string) { time.Sleep(time.Second) }
		if err := c.g.HandBack(ctx, made["v"], made["v"].Grant.Lo+1); !errors.Is(err, context.Canceled) {
			t.Errorf("whose caller is gone: %v", err)
		}
		time.Sleep(time.Minute)
	})
}
