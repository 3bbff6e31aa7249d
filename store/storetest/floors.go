package storetest

import (
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// floor states a floor of a tag.
func (e *env) floor(tag string, floor int64) hapax.Tag {
	e.Helper()
	t, err := e.store.UpdateTag(e.ctx, tag, driver.TagUpdate{Floor: &floor})
	e.must(err)
	equal(e, "the tag as a floor has left it", t, e.tag(tag))
	return t
}

// checkFloorInGrant: a floor that lies inside the last allocation, or below the mark and above
// where the run of its holder began, stays one: the holder cannot hand back any more.
func checkFloorInGrant(e *env) {
	tag := e.segment("t", 10)
	e.allocate(tag.Name, 5)
	for _, c := range []struct {
		what  string
		floor func(a hapax.Allocation) int64
		fits  bool // the hand-back
	}{
		{"inside the grant", func(a hapax.Allocation) int64 { return a.Grant.Lo + 6 }, false},
		{"one above its beginning", func(a hapax.Allocation) int64 { return a.Grant.Lo + 1 }, false},
		{"at the mark", func(a hapax.Allocation) int64 { return a.Grant.Hi }, false},
		{"at its beginning", func(a hapax.Allocation) int64 { return a.Grant.Lo }, true},
		{"below its beginning", func(hapax.Allocation) int64 { return 1 }, true},
	} {
		a := e.allocate(tag.Name, 10)
		before := e.tag(tag.Name)
		floor := c.floor(a)
		want := before
		if !c.fits {
			want.Token++
		}
		equal(e, "the tag after a floor "+c.what, e.floor(tag.Name, floor), want)
		if c.fits {
			e.must(e.store.HandBack(e.ctx, a, a.Grant.Lo+2))
			continue
		}
		e.refusesHandBack("a hand-back over a floor "+c.what, a, a.Grant.Lo+2)
		e.refusesHandBack("a hand-back of nothing over a floor "+c.what, a, a.Grant.Hi)
		equal(e, "the tag after the floor once more", e.floor(tag.Name, floor), want)
		next := e.allocateAfter(tag.Name, 3, a.Key)
		equal(e, "the grant after a floor "+c.what, next.Grant.Lo, a.Grant.Hi)
		equal(e, "where its run began", next.From, next.Grant.Lo)
		e.must(e.store.HandBack(e.ctx, next, next.Grant.Lo+1))
	}

	first := e.allocate(tag.Name, 10)
	second := e.allocateAfter(tag.Name, 10, first.Key)
	equal(e, "where the run began", second.From, first.Grant.Lo)
	e.floor(tag.Name, second.Grant.Lo) // inside the run
	e.refusesHandBack("a hand-back of a run with a floor inside", second, first.Grant.Lo)
}

// checkFloorAmongGrants: a floor that is stated while numbers are allocated stays one, whichever
// came first, when they are handed back.
func checkFloorAmongGrants(e *env) {
	const rounds = 40
	tag := e.segment("t", 10)
	handles := e.handles(2)
	for round := range rounds {
		mark := e.tag(tag.Name).Mark
		floor := mark + 1 + rand.Int64N(22)
		var a hapax.Allocation
		var wg sync.WaitGroup
		errs := make([]error, 2)
		calls := []func(){
			func() { a, errs[0] = handles[0].store.Allocate(e.ctx, tag.Name, 20, "") },
			func() {
				_, errs[1] = handles[len(handles)-1].store.UpdateTag(e.ctx, tag.Name, driver.TagUpdate{Floor: &floor})
			},
		}
		for i := range calls { // where calls are short, the one that is started last comes first
			wg.Go(calls[(i+round)%len(calls)])
		}
		wg.Wait()
		e.must(errors.Join(errs...))
		if err := e.store.HandBack(e.ctx, a, a.Grant.Lo); err != nil {
			e.wantRefusedHandBack("a hand-back after a floor", err)
		}
		if now := e.tag(tag.Name).Mark; now < floor {
			e.Errorf("the mark is %d after a floor of %d and the hand-back of %v", now, floor, a.Grant)
		}
	}
}
