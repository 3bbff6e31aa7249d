package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var tagChecks = []check{
	{"tags/create", segments, checkCreate},
	{"tags/delete and revive", segments, checkRevive},
	{"tags/delete and revive with a later start", segments, checkReviveRun},
	{"tags/renewed tombstone", segments, checkTombstone},
	{"tags/kind is frozen", segments, checkKind},
	{"tags/update", segments, checkUpdate},
	{"tags/names", segments, checkNames},
	{"tags/list", segments, checkList},
	{"tags/one creation wins", segments, checkCreateRace},
	{"tags/model", segments, checkModel},
}

// checkCreate: a tag is stored as it was defined, once.
func checkCreate(e *env) {
	for _, def := range []hapax.Tag{
		{Name: e.name("defaults")},
		{Name: e.name("small"), Start: 1, Step: 1, MinStep: 1, MaxStep: 1},
		{Name: e.name("large"), Start: hapax.MaxMark - 1, Step: hapax.MaxStep, MinStep: hapax.MaxStep, MaxStep: hapax.MaxStep},
		{Name: e.name("sparse"), Delta: hapax.MaxDelta, Remainder: hapax.MaxDelta - 1},
		{Name: e.name("extra"), Extra: "{\"a\": [1, 'b', \x00\u2028 \r\n\t é 🂡 \\]} "},
		{Name: e.name("long extra"), Extra: strings.Repeat("é", hapax.MaxExtraBytes/2)},
		{Name: e.name("flake"), Kind: hapax.KindSnowflake, Extra: "x"},
		{Name: e.name("flake pool"), Kind: hapax.KindSnowflake, Pool: e.name("Ω")},
	} {
		_, err := e.store.Tag(e.ctx, def.Name)
		e.wantErr("Tag before it exists", err, hapax.ErrTagNotFound)
		want, err := def.WithDefaults()
		e.must(err)
		equal(e, "the created tag", e.create(def, hapax.CreateFirstUse), want)
		equal(e, "the stored tag", e.tag(def.Name), want)
		for _, mode := range []hapax.CreateMode{hapax.CreateFirstUse, hapax.CreateExplicit} {
			_, err = e.store.CreateTag(e.ctx, want, mode)
			e.wantErr("CreateTag of a tag that exists", err, hapax.ErrTagExists)
		}
	}
}

// checkRevive: a deleted tag leaves a tombstone, which only an explicit
// creation turns into a tag again, above its mark.
func checkRevive(e *env) {
	tag := e.segment("t", 10)
	e.allocate(tag.Name, 100)
	dead, err := e.store.DeleteTag(e.ctx, tag.Name)
	e.must(err)
	for what, got := range map[string]hapax.Tag{"the deleted tag": dead, "the stored tombstone": e.tag(tag.Name)} {
		if !got.Deleted || got.Mark != 101 || got.Kind != hapax.KindSegment || got.Name != tag.Name {
			e.Errorf("%s is %+v; want a tombstone that keeps name, kind and mark 101", what, got)
		}
	}
	step := int64(5)
	_, err = e.store.Allocate(e.ctx, tag.Name, 1, "")
	e.wantErr("Allocate", err, hapax.ErrTagDeleted)
	_, err = e.store.DeleteTag(e.ctx, tag.Name)
	e.wantErr("DeleteTag again", err, hapax.ErrTagDeleted)
	_, err = e.store.UpdateTag(e.ctx, tag.Name, driver.TagUpdate{Step: &step})
	e.wantErr("UpdateTag", err, hapax.ErrTagDeleted)
	_, err = e.store.CreateTag(e.ctx, tag, hapax.CreateFirstUse)
	e.wantErr("CreateTag on first use", err, hapax.ErrTagDeleted)
	_, err = e.store.DeleteTag(e.ctx, e.name("unknown"))
	e.wantErr("DeleteTag of a tag that does not exist", err, hapax.ErrTagNotFound)

	for _, c := range []struct{ start, lo int64 }{{1, 101}, {50, 102}, {5000, 5000}} {
		revived := e.create(hapax.Tag{Name: tag.Name, Start: c.start, Step: 20}, hapax.CreateExplicit)
		equal(e, "the revived tag's mark", revived.Mark, c.lo)
		equal(e, "the revived tag's step", revived.Step, 20)
		equal(e, "the stored tag", e.tag(tag.Name), revived)
		equal(e, "the grant after the revival", e.allocate(tag.Name, 1).Grant, hapax.Grant{Lo: c.lo, Hi: c.lo + 1})
		_, err := e.store.DeleteTag(e.ctx, tag.Name)
		e.must(err)
	}
}

// checkReviveRun: the owner of the last segment goes on from it although the tag was
// deleted meanwhile, and made again with a start that it does not reach below. A later start is a
// floor: nothing that is handed back brings the tag below it.
func checkReviveRun(e *env) {
	for _, c := range []struct{ start, from, back, lo int64 }{
		{1, 51, 70, 70}, // as where the start is not given
		{51, 51, 51, 51},
		{52, 151, 151, 151},
		{151, 151, 155, 155},
	} {
		name := e.name(fmt.Sprintf("t%d", c.start))
		e.create(hapax.Tag{Name: name}, hapax.CreateExplicit)
		e.allocate(name, 50)
		first := e.allocate(name, 100)
		_, err := e.store.DeleteTag(e.ctx, name)
		e.must(err)
		revived := e.create(hapax.Tag{Name: name, Start: c.start}, hapax.CreateExplicit)
		equal(e, "the revived tag's mark", revived.Mark, 151)
		equal(e, "the stored tag", e.tag(name), revived)
		if c.from > 51 && !e.h.Capabilities.NoHandBack {
			e.wantErr("HandBack from below the start", e.store.HandBack(e.ctx, first, 140), hapax.ErrLeaseLost)
		}
		next, err := e.store.Allocate(e.ctx, name, 10, first.Key)
		e.must(err)
		equal(e, "the grant after the revival", next.Grant, hapax.Grant{Lo: 151, Hi: 161})
		if e.h.Capabilities.NoHandBack {
			continue
		}
		equal(e, fmt.Sprintf("where the run began, revived with start %d", c.start), next.From, c.from)
		e.must(e.store.HandBack(e.ctx, next, c.back))
		equal(e, "the grant after the hand-back", e.allocate(name, 1).Grant, hapax.Grant{Lo: c.lo, Hi: c.lo + 1})
	}
}

// checkTombstone: one that is made, or renewed, is revived by nobody with an older token.
func checkTombstone(e *env) {
	def, err := hapax.Tag{Name: e.name("t"), Start: 50}.WithDefaults()
	e.must(err)
	_, err = e.store.CreateTag(e.ctx, def, hapax.CreateFromToken)
	e.wantErr("CreateTag from the token of nothing", err, hapax.ErrTagNotFound)
	first, err := e.store.CreateTag(e.ctx, def, hapax.CreateTombstone)
	e.must(err)
	equal(e, "the stored tombstone", e.tag(def.Name), first)
	_, err = e.store.Allocate(e.ctx, def.Name, 1, "")
	e.wantErr("Allocate", err, hapax.ErrTagDeleted)
	def.Start, def.Mark, def.Extra = 70, 70, "x"
	second, err := e.store.CreateTag(e.ctx, def, hapax.CreateTombstone)
	e.must(err)
	equal(e, "the renewed tombstone", e.tag(def.Name), second)
	if !first.Deleted || !second.Deleted || second.Token != first.Token+1 || second.Mark != 70 || second.Extra != "x" {
		e.Fatalf("tombstones %+v and %+v; want two, with a higher token and mark 70", first, second)
	}
	def.Token = first.Token
	_, err = e.store.CreateTag(e.ctx, def, hapax.CreateFromToken)
	e.wantErr("CreateTag from an older token", err, hapax.ErrLeaseLost)
	equal(e, "the tombstone then", e.tag(def.Name), second)
	def.Token = second.Token
	revived, err := e.store.CreateTag(e.ctx, def, hapax.CreateFromToken)
	e.must(err)
	equal(e, "the stored tag", e.tag(def.Name), revived)
	equal(e, "the grant after the revival", e.allocate(def.Name, 1).Grant, hapax.Grant{Lo: 70, Hi: 71})
	for _, mode := range []hapax.CreateMode{hapax.CreateTombstone, hapax.CreateFromToken} {
		_, err = e.store.CreateTag(e.ctx, def, mode)
		e.wantErr("CreateTag of a tag that exists", err, hapax.ErrTagExists)
	}
}

// checkKind: not even a deleted tag can become one of another kind, delta or
// remainder.
func checkKind(e *env) {
	defs := []hapax.Tag{{Name: e.name("a")}, {Name: e.name("b"), Kind: hapax.KindSnowflake}}
	for i, def := range defs {
		e.create(def, hapax.CreateExplicit)
		_, err := e.store.DeleteTag(e.ctx, def.Name)
		e.must(err)
		other := defs[1-i]
		other.Name = def.Name
		other, err = other.WithDefaults()
		e.must(err)
		_, err = e.store.CreateTag(e.ctx, other, hapax.CreateExplicit)
		e.wantErr("CreateTag as another kind", err, hapax.ErrKindMismatch)
		e.create(def, hapax.CreateExplicit)
	}
	sparse := hapax.Tag{Name: e.name("sparse"), Delta: 10, Remainder: 3}
	e.create(sparse, hapax.CreateExplicit)
	_, err := e.store.DeleteTag(e.ctx, sparse.Name)
	e.must(err)
	for _, other := range []hapax.Tag{{Delta: 1}, {Delta: 20, Remainder: 3}, {Delta: 10, Remainder: 4}} {
		other.Name = sparse.Name
		other, err := other.WithDefaults()
		e.must(err)
		_, err = e.store.CreateTag(e.ctx, other, hapax.CreateExplicit)
		e.wantErr("CreateTag with another delta or remainder", err, hapax.ErrKindMismatch)
	}
	e.create(sparse, hapax.CreateExplicit)
}

// checkUpdate: an update changes what it names, all or nothing, and no floor
// lowers a mark.
func checkUpdate(e *env) {
	p := func(v int64) *int64 { return &v }
	text := func(s string) *string { return &s }
	tag := e.create(hapax.Tag{Name: e.name("t"), Step: 10, Extra: "first"}, hapax.CreateFirstUse)
	e.allocate(tag.Name, 99)
	tag.Mark = 100
	for _, c := range []struct {
		name string
		u    driver.TagUpdate
	}{
		{"nothing", driver.TagUpdate{}},
		{"step", driver.TagUpdate{Step: p(20)}},
		{"step below min_step", driver.TagUpdate{Step: p(5)}},
		{"bounds", driver.TagUpdate{MinStep: p(2), MaxStep: p(50)}},
		{"everything", driver.TagUpdate{Step: p(7), MinStep: p(6), MaxStep: p(hapax.MaxStep), Floor: p(101)}},
		{"the same again", driver.TagUpdate{Step: p(7), MinStep: p(6), MaxStep: p(hapax.MaxStep), Floor: p(101)}},
		{"extra", driver.TagUpdate{Extra: text("second '\"\\")}},
		{"no extra", driver.TagUpdate{Extra: text("")}},
		{"extra and step", driver.TagUpdate{Extra: text("third"), Step: p(8)}},
		{"step back", driver.TagUpdate{Step: p(7)}},
		{"floor at the mark", driver.TagUpdate{Floor: p(101)}},
		{"floor below the mark", driver.TagUpdate{Floor: p(1)}},
		{"floor above the mark", driver.TagUpdate{Floor: p(1_000_000)}},
		{"highest floor", driver.TagUpdate{Floor: p(hapax.MaxMark - 1)}},
	} {
		want, err := driver.Update(tag, c.u)
		e.must(err)
		got, err := e.store.UpdateTag(e.ctx, tag.Name, c.u)
		if err != nil {
			e.Errorf("%s: %v", c.name, err)
			continue
		}
		equal(e, "the tag after "+c.name, got, want)
		equal(e, "the stored tag after "+c.name, e.tag(tag.Name), want)
		tag = want
	}
	for name, u := range map[string]driver.TagUpdate{
		"step 0":                  {Step: p(0), Floor: p(hapax.MaxMark - 1)},
		"step -1":                 {Step: p(-1)},
		"step too large":          {Step: p(hapax.MaxStep + 1)},
		"min_step above the step": {MinStep: p(8)},
		"max_step below the step": {MaxStep: p(6)},
		"floor 0":                 {Step: p(6), Floor: p(0)},
		"floor beyond the line":   {Step: p(6), Floor: p(hapax.MaxMark)},
		"extra too long":          {Step: p(6), Extra: text(strings.Repeat("x", hapax.MaxExtraBytes+1))},
		"extra that is no text":   {Step: p(6), Extra: text("\xff")},
	} {
		_, err := e.store.UpdateTag(e.ctx, tag.Name, u)
		e.wantErr(name, err, hapax.ErrInvalidArgument)
		equal(e, "the tag after "+name, e.tag(tag.Name), tag)
	}
	equal(e, "the last number", e.allocate(tag.Name, 1).Grant.Lo, hapax.MaxMark-1)

	_, err := e.store.UpdateTag(e.ctx, e.name("unknown"), driver.TagUpdate{Step: p(1)})
	e.wantErr("UpdateTag of a tag that does not exist", err, hapax.ErrTagNotFound)
	flake := e.create(hapax.Tag{Name: e.name("flake"), Kind: hapax.KindSnowflake}, hapax.CreateExplicit)
	_, err = e.store.UpdateTag(e.ctx, flake.Name, driver.TagUpdate{Step: p(1)})
	e.wantErr("the step of a snowflake tag", err, hapax.ErrKindMismatch)
	flake.Extra = "of a snowflake tag"
	got, err := e.store.UpdateTag(e.ctx, flake.Name, driver.TagUpdate{Extra: &flake.Extra})
	e.must(err)
	equal(e, "the snowflake tag after its extra", got, flake)
	equal(e, "the stored snowflake tag", e.tag(flake.Name), flake)
}

// oddNames are endings of names, no two of which may be taken for each other.
var oddNames = []string{
	"A", "a", "\u00e1", "a\u0301", "a ", " a", "a  b", "a.b", "a..b", "a/b", "a//b", "a/", "/a", "a%", "a%2Fb", "a%b", "a_b", "axb",
	"a'b", "a''b", `a"b`, `a\b`, `a\\b`, "a$b", "$a", "a{b}", "a:b", "a*", "a?", "a#b", "a&b", "a+b", "a;b", "a\u00a0b", "a☃b",
	"ss", "ß", "ẞ", "I", "i", "İ", "ı", "日本語", "🂡", "\ufffd", "0", "00", "null", "a·b",
}

// checkNames: every valid name is a tag of its own.
func checkNames(e *env) {
	names := []string{e.name(strings.Repeat("x", hapax.MaxTagBytes-len(e.prefix)))}
	for _, odd := range oddNames {
		names = append(names, e.name(odd))
	}
	for _, first := range []string{"$", ".", "/", " ", "%", "é", "*"} {
		names = append(names, first+e.prefix)
	}
	for i, name := range names {
		e.create(hapax.Tag{Name: name, Start: int64(1000 * (i + 1))}, hapax.CreateFirstUse)
	}
	for i, name := range names {
		start := int64(1000 * (i + 1))
		a := e.allocate(name, 1)
		if a.Grant.Lo != start || a.Tag.Name != name {
			e.Errorf("the first grant of %q is %v of %q; want %d", name, a.Grant, a.Tag.Name, start)
		}
	}

	// These are short enough for somebody else to have used them.
	for _, name := range []string{".", "..", "/", " ", "%", "$", "*", "~", "é"} {
		def, err := hapax.Tag{Name: name}.WithDefaults()
		e.must(err)
		if _, err = e.store.CreateTag(e.ctx, def, hapax.CreateExplicit); err != nil && !errors.Is(err, hapax.ErrTagExists) {
			e.Errorf("CreateTag of %q: %v", name, err)
			continue
		}
		equal(e, "the name of tag "+name, e.allocate(name, 1).Tag.Name, name)
	}
}

// list returns the check's own tags, read in pages.
func (e *env) list(limit int) []hapax.Tag {
	e.Helper()
	var all []hapax.Tag
	for after := e.prefix; ; {
		page, err := e.store.Tags(e.ctx, after, limit)
		e.must(err)
		if len(page) > limit {
			e.Fatalf("a page of %d tags; the limit is %d", len(page), limit)
		}
		for _, tag := range page {
			if tag.Name <= after {
				e.Fatalf("tag %q comes after %q", tag.Name, after)
			}
			if after = tag.Name; !strings.HasPrefix(tag.Name, e.prefix) {
				return all
			}
			all = append(all, tag)
		}
		if len(page) < limit {
			return all
		}
	}
}

// checkList: pages of any size give the same tags, in the byte order of their
// names, tombstones among them.
func checkList(e *env) {
	var want []string
	for i, odd := range oddNames {
		e.segment(odd, 10)
		want = append(want, e.name(odd))
		if i%3 == 0 {
			_, err := e.store.DeleteTag(e.ctx, e.name(odd))
			e.must(err)
		}
	}
	slices.Sort(want)
	for _, limit := range []int{1, 7, len(want), 1000} {
		var got []string
		for _, tag := range e.list(limit) {
			got = append(got, tag.Name)
			equal(e, "a listed tag", tag, e.tag(tag.Name))
		}
		if !slices.Equal(got, want) {
			e.Errorf("in pages of %d: %q; want %q", limit, got, want)
		}
	}
	page, err := e.store.Tags(e.ctx, e.prefix, 0)
	e.must(err)
	equal(e, "the size of a page with limit 0", len(page), 0)
	page, err = e.store.Tags(e.ctx, e.name("a.b"), 2)
	e.must(err)
	if len(page) != 2 || page[0].Name != e.name("a/") || page[1].Name != e.name("a//b") {
		e.Errorf("two tags after a.b: %+v; want a/ and a//b", page)
	}
	page, err = e.store.Tags(e.ctx, e.name("a.c"), 1) // does not exist itself
	e.must(err)
	if len(page) != 1 || page[0].Name != e.name("a/") {
		e.Errorf("one tag after a.c: %+v; want a/", page)
	}
}

// checkCreateRace: of creations at the same time exactly one succeeds, for a
// new tag and for a tombstone.
func checkCreateRace(e *env) {
	handles := e.handles(6)
	for round, mode := range []hapax.CreateMode{hapax.CreateFirstUse, hapax.CreateExplicit, hapax.CreateExplicit} {
		var created atomic.Int64
		inParallel(e, handles, func(ctx context.Context, h roles) error {
			def, err := hapax.Tag{Name: e.name("t"), Step: 1 + rand.Int64N(1000)}.WithDefaults()
			if err != nil {
				return err
			}
			switch _, err = h.store.CreateTag(ctx, def, mode); {
			case err == nil:
				created.Add(1)
			case !errors.Is(err, hapax.ErrTagExists):
				return err
			}
			_, err = h.store.Allocate(ctx, def.Name, 1, "")
			return err
		})
		equal(e, "the number of creations that succeeded", created.Load(), 1)
		equal(e, "the mark", e.tag(e.name("t")).Mark, int64(1+len(handles)*(round+1)))
		_, err := e.store.DeleteTag(e.ctx, e.name("t"))
		e.must(err)
	}
}
