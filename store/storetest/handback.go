package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var handBackChecks = []check{
	{"hand-back/rest", handsBack, checkHandBack},
	{"hand-back/late", handsBack, checkLateHandBack},
	{"hand-back/same mark again", handsBack, checkHandBackABA},
	{"hand-back/wrong key", handsBack, checkHandBackKey},
	{"hand-back/adjoining", handsBack, checkAdjoining},
	{"hand-back/below", handsBack, checkHandBackBelow},
	{"hand-back/floor in between", handsBack, checkHandBackFloor},
	{"hand-back/floor in a grant", handsBack, checkFloorInGrant},
	{"hand-back/floor among grants", handsBack, checkFloorAmongGrants},
	{"hand-back/token", handsBack, checkToken},
	{"hand-back/deleted", handsBack, checkHandBackDeleted},
	{"hand-back/at the same time", handsBack, checkHandBackChurn},
	{"hand-back/not supported", func(c Capabilities) bool { return !c.WorkersOnly && c.NoHandBack }, checkNoHandBack},
}

// wantRefusedHandBack reports an error that is not one of a hand-back that came
// too late.
func (e *env) wantRefusedHandBack(what string, err error) {
	e.Helper()
	if !errors.Is(err, hapax.ErrLeaseLost) && !errors.Is(err, hapax.ErrTagDeleted) && !errors.Is(err, hapax.ErrTagNotFound) {
		e.Errorf("%s: error is %v; want ErrLeaseLost", what, err)
	}
}

// refusesHandBack reports a hand-back that was not refused, or changed the tag.
func (e *env) refusesHandBack(what string, a hapax.Allocation, next int64) {
	e.Helper()
	before := e.tag(a.Tag.Name)
	e.wantRefusedHandBack(what, e.store.HandBack(e.ctx, a, next))
	equal(e, "the tag after "+what, e.tag(a.Tag.Name), before)
}

// checkHandBack: what was handed back is what is granted next, once, and an
// allocation comes with a key of its own.
func checkHandBack(e *env) {
	tag := e.segment("t", 10)
	keys := map[hapax.GrantKey]bool{}
	for _, c := range []struct{ n, used int64 }{{10, 3}, {10, 0}, {1, 1}, {1000, 999}, {1, 0}} {
		lo := e.tag(tag.Name).Mark
		a := e.allocate(tag.Name, c.n)
		if a.Key == "" || keys[a.Key] {
			e.Errorf("the key of an allocation is %q, which is empty or was there before", string(a.Key))
		}
		keys[a.Key] = true
		equal(e, "the grant", a.Grant, hapax.Grant{Lo: lo, Hi: lo + c.n})
		equal(e, "where it may be handed back to", a.From, lo)
		for _, next := range []int64{-1, a.Grant.Hi + 1, hapax.MaxMark} {
			e.wantErr("a hand-back outside the segment", e.store.HandBack(e.ctx, a, next), hapax.ErrInvalidArgument)
		}
		e.must(e.store.HandBack(e.ctx, a, lo+c.used))
		tag.Mark = lo + c.used
		tag.Token++
		equal(e, "the tag after the hand-back", e.tag(tag.Name), tag)
	}
}

// checkLateHandBack: a hand-back that is repeated, or comes after another
// allocation, does nothing.
func checkLateHandBack(e *env) {
	tag := e.segment("t", 10)
	first := e.allocate(tag.Name, 10)
	e.must(e.store.HandBack(e.ctx, first, 6))
	e.refusesHandBack("a repeated hand-back", first, 6)
	e.refusesHandBack("a repeated hand-back of more", first, 3)
	second := e.allocate(tag.Name, 10)
	e.refusesHandBack("a hand-back after somebody's allocation", first, 6)
	third := e.allocate(tag.Name, 10)
	e.refusesHandBack("a hand-back after another allocation", second, second.Grant.Lo)
	e.must(e.store.HandBack(e.ctx, third, third.Grant.Lo))
	e.refusesHandBack("a hand-back after the one of another allocation", second, second.Grant.Lo)
	unknown := third
	unknown.Tag.Name = e.name("unknown")
	e.wantRefusedHandBack("a hand-back to a tag that does not exist", e.store.HandBack(e.ctx, unknown, third.Grant.Lo))

	whole := e.allocate(tag.Name, 10)
	e.must(e.store.HandBack(e.ctx, whole, whole.Grant.Hi)) // nothing is left to hand back
	equal(e, "the next grant", e.allocate(tag.Name, 1).Grant.Lo, whole.Grant.Hi)
}

// checkHandBackABA: numbers that were handed back and granted again up to the
// same mark are not handed back once more by their first holder.
func checkHandBackABA(e *env) {
	tag := e.segment("t", 10)
	first := e.allocate(tag.Name, 10)
	e.must(e.store.HandBack(e.ctx, first, 6))
	second := e.allocate(tag.Name, 5)
	equal(e, "the mark", second.Grant.Hi, first.Grant.Hi)
	e.refusesHandBack("a late hand-back at the same mark", first, 6)
	e.refusesHandBack("a late hand-back of all at the same mark", first, 1)

	third := e.allocateAfter(tag.Name, 10, first.Key) // a key that was handed back adjoins nothing
	equal(e, "where the next allocation may be handed back to", third.From, third.Grant.Lo)
	e.must(e.store.HandBack(e.ctx, third, third.Grant.Lo))
	fourth := e.allocateAfter(tag.Name, 10, third.Key)
	equal(e, "where one after a hand-back may be handed back to", fourth.From, fourth.Grant.Lo)
}

func checkHandBackKey(e *env) {
	tag := e.segment("t", 10)
	other := e.allocate(e.segment("other", 10).Name, 10)
	a := e.allocate(tag.Name, 10)
	for what, key := range map[string]hapax.GrantKey{
		"no key": "", "another tag's key": other.Key, "a longer key": a.Key + "0", "a made-up key": "00000000000000000000000000000000", "quotes": `' OR ''='`,
	} {
		forged := a
		forged.Key = key
		e.refusesHandBack("a hand-back with "+what, forged, 1)
	}
	for _, hi := range []int64{a.Grant.Hi - 1, a.Grant.Hi + 1} { // a mark that it is not
		forged := a
		forged.Grant.Hi = hi
		e.refusesHandBack("a hand-back from another mark", forged, 5)
	}
	for _, token := range []int64{a.Tag.Token + 1, a.Tag.Token - 1, -1} {
		forged := a
		forged.Tag.Token = token
		e.refusesHandBack("a hand-back under another token", forged, 5)
	}
	e.must(e.store.HandBack(e.ctx, a, 1))
}

// checkAdjoining: segments that one caller took one after the other can be
// handed back together, unless somebody else took one in between.
func checkAdjoining(e *env) {
	tag := e.segment("t", 10)
	var a hapax.Allocation
	for i := range int64(4) {
		a = e.allocateAfter(tag.Name, 10, a.Key)
		equal(e, "where the run began", a.From, 1)
		equal(e, "the grant", a.Grant, hapax.Grant{Lo: 1 + 10*i, Hi: 11 + 10*i})
	}
	e.must(e.store.HandBack(e.ctx, a, 15))
	equal(e, "the mark", e.tag(tag.Name).Mark, 15)

	mine := e.allocate(tag.Name, 5)
	theirs := e.allocateAfter(tag.Name, 5, "")
	equal(e, "where somebody else's run began", theirs.From, 20)
	again := e.allocateAfter(tag.Name, 5, mine.Key)
	equal(e, "where a run began that somebody interrupted", again.From, 25)
	e.refusesHandBack("a hand-back of what somebody else has", again, 24)
	e.must(e.store.HandBack(e.ctx, again, 25))

	sparse := e.create(hapax.Tag{Name: e.name("sparse"), Start: 7, Delta: 10}, hapax.CreateFirstUse)
	b := e.allocateAfter(sparse.Name, 3, e.allocate(sparse.Name, 2).Key)
	equal(e, "where a run of a sparse tag began", b.From, 7)
	equal(e, "its grant", b.Grant, hapax.Grant{Lo: 27, Hi: 57})
	e.must(e.store.HandBack(e.ctx, b, 13))
	equal(e, "the next grant of a sparse tag", e.allocate(sparse.Name, 1).Grant, hapax.Grant{Lo: 13, Hi: 23})
}

// checkHandBackBelow: nothing goes back that the caller was not granted,
// whatever it claims.
func checkHandBackBelow(e *env) {
	tag := e.segment("t", 10)
	e.allocate(tag.Name, 10)
	a := e.allocate(tag.Name, 10)
	for _, next := range []int64{10, 1, 0} {
		forged := a
		e.refusesHandBack("a hand-back below the segment", forged, next)
		forged.From, forged.Grant.Lo = 1, 1
		e.refusesHandBack("a hand-back below the segment with a forged beginning", forged, next)
	}
	e.must(e.store.HandBack(e.ctx, a, 11))
}

// checkHandBackFloor: a raised mark ends what could be handed back, and nothing
// lowers it below the floor.
func checkHandBackFloor(e *env) {
	tag := e.segment("t", 10)
	raise := func(floor int64) {
		_, err := e.store.UpdateTag(e.ctx, tag.Name, driver.TagUpdate{Floor: &floor})
		e.must(err)
	}
	a := e.allocate(tag.Name, 10)
	raise(500)
	e.refusesHandBack("a hand-back below a floor", a, 5)
	b := e.allocateAfter(tag.Name, 10, a.Key)
	equal(e, "the grant above the floor", b.Grant, hapax.Grant{Lo: 500, Hi: 510})
	equal(e, "where it may be handed back to", b.From, 500)
	e.refusesHandBack("a hand-back below the floor", b, 499)
	raise(400) // below the mark: changes nothing
	c := e.allocateAfter(tag.Name, 10, b.Key)
	equal(e, "where the run began", c.From, 500)
	e.must(e.store.HandBack(e.ctx, c, 503))

	d := e.allocate(tag.Name, 10) // [503, 513)
	_, err := e.store.DeleteTag(e.ctx, tag.Name)
	e.must(err)
	e.create(hapax.Tag{Name: tag.Name, Start: 600}, hapax.CreateExplicit)
	e.refusesHandBack("a hand-back from before a revival", d, 503)
	f := e.allocateAfter(tag.Name, 10, d.Key)
	equal(e, "where a run after a revival began", f.From, 600)
}

func checkHandBackDeleted(e *env) {
	tag := e.segment("t", 10)
	a := e.allocate(tag.Name, 10)
	_, err := e.store.DeleteTag(e.ctx, tag.Name)
	e.must(err)
	e.refusesHandBack("a hand-back to a deleted tag", a, 5)
}

// checkHandBackChurn: callers that allocate and hand back at the same time, late
// and repeatedly, never keep the same number.
func checkHandBackChurn(e *env) {
	tag := e.segment("t", 10)
	var mu sync.Mutex // guards kept
	var kept []hapax.Grant
	inParallel(e, e.handles(6), func(ctx context.Context, h roles) error {
		var mine []hapax.Grant
		var last hapax.Allocation
		var key hapax.GrantKey
		for range 20 {
			a, err := h.store.Allocate(ctx, tag.Name, 1+rand.Int64N(10), key)
			if err != nil {
				return err
			}
			key = a.Key
			mine = append(mine, a.Grant)
			if rand.IntN(2) == 0 {
				runtime.Gosched()
			}
			if rand.IntN(2) == 0 {
				next := a.From + rand.Int64N(a.Grant.Hi-a.From+1)
				switch err := h.store.HandBack(ctx, a, next); {
				case err == nil:
					mine = cut(mine, next)
				case !errors.Is(err, hapax.ErrLeaseLost):
					return err
				}
			}
			if last.Key != "" && h.store.HandBack(ctx, last, last.Grant.Lo) == nil {
				return errors.New("an allocation was handed back after its caller's next one")
			}
			last = a
			if rand.IntN(3) == 0 {
				last = hapax.Allocation{}
			}
		}
		mu.Lock()
		kept = append(kept, mine...)
		mu.Unlock()
		return nil
	})
	e.disjoint("what callers kept", kept, false)
}

// cut drops what grants have from next on.
func cut(grants []hapax.Grant, next int64) []hapax.Grant {
	for len(grants) > 0 && grants[len(grants)-1].Lo >= next {
		grants = grants[:len(grants)-1]
	}
	if n := len(grants); n > 0 {
		grants[n-1].Hi = min(grants[n-1].Hi, next)
	}
	return grants
}

func checkNoHandBack(e *env) {
	a := e.allocate(e.segment("t", 10).Name, 10)
	equal(e, "the key of a segment that cannot be handed back", string(a.Key), "")
	e.wantErr("HandBack", e.store.HandBack(e.ctx, a, 5), hapax.ErrNotSupported)
}

// checkToken: the token belongs to the tag's line, whatever is done to its definition.
func checkToken(e *env) {
	want := e.create(hapax.Tag{Name: e.name("t"), Token: 9}, hapax.CreateFirstUse)
	equal(e, "the token of a new tag", want.Token, 0)
	e.must(e.store.HandBack(e.ctx, e.allocate(want.Name, 10), 5))
	step := int64(7)
	for _, c := range []struct {
		what   string
		change func() (hapax.Tag, error)
	}{
		{"an update", func() (hapax.Tag, error) { return e.store.UpdateTag(e.ctx, want.Name, driver.TagUpdate{Step: &step}) }},
		{"a deletion", func() (hapax.Tag, error) { return e.store.DeleteTag(e.ctx, want.Name) }},
		{"a revival", func() (hapax.Tag, error) {
			def, err := hapax.Tag{Name: want.Name, Token: 9}.WithDefaults()
			e.must(err)
			return e.store.CreateTag(e.ctx, def, hapax.CreateExplicit)
		}},
	} {
		tag, err := c.change()
		e.must(err)
		equal(e, "the token after "+c.what, tag.Token, 1)
		equal(e, "the token as stored after "+c.what, e.tag(want.Name).Token, 1)
	}
	equal(e, "the token of an allocation", e.allocate(want.Name, 1).Tag.Token, 1)
}
