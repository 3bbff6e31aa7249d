package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// checkHandBackTogether: many hand-backs in one call do what each does in one of its own,
// and one that is not held any more keeps none of the others back.
func checkHandBackTogether(e *env) {
	n := e.node("n")
	var (
		all  []driver.HandBackOf
		want []bool
		tags []hapax.Tag
	)
	add := func(name string, held bool, f func(a *hapax.Allocation, next *int64)) {
		e.Helper()
		tag := e.segment(name, 10)
		first := e.allocate(tag.Name, 10)
		a := e.allocateAfter(tag.Name, 10, first.Key)
		next := int64(4)
		f(&a, &next)
		tag = e.tag(tag.Name)
		if held {
			tag.Mark, tag.Token = next, tag.Token+1
		}
		all, want, tags = append(all, driver.HandBackOf{Allocation: a, Next: next}), append(want, held), append(tags, tag)
	}
	as := func(*hapax.Allocation, *int64) {}
	for i := range 20 {
		add(fmt.Sprint("held ", i), true, as)
	}
	add("of another token", false, func(a *hapax.Allocation, _ *int64) { a.Tag.Token++ })
	add("of another key", false, func(a *hapax.Allocation, _ *int64) { a.Key += "x" })
	add("with an old mark", false, func(a *hapax.Allocation, _ *int64) { a.Grant.Hi-- })
	add("granted on", false, func(a *hapax.Allocation, _ *int64) { e.allocate(a.Tag.Name, 1) })
	add("deleted", false, func(a *hapax.Allocation, _ *int64) {
		_, err := e.store.DeleteTag(e.ctx, a.Tag.Name)
		e.must(err)
	})
	add("handed back", false, func(a *hapax.Allocation, _ *int64) { e.must(e.store.HandBack(e.ctx, *a, 5)) })
	add("below where it began", false, func(_ *hapax.Allocation, next *int64) { *next = 0 })
	add("the last", true, as)
	before := make([]hapax.Tag, len(all))
	for i, h := range all {
		before[i] = e.tag(h.Tag.Name)
	}

	e.swap(driver.TableFence, driver.RowFence, "", "{}")
	given, contact, err := e.guarding.HandBackAllWith(e.ctx, n.pulse(1, 2), all)
	e.must(err)
	if contact.Met || contact.Fence == nil {
		e.Errorf("under a fence the contact is %+v", contact)
	}
	for i, h := range all {
		if given[i] {
			e.Errorf("under a fence %q was handed back", h.Tag.Name)
		}
		equal(e, "the tag under a fence", e.tag(h.Tag.Name), before[i])
	}
	e.swap(driver.TableFence, driver.RowFence, "{}", "")

	given, contact, err = e.guarding.HandBackAllWith(e.ctx, n.pulse(1, 3), all)
	e.must(err)
	n.wantMet("HandBackAllWith", contact)
	n.wantRow("HandBackAllWith", 3)
	for i, h := range all {
		equal(e, fmt.Sprintf("whether %q was handed back", h.Tag.Name), given[i], want[i])
		equal(e, "the tag", e.tag(h.Tag.Name), tags[i])
	}
	given, _, err = e.guarding.HandBackAllWith(e.ctx, n.pulse(3, 4), all)
	e.must(err)
	for i, h := range all {
		if given[i] && !want[i] {
			e.Errorf("a repeated hand-back of %q was made", h.Tag.Name)
		}
		equal(e, "the tag after a repeated hand-back", e.tag(h.Tag.Name), tags[i])
	}
	all[0].Next = all[0].Grant.Hi + 1
	_, _, err = e.guarding.HandBackAllWith(e.ctx, n.pulse(4, 5), all)
	e.wantErr("a hand-back outside the segment", err, hapax.ErrInvalidArgument)
}

// checkHandBacksAtOnce: nodes, each with a handle of its own where the store allows that,
// hand back the same tags at the same time and are granted numbers of them again; none is
// used twice, and each node is told what it has handed back.
func checkHandBacksAtOnce(e *env) {
	const nodes, rounds, tags, step, uses = 3, 3, 8, 10, 3
	names := make([]string, tags)
	for i := range names {
		names[i] = e.segment(fmt.Sprint("at once ", i), step).Name
	}
	var (
		all  [nodes]node
		mu   sync.Mutex // guards used and back
		used = map[string][]hapax.Grant{}
		back = map[string]int{}
	)
	for i := range all {
		all[i] = e.node(fmt.Sprint("n", i))
	}
	handles := e.handles(nodes)
	for round := range int64(rounds) {
		var held [nodes][]driver.HandBackOf
		for i, name := range names {
			for turn := range nodes { // so that each has the highest segment of some tag
				n := (i + turn) % nodes
				a, err := handles[n].store.Allocate(e.ctx, name, step, "")
				e.must(err)
				held[n] = append(held[n], driver.HandBackOf{Allocation: a, Next: a.Grant.Lo + uses})
			}
		}
		var wg sync.WaitGroup
		for i, n := range all {
			wg.Go(func() {
				given, c, err := handles[i].guarding.HandBackAllWith(e.ctx, n.pulse(round+1, round+2), held[i])
				mu.Lock()
				defer mu.Unlock()
				if err != nil || !c.Met {
					e.Errorf("HandBackAllWith: %+v, error %v", c, err)
					return
				}
				for j, h := range held[i] {
					used[h.Tag.Name] = append(used[h.Tag.Name], hapax.Grant{Lo: h.Grant.Lo, Hi: h.Next})
					if given[j] {
						back[h.Tag.Name]++
					}
				}
			})
		}
		wg.Wait()
		for i, name := range names {
			// The highest segment goes back, which raises the token.
			if token := e.tag(name).Token; token != round+1 || int64(back[name]) != token {
				e.Errorf("after round %d the token of tag %d is %d, and %d hand-backs were told as made; want one in each round", round, i, token, back[name])
			}
		}
	}
	for name, all := range used {
		slices.SortFunc(all, func(a, b hapax.Grant) int { return cmp.Compare(a.Lo, b.Lo) })
		for i, g := range all[1:] {
			if g.Lo < all[i].Hi {
				e.Errorf("tag %q: [%d, %d) and [%d, %d) were both used", name, all[i].Lo, all[i].Hi, g.Lo, g.Hi)
			}
		}
		if mark := e.tag(name).Mark; mark < all[len(all)-1].Hi {
			e.Errorf("tag %q: the mark is %d, numbers below %d were used", name, mark, all[len(all)-1].Hi)
		}
	}
}

// checkAllocateTogether: many allocations in one call do what each does in one of its own,
// and one that a tag does not allow keeps none of the others back.
func checkAllocateTogether(e *env) {
	n := e.node("n")
	a, b := e.segment("a", 10), e.segment("ä'", 5)
	first := e.allocate(b.Name, 10)
	dead := e.segment("deleted", 10)
	_, err := e.store.DeleteTag(e.ctx, dead.Name)
	e.must(err)
	all := []driver.AllocateOf{
		{Tag: b.Name, N: 3, Last: first.Key},
		{Tag: a.Name, N: 0},
		{Tag: e.name("never made"), N: 1},
		{Tag: a.Name, N: 7},
		{Tag: dead.Name, N: 1},
		{Tag: a.Name, N: -1},
	}
	var names []string
	for i := range 120 {
		names = append(names, e.segment(fmt.Sprint("one ", i), 10).Name)
		all = append(all, driver.AllocateOf{Tag: names[i], N: 10})
	}

	e.swap(driver.TableFence, driver.RowFence, "", "{}")
	_, contact, err := e.guarding.AllocateAllWith(e.ctx, n.pulse(1, 2), all)
	e.must(err)
	if contact.Met || contact.Fence == nil {
		e.Errorf("under a fence the contact is %+v", contact)
	}
	equal(e, "the tag under a fence", e.tag(a.Name), a)
	e.swap(driver.TableFence, driver.RowFence, "{}", "")

	made, contact, err := e.guarding.AllocateAllWith(e.ctx, n.pulse(1, 3), all)
	e.must(err)
	n.wantMet("AllocateAllWith", contact)
	n.wantRow("AllocateAllWith", 3)
	for i, want := range []hapax.Grant{{Lo: 11, Hi: 14}, {Lo: 1, Hi: 11}, {}, {Lo: 11, Hi: 18}, {}, {}} {
		equal(e, fmt.Sprintf("grant %d", i), made[i].Grant, want)
	}
	e.wantErr("a tag that was never made", made[2].Err, hapax.ErrTagNotFound)
	e.wantErr("a deleted tag", made[4].Err, hapax.ErrTagDeleted)
	e.wantErr("a count below 0", made[5].Err, hapax.ErrInvalidArgument)
	equal(e, "where the first may be handed back to", made[0].From, 1)
	equal(e, "the mark of a", e.tag(a.Name).Mark, 18)
	for i, name := range names {
		equal(e, "the grant of "+name, made[6+i].Grant, hapax.Grant{Lo: 1, Hi: 11})
	}
	e.must(e.store.HandBack(e.ctx, made[0].Allocation, 5))
	e.must(e.store.HandBack(e.ctx, made[3].Allocation, 12))
	e.wantErr("a hand-back of what others were granted after", e.store.HandBack(e.ctx, made[1].Allocation, 2), hapax.ErrLeaseLost)
	equal(e, "the next grant of a", e.allocate(a.Name, 1).Grant, hapax.Grant{Lo: 12, Hi: 13})

	_, contact, err = e.guarding.AllocateAllWith(e.ctx, n.pulse(9, 10), all)
	e.must(err)
	n.wantNotMet("allocations of a row that went back", contact)
}
