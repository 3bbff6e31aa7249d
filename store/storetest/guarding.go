package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var guardChecks = []check{
	{"guard/beat", guards, checkBeat},
	{"guard/ended", guards, checkEnded},
	{"guard/fence", guards, checkFence},
	{"guard/allocate", guards, checkAllocateWith},
	{"guard/hand-back", guards, checkHandBackWith},
	{"guard/hand-back of many", guards, checkHandBackTogether},
	{"guard/hand-backs of many at once", guards, checkHandBacksAtOnce},
	{"guard/swap", guards, checkSwapWith},
	{"guard/allocations of many", guards, checkAllocateTogether},
	{"guard/tags by name", guards, checkTagsNamed},
	{"guard/rows by name", guards, checkRowsNamed},
	{"guard/swap of several rows", guards, checkSwapRows},
	{"guard/joins", guards, checkJoins},
	{"guard/changes", guards, checkChanges},
	{"guard/refused", guards, checkGuardRefused},
	{"guard/any order", guards, checkAnyOrder},
	{"guard/many nodes", guards, checkManyNodes},
	{"guard/fence while granting", guards, checkFenceWhileGranting},
}

// beat is a heartbeat of a process that has seen no join.
func beat(count int64) driver.Beat { return driver.Beat{Count: count} }

// A node is a process with its row.
type node struct {
	*env
	row string
}

// node registers a process whose row stands at count 1.
func (e *env) node(name string) node {
	e.Helper()
	n := node{e, e.name(name)}
	n.swap(driver.TableBeats, n.row, "", string(beat(1).Encode()))
	return n
}

func (n node) pulse(was, now int64) driver.Pulse {
	return driver.Pulse{Row: n.row, Was: beat(was), Now: beat(now)}
}

// AllocateWith is AllocateAllWith for one allocation.
func AllocateWith(ctx context.Context, s driver.Guarding, p driver.Pulse, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Contact, error) {
	made, c, err := s.AllocateAllWith(ctx, p, []driver.AllocateOf{{Tag: tag, N: n, Last: last}})
	if err != nil || !c.Met {
		return hapax.Allocation{}, c, err
	}
	return made[0].Allocation, c, made[0].Err
}

// HandBackWith is HandBackAllWith for one hand-back.
func HandBackWith(ctx context.Context, s driver.Guarding, p driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	given, c, err := s.HandBackAllWith(ctx, p, []driver.HandBackOf{{Allocation: a, Next: next}})
	if err == nil && c.Met && !given[0] {
		err = driver.NotHeld(a.Tag.Name)
	}
	return c, err
}

// wantRow reports a row of the process that is not at count.
func (n node) wantRow(what string, count int64) {
	n.Helper()
	n.wantValue("the row after "+what, driver.TableBeats, n.row, string(beat(count).Encode()))
}

// wantMet reports a beat that was not made.
func (n node) wantMet(what string, c driver.Contact) {
	n.Helper()
	if !c.Met || c.Row != nil || c.Fence != nil {
		n.Errorf("%s: the contact is %+v; want a beat that was made", what, c)
	}
}

// wantNotMet reports a beat that was made, or a contact that does not show the rows.
func (n node) wantNotMet(what string, c driver.Contact) {
	n.Helper()
	row, err := n.rows.Row(n.ctx, driver.TableBeats, n.row)
	n.must(err)
	fence, err := n.rows.Row(n.ctx, driver.TableFence, driver.RowFence)
	n.must(err)
	if c.Met || !bytes.Equal(c.Row, row) || !bytes.Equal(c.Fence, fence) || (c.Row == nil) != (row == nil) || (c.Fence == nil) != (fence == nil) {
		n.Errorf("%s: the contact is %+v with row %q and fence %q; want no beat, row %q and fence %q", what, c, c.Row, c.Fence, row, fence)
	}
}

// raise raises the fence, which the end of the check lifts.
func (e *env) raise(value string) (lift func()) {
	e.Helper()
	lift = func() {
		ctx := context.WithoutCancel(e.ctx)
		raw, err := e.rows.Row(ctx, driver.TableFence, driver.RowFence)
		if err == nil && raw != nil {
			_, err = e.rows.SwapRow(ctx, driver.TableFence, driver.RowFence, raw, nil)
		}
		if err != nil && !errors.Is(err, hapax.ErrClosed) {
			e.Errorf("the fence cannot be lifted: %v", err)
		}
	}
	e.Cleanup(lift)
	equal(e, "raising the fence", e.swap(driver.TableFence, driver.RowFence, "", value), true)
	return lift
}

func checkBeat(e *env) {
	n := e.node("n")
	for _, c := range []struct {
		what          string
		was, now, row int64
	}{
		{"a beat", 1, 2, 2},
		{"a beat whose answer was lost", 1, 2, 2},
		{"several beats at once", 2, 7, 7},
		{"a beat that was overtaken", 2, 3, 7},
		{"a beat that changes nothing", 7, 7, 7},
		{"a beat over ten", 7, 10, 10},
		{"a long beat", 10, 1 << 62, 1 << 62},
		{"a short beat after it", 99, 100, 1 << 62},
	} {
		contact, err := n.guarding.Beat(e.ctx, n.pulse(c.was, c.now))
		e.must(err)
		n.wantMet(c.what, contact)
		n.wantRow(c.what, c.row)
	}
	whole := driver.Beat{Count: 1<<62 + 1, Grants: 5, Seen: 7}
	contact, err := n.guarding.Beat(e.ctx, driver.Pulse{Row: n.row, Was: beat(1 << 62), Now: whole})
	e.must(err)
	n.wantMet("a beat with grants and joins", contact)
	raw, err := e.rows.Row(e.ctx, driver.TableBeats, n.row)
	e.must(err)
	equal(e, "the row after a beat with grants and joins", string(raw), string(whole.Encode()))
	for _, more := range []driver.Beat{{Count: whole.Count, Grants: 5, Seen: 8}, {Count: whole.Count, Grants: 6}, {Count: whole.Count + 1}} {
		contact, err = n.guarding.Beat(e.ctx, driver.Pulse{Row: n.row, Was: more, Now: driver.Beat{Count: 1<<62 + 9}})
		e.must(err)
		n.wantNotMet("a beat of a row that went back", contact)
	}
	n.wantValue("the row after beats that were not made", driver.TableBeats, n.row, string(whole.Encode()))

	gone := node{e, e.name("gone")}
	contact, err = gone.guarding.Beat(e.ctx, gone.pulse(1, 2))
	e.must(err)
	gone.wantNotMet("a beat without a row", contact)
	gone.wantValue("the row", driver.TableBeats, gone.row, "")
	other := e.node("n ") // a row of its own
	contact, err = other.guarding.Beat(e.ctx, other.pulse(1, 2))
	e.must(err)
	other.wantMet("a beat of another process", contact)
	n.wantValue("the first row after the other's beat", driver.TableBeats, n.row, string(whole.Encode()))
}

// guardedCalls are one of each guarded call, which all can be carried out.
func (n node) guardedCalls(p driver.Pulse) map[string]func() (bool, driver.Contact, error) {
	n.Helper()
	tag := n.segment("guarded", 10).Name
	a := n.allocate(tag, 10)
	table := n.name("guarded table")
	n.swap(table, "old", "", "a")
	n.swap(table, "gone", "", "a")
	return map[string]func() (bool, driver.Contact, error){
		"Beat": func() (bool, driver.Contact, error) {
			c, err := n.guarding.Beat(n.ctx, p)
			return c.Met, c, err
		},
		"AllocateWith": func() (bool, driver.Contact, error) {
			a, c, err := AllocateWith(n.ctx, n.guarding, p, n.create(hapax.Tag{Name: n.name("other")}, hapax.CreateExplicit).Name, 10, "")
			return a.Grant.Len() > 0, c, err
		},
		"HandBackWith": func() (bool, driver.Contact, error) {
			c, err := HandBackWith(n.ctx, n.guarding, p, a, 5)
			return n.tag(tag).Mark == 5, c, err
		},
		"SwapRowWith that adds": func() (bool, driver.Contact, error) {
			return n.guarding.SwapRowWith(n.ctx, p, table, "new", nil, []byte("b"))
		},
		"SwapRowWith that changes": func() (bool, driver.Contact, error) {
			return n.guarding.SwapRowWith(n.ctx, p, table, "old", []byte("a"), []byte("b"))
		},
		"SwapRowWith that removes": func() (bool, driver.Contact, error) {
			return n.guarding.SwapRowWith(n.ctx, p, table, "gone", []byte("a"), nil)
		},
	}
}

// refusesAll reports guarded calls that change something.
func (n node) refusesAll(what string, p driver.Pulse) {
	n.Helper()
	calls := n.guardedCalls(p)
	row, err := n.rows.Row(n.ctx, driver.TableBeats, n.row)
	n.must(err)
	before := n.tag(n.name("guarded"))
	for name, call := range calls {
		done, contact, err := call()
		n.must(err)
		n.wantNotMet(name+" "+what, contact)
		equal(n.env, name+" "+what+" does something", done, false)
	}
	n.wantValue("the row", driver.TableBeats, n.row, string(row))
	equal(n.env, "the tag", n.tag(before.Name), before)
	equal(n.env, "the other tag's mark", n.tag(n.name("other")).Mark, 1)
	for row, want := range map[string]string{"new": "", "old": "a", "gone": "a"} {
		n.wantValue("the row "+row, n.name("guarded table"), row, want)
	}
}

func checkEnded(e *env) {
	n := e.node("n")
	n.swap(driver.TableBeats, n.row, string(beat(1).Encode()), string(beat(1).EncodeEnded("silent")))
	n.refusesAll("of a process that has ended", n.pulse(1, 2))
	behind := env{TB: e.TB, h: e.h, ctx: e.ctx, prefix: e.prefix + "behind/", roles: e.roles}
	m := behind.node("n")
	m.refusesAll("of a process whose row went back", m.pulse(2, 3))
}

func checkFence(e *env) {
	n := e.node("n")
	lift := e.raise("who, when, why")
	n.refusesAll("under a fence", n.pulse(1, 2))
	lift()
	for name, call := range (node{&env{TB: e.TB, h: e.h, ctx: e.ctx, prefix: e.prefix + "lifted/", roles: e.roles}, n.row}).guardedCalls(n.pulse(1, 2)) {
		done, contact, err := call()
		e.must(err)
		n.wantMet(name+" after the fence", contact)
		equal(e, name+" after the fence does something", done, true)
	}
	n.wantRow("the fence", 2)
}

func checkAllocateWith(e *env) {
	n := e.node("n")
	tag := e.segment("t", 10)
	var last hapax.Allocation
	for i := range int64(5) {
		size := int64(10)
		if i == 2 {
			size = 0 // the tag's step
		}
		a, contact, err := AllocateWith(e.ctx, e.guarding, n.pulse(1, 2+i), tag.Name, size, last.Key)
		e.must(err)
		n.wantMet("AllocateWith", contact)
		n.wantRow("AllocateWith", 2+i)
		tag.Mark = 11 + 10*i
		equal(e, "the grant", a.Grant, hapax.Grant{Lo: 1 + 10*i, Hi: tag.Mark})
		equal(e, "its tag", a.Tag, tag)
		equal(e, "where it may be handed back to", a.From, 1)
		last = a
	}
	e.must(e.store.HandBack(e.ctx, last, 44))
	a, _, err := AllocateWith(e.ctx, e.guarding, n.pulse(6, 7), tag.Name, 3, "")
	e.must(err)
	equal(e, "the grant after a hand-back", a.Grant, hapax.Grant{Lo: 44, Hi: 47})
	equal(e, "its token", a.Tag.Token, 1)

	sparse := e.create(hapax.Tag{Name: e.name("sparse"), Start: 7, Delta: 10}, hapax.CreateFirstUse)
	a, _, err = AllocateWith(e.ctx, e.guarding, n.pulse(7, 8), sparse.Name, 3, "")
	e.must(err)
	equal(e, "the grant of a sparse tag", a.Grant, hapax.Grant{Lo: 7, Hi: 37})

	e.create(hapax.Tag{Name: e.name("snowflake"), Kind: hapax.KindSnowflake}, hapax.CreateFirstUse)
	e.segment("deleted", 10)
	_, err = e.store.DeleteTag(e.ctx, e.name("deleted"))
	e.must(err)
	e.create(hapax.Tag{Name: e.name("short"), Start: hapax.MaxMark - 5}, hapax.CreateFirstUse)
	for name, want := range map[string]*hapax.Error{
		"unknown": hapax.ErrTagNotFound, "deleted": hapax.ErrTagDeleted, "snowflake": hapax.ErrKindMismatch, "short": hapax.ErrLineExhausted,
	} {
		a, _, err := AllocateWith(e.ctx, e.guarding, n.pulse(8, 9), e.name(name), 10, "")
		e.wantErr("AllocateWith of a tag that is "+name, err, want)
		equal(e, "what was granted with an error", a.Grant, hapax.Grant{})
	}
	_, _, err = AllocateWith(e.ctx, e.guarding, n.pulse(8, 9), tag.Name, -1, "")
	e.wantErr("AllocateWith of less than nothing", err, hapax.ErrInvalidArgument)
	contact, err := e.guarding.Beat(e.ctx, n.pulse(8, 10))
	e.must(err)
	n.wantMet("the beat after errors of tags", contact)
}

func checkHandBackWith(e *env) {
	n := e.node("n")
	tag := e.segment("t", 10)
	first := e.allocate(tag.Name, 10)
	a := e.allocateAfter(tag.Name, 10, first.Key)
	below := func(what string, a hapax.Allocation, next int64, p driver.Pulse) {
		e.Helper()
		before := e.tag(tag.Name)
		_, err := HandBackWith(e.ctx, e.guarding, p, a, next)
		e.wantRefusedHandBack(what, err)
		equal(e, "the tag after "+what, e.tag(tag.Name), before)
	}
	stale := a
	stale.Tag.Token++
	below("a hand-back under another token", stale, 5, n.pulse(1, 2))
	below("a hand-back of what was granted before", first, 5, n.pulse(1, 2))
	contact, err := HandBackWith(e.ctx, e.guarding, n.pulse(1, 3), a, 4)
	e.must(err)
	n.wantMet("HandBackWith", contact)
	n.wantRow("HandBackWith", 3)
	tag.Mark, tag.Token = 4, 1
	equal(e, "the tag after HandBackWith", e.tag(tag.Name), tag)
	below("a repeated hand-back", a, 4, n.pulse(1, 3))
	_, err = HandBackWith(e.ctx, e.guarding, n.pulse(3, 4), a, a.Grant.Hi+1)
	e.wantErr("a hand-back outside the segment", err, hapax.ErrInvalidArgument)
	equal(e, "the next grant", e.allocate(tag.Name, 2).Grant, hapax.Grant{Lo: 4, Hi: 6})

	open := e.allocate(tag.Name, 10)
	e.floor(tag.Name, 12)
	below("a hand-back below a floor inside the grant", open, 8, n.pulse(1, 3))
}

func checkTagsNamed(e *env) {
	want := map[string]hapax.Tag{}
	names := []string{e.name("never made")}
	for _, name := range []string{"a", "ä'", "b"} {
		tag := e.segment(name, 10)
		e.allocate(tag.Name, 10)
		want[tag.Name] = e.tag(tag.Name)
		names = append(names, tag.Name)
	}
	tags, err := e.guarding.TagsNamed(e.ctx, names)
	e.must(err)
	got := map[string]hapax.Tag{}
	for _, tag := range tags {
		got[tag.Name] = tag
	}
	if len(tags) != len(want) || !maps.Equal(got, want) {
		e.Errorf("the tags named %q are %+v; want %+v", names, tags, want)
	}
	if tags, err = e.guarding.TagsNamed(e.ctx, nil); len(tags) > 0 || err != nil {
		e.Errorf("no tags by name are %+v, %v", tags, err)
	}
}

func checkSwapWith(e *env) {
	n := e.node("n")
	table := e.name("table")
	current := ""
	for i, c := range []struct {
		name      string
		old, next string
		want      bool
	}{
		{"expected, but there is no row", "a", "b", false},
		{"removal of a row that is not there", "a", "", false},
		{"first", "", "a", true},
		{"first again", "", "b", false},
		{"another value", "b", "c", false},
		{"other case", "A", "c", false},
		{"a space behind", "a ", "c", false},
		{"change", "a", "b", true},
		{"the change again", "a", "b", false},
		{"back", "b", "a", true},
		{"removal of another value", "b", "", false},
		{"removal", "a", "", true},
		{"removal again", "a", "", false},
		{"first after the removal", "", "\x00\xff'", true},
		{"bytes", "\x00\xff'", "\\", true},
	} {
		count := int64(i + 2)
		ok, contact, err := e.guarding.SwapRowWith(e.ctx, n.pulse(count-1, count), table, "row", valueOf(c.old), valueOf(c.next))
		e.must(err)
		equal(e, "swap: "+c.name, ok, c.want)
		if c.want {
			current = c.next
		}
		n.wantMet("the swap: "+c.name, contact)
		n.wantRow("the swap: "+c.name, count) // also where the row was another: the call was carried out
		e.wantValue("the row after "+c.name, table, "row", current)
	}
	ok, _, err := e.guarding.SwapRowWith(e.ctx, n.pulse(1, 2), driver.TableBeats, e.name("another"), nil, beat(1).Encode())
	e.must(err)
	equal(e, "a swap of another process's row", ok, true)
	for _, own := range [][2]string{{driver.TableBeats, n.row}, {driver.TableFence, driver.RowFence}} {
		_, _, err := e.guarding.SwapRowWith(e.ctx, n.pulse(1, 2), own[0], own[1], nil, []byte("x"))
		e.wantErr("a swap of the process's own row or the fence", err, hapax.ErrInvalidArgument)
	}
	_, _, err = e.guarding.SwapRowWith(e.ctx, n.pulse(1, 2), table, "row", []byte("a"), []byte("a"))
	e.wantErr("a swap that changes nothing", err, hapax.ErrInvalidArgument)
}

func checkJoins(e *env) {
	n := e.node("n")
	joins := func() (int64, string) {
		raw, err := e.rows.Row(e.ctx, driver.TableGuard, driver.RowJoins)
		e.must(err)
		count, err := driver.DecodeCounter(driver.TableGuard, driver.RowJoins, raw)
		e.must(err)
		return count, string(raw)
	}
	for i := range 3 {
		count, raw := joins()
		e.swap(driver.TableGuard, driver.RowJoins, raw, string(driver.EncodeCounter(count+1)))
		sub := env{TB: e.TB, h: e.h, ctx: e.ctx, prefix: e.prefix + fmt.Sprint(i, "/"), roles: e.roles}
		for name, call := range (node{&sub, n.row}).guardedCalls(n.pulse(1, int64(i)+2)) {
			_, contact, err := call()
			e.must(err)
			equal(e, "the joins that "+name+" has seen", contact.Joins, count+1)
		}
	}
	count, _ := joins()
	contact, err := n.guarding.Beat(e.ctx, n.pulse(9, 9))
	e.must(err)
	n.wantNotMet("a beat of a row that went back", contact)
	equal(e, "the joins that a beat has seen that was not made", contact.Joins, count)
}

// checkChanges: a beat alone tells the number of changes, and the row that the pulse watches
// where the store looks at it.
func checkChanges(e *env) {
	n, other := e.node("n"), e.node("other")
	for i := range int64(3) {
		raw, err := e.rows.Row(e.ctx, driver.TableGuard, driver.RowChanges)
		e.must(err)
		count, err := driver.DecodeCounter(driver.TableGuard, driver.RowChanges, raw)
		e.must(err)
		e.swap(driver.TableGuard, driver.RowChanges, string(raw), string(driver.EncodeCounter(count+1)))
		_, err = other.guarding.Beat(e.ctx, other.pulse(1, i+2))
		e.must(err)
		p := n.pulse(1, i+2)
		for _, watch := range []string{other.row, e.name("nobody"), ""} {
			p.Watch = watch
			contact, err := n.guarding.Beat(e.ctx, p)
			e.must(err)
			n.wantMet("a beat that watches a row", contact)
			equal(e, "the changes that a beat has seen", contact.Changes, count+1)
			want := ""
			if watch == other.row {
				want = string(beat(i + 2).Encode())
			}
			switch {
			case watch == "":
				equal(e, "whether a beat that watches nothing has looked at it", contact.Watches, false)
			case contact.Watches && (string(contact.Watched) != want || (contact.Watched == nil) != (want == "")):
				e.Errorf("the row %s to watch is %q; want %q", watch, contact.Watched, want)
			}
		}
	}
}

func checkGuardRefused(e *env) {
	n := e.node("n")
	tag := e.segment("t", 10)
	for what, p := range map[string]driver.Pulse{
		"no row":                {Was: beat(1), Now: beat(2)},
		"no beat":               {Row: n.row},
		"a step back":           {Row: n.row, Was: beat(2), Now: beat(1)},
		"a negative one":        {Row: n.row, Was: beat(1), Now: driver.Beat{Count: 2, Seen: -1}},
		"a row that is no text": {Row: "\xff", Was: beat(1), Now: beat(2)},
	} {
		_, err := e.guarding.Beat(e.ctx, p)
		e.wantErr("Beat with "+what, err, hapax.ErrInvalidArgument)
		_, _, err = AllocateWith(e.ctx, e.guarding, p, tag.Name, 1, "")
		e.wantErr("AllocateWith with "+what, err, hapax.ErrInvalidArgument)
	}
	n.wantRow("calls that were refused", 1)
	equal(e, "the mark after calls that were refused", e.tag(tag.Name).Mark, 1)
}

// checkAnyOrder: the calls of one process are carried out in any order, and the
// row ends where the furthest of them is.
func checkAnyOrder(e *env) {
	n := e.node("n")
	tags := []string{e.segment("a", 10).Name, e.segment("b", 10).Name}
	var next atomic.Int64
	next.Store(1)
	var mu sync.Mutex // guards grants
	grants := map[string][]hapax.Grant{}
	inParallel(e, slices.Repeat(e.handles(6), 2), func(ctx context.Context, h roles) error {
		for range 5 {
			p := n.pulse(1, next.Add(1))
			tag := tags[rand.IntN(2)]
			a, contact, err := AllocateWith(ctx, h.guarding, p, tag, 1+rand.Int64N(9), "")
			if err != nil || !contact.Met {
				return fmt.Errorf("the contact is %+v, error %w", contact, err)
			}
			mu.Lock()
			grants[tag] = append(grants[tag], a.Grant)
			mu.Unlock()
		}
		return nil
	})
	for tag, g := range grants {
		e.disjoint("the grants of "+tag, g, true)
	}
	n.wantRow("calls in any order", next.Load())
}

// checkManyNodes: many processes are granted disjoint numbers, and no beat is lost.
func checkManyNodes(e *env) {
	handles := e.handles(6)
	tag := e.segment("t", 10).Name
	nodes := make(chan node, len(handles))
	for i := range handles {
		nodes <- e.node(fmt.Sprint("node ", i))
	}
	var mu sync.Mutex // guards grants
	var grants []hapax.Grant
	inParallel(e, handles, func(ctx context.Context, h roles) error {
		n := <-nodes
		var last hapax.GrantKey
		for i := range int64(8) {
			a, contact, err := AllocateWith(ctx, h.guarding, n.pulse(1+i, 2+i), tag, 1+rand.Int64N(9), last)
			if err != nil || !contact.Met {
				return fmt.Errorf("the contact is %+v, error %w", contact, err)
			}
			last = a.Key
			mu.Lock()
			grants = append(grants, a.Grant)
			mu.Unlock()
		}
		return nil
	})
	e.disjoint("the grants", grants, true)
}

// checkFenceWhileGranting: no call that begins after a fence was acknowledged is
// carried out.
func checkFenceWhileGranting(e *env) {
	n := e.node("n")
	tag := e.segment("t", 10).Name
	var raised, stop atomic.Bool
	var granted atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for _, h := range slices.Repeat(e.handles(6)[1:], 2) {
		wg.Go(func() {
			for i := int64(1); !stop.Load(); i++ {
				before := raised.Load()
				_, contact, err := AllocateWith(e.ctx, h.guarding, n.pulse(1, 1+i), tag, 1, "")
				switch {
				case err != nil:
					e.Errorf("AllocateWith: %v", err)
					return
				case contact.Met && before:
					e.Errorf("a grant under a fence that stood before")
					return
				case contact.Met:
					granted.Add(1)
				}
			}
		})
	}
	for granted.Load() < 20 && e.ctx.Err() == nil && !e.Failed() {
		if _, err := e.rows.Row(e.ctx, driver.TableGuard, driver.RowJoins); err != nil {
			break
		}
	}
	lift := e.raise("now")
	raised.Store(true)
	for range 20 {
		contact, err := n.guarding.Beat(e.ctx, n.pulse(1, 1))
		e.must(err)
		equal(e, "a beat under the fence", contact.Met, false)
	}
	stop.Store(true)
	wg.Wait()
	lift()
}
