package service

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

const invoiceSpec = "{zone:Europe/Berlin}INV-{yyyy}{MM}{dd}-{seq:6}{check}"

// handClock is a wall clock that a test sets, by how far it is off the bubble's.
type handClock struct {
	mu  sync.Mutex // guards off
	off time.Duration
}

// setHandClock returns a clock that shows the instant now.
func setHandClock(at time.Time) *handClock { return &handClock{off: time.Until(at)} }

func (c *handClock) Now() (time.Time, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	return now.Add(c.off), time.Duration(now.UnixNano())
}

func (c *handClock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += d
}

func berlin(t testing.TB, text string) time.Time {
	t.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at, err := time.ParseInLocation(time.DateTime, text, zone)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func mustCreate(t testing.TB, s *Service, tag hapax.Tag) hapax.Tag {
	t.Helper()
	made, err := s.CreateTag(context.Background(), tag, hapax.CreateExplicit)
	if err != nil {
		t.Fatalf("CreateTag: %v", err)
	}
	return made
}

func mustCodes(t testing.TB, s *Service, tag string, n int) []string {
	t.Helper()
	issued, err := s.NextCodes(context.Background(), tag, n)
	if err != nil {
		t.Fatalf("NextCodes(%q): %v", tag, err)
	}
	return issued.Codes
}

func TestNumbersRestartAtMidnight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := setHandClock(berlin(t, "2026-11-21 23:59:58"))
		s := open(t, memstore.New(), Options{Clock: clock})
		tag := mustCreate(t, s, hapax.Tag{Name: "invoices", Extra: define.CodeExtra("INV-{yyyy}{MM}{dd}-{seq:6}{check}", "Europe/Berlin")})
		if spec, _ := codeNow(tag); spec != invoiceSpec {
			t.Errorf("the stored spec is %q, want %q", spec, invoiceSpec)
		}
		want := func(codes ...string) {
			t.Helper()
			if got := mustCodes(t, s, "invoices", len(codes)); !slices.Equal(got, codes) {
				t.Errorf("got %q, want %q", got, codes)
			}
		}
		want("INV-20261121-0000018", "INV-20261121-0000026", "INV-20261121-0000039")
		if id := mustNext(t, s, "invoices"); id != 4 {
			t.Errorf("Next returned %d, want 4", id)
		}
		time.Sleep(2 * time.Second)
		if id := mustNext(t, s, "invoices"); id != 1 {
			t.Errorf("after midnight Next returned %d, want 1", id)
		}
		if id, ok := s.Last("invoices"); id != 1 || !ok {
			t.Errorf("Last returned %d, %v", id, ok)
		}
		want("INV-20261122-0000028")
		g, err := s.Reserve(t.Context(), "invoices", 10)
		if err != nil || g != (hapax.Grant{Lo: 3, Hi: 13}) {
			t.Errorf("Reserve returned %v, %v", g, err)
		}
		clock.jump(-time.Hour) // goes on in the old line, above its mark
		if id := mustNext(t, s, "invoices"); id != 5 {
			t.Errorf("after a jump back Next returned %d, want 5", id)
		}
		clock.jump(time.Hour)
		if id := mustNext(t, s, "invoices"); id != 13 {
			t.Errorf("after a jump forth Next returned %d, want 13", id)
		}
		p, err := s.ParseCode(t.Context(), "invoices", "INV-20261122-0000028")
		if err != nil || p.ID != 2 || p.Period != "20261122" || !p.From.Equal(berlin(t, "2026-11-22 00:00:00")) || !p.Until.Equal(berlin(t, "2026-11-23 00:00:00")) {
			t.Errorf("ParseCode returned %+v, %v", p, err)
		}
	})
}

func TestOldLinesAreClosedAndRetired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		clock := setHandClock(berlin(t, "2026-11-21 12:00:00"))
		s := open(t, store, Options{Clock: clock, RetireLines: 48 * time.Hour, TagIdle: 1000 * time.Hour, looks: time.Hour})
		mustCreate(t, s, hapax.Tag{Name: "invoices", Extra: define.CodeExtra(invoiceSpec, "")})
		mustCodes(t, s, "invoices", 3)
		const line = "invoices@@20261121"
		wait := func(at string) hapax.Tag {
			time.Sleep(time.Until(berlin(t, at).Add(-clock.off)))
			synctest.Wait()
			tag, err := store.Tag(t.Context(), line)
			if err != nil {
				t.Fatal(err)
			}
			return tag
		}
		if tag := wait("2026-11-22 00:05:00"); tag.Mark != 1001 || tag.Deleted {
			t.Errorf("shortly after its period the line is %+v, want it in use", tag)
		}
		if tag := wait("2026-11-22 00:15:00"); tag.Mark != 4 || tag.Deleted {
			t.Errorf("a while after its period the line is %+v, want the rest handed back", tag)
		}
		if tag := wait("2026-11-23 23:50:00"); tag.Deleted {
			t.Errorf("before its time the line is %+v", tag)
		}
		if tag := wait("2026-11-24 00:05:00"); tag.Mark != 4 || !tag.Deleted {
			t.Errorf("two days after its period the line is %+v, want a tombstone", tag)
		}
		clock.jump(-72 * time.Hour)
		if got := mustCodes(t, s, "invoices", 1)[0]; !strings.HasPrefix(got, "INV-20261121-000004") {
			t.Errorf("the revived line issued %s, want number 4", got)
		}
	})
}

// A codeWorld is several nodes over one store, whose clocks jump over midnight and
// back, which are restarted, and which retire each other's lines.
type codeWorld struct {
	t     *testing.T
	store driver.Store
	nodes []*codeNode
}

type codeNode struct {
	clock *handClock
	svc   *Service
}

func (w *codeWorld) start(n *codeNode) {
	s, err := New(context.Background(), w.store, Options{
		looks: time.Hour,
		Clock: n.clock, Logger: slog.New(slog.DiscardHandler), RetireLines: time.Hour, Refresh: 10 * time.Minute,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	n.svc = s
}

// playCodes lets nodes over a store issue codes at random. It returns a text that
// came twice; empty if none did. Where the store is broken, calls may fail.
func playCodes(t *testing.T, store driver.Store, seed uint64, broken bool) (twice string) {
	random := rand.New(rand.NewPCG(seed, 0))
	w := &codeWorld{t: t, store: store}
	start := berlin(t, "2026-10-24 23:59:30") // the day after has 25 hours
	for range 3 {
		n := &codeNode{clock: setHandClock(start)}
		w.start(n)
		w.nodes = append(w.nodes, n)
	}
	defer func() {
		for _, n := range w.nodes {
			_ = n.svc.Close(context.Background())
		}
	}()
	specs := []string{
		"{zone:Europe/Berlin}{yyyy}{MM}{dd}-{seq:5+}", "{zone:Europe/Berlin}{yyyy}{MM}{dd}{HH}-{seq:5+}", "{zone:Europe/Berlin}{GGGG}{ww}-{seq:3+}{check}",
	}
	mustCreate(t, w.nodes[0].svc, hapax.Tag{Name: "t", Step: 3, MinStep: 1, Extra: define.CodeExtra(specs[random.IntN(len(specs))], "")})
	seen := map[string]bool{}
	for range 80 {
		n := w.nodes[random.IntN(len(w.nodes))]
		switch random.IntN(10) {
		case 0:
			if err := n.svc.Close(context.Background()); err != nil && !broken {
				t.Fatal(err)
			}
			w.start(n)
		case 1, 2:
			hours := []int{-49, -25, -24, -2, -1, 1, 2, 24, 25, 50}
			n.clock.jump(time.Duration(hours[random.IntN(len(hours))]) * time.Hour)
		case 3:
			time.Sleep(time.Duration(1+random.IntN(90)) * time.Minute)
		default:
			issued, err := n.svc.NextCodes(context.Background(), "t", 1+random.IntN(7))
			if err != nil {
				if !broken {
					t.Fatalf("NextCodes: %v", err)
				}
				continue
			}
			for i, text := range issued.Codes {
				if seen[text] {
					return text
				}
				seen[text] = true
				p, err := n.svc.ParseCode(context.Background(), "t", text)
				if err != nil || p.ID != issued.IDs[i] || p.Period != issued.Period {
					t.Fatalf("ParseCode(%q) returned %+v, %v; it is %d of %s", text, p, err, issued.IDs[i], issued.Period)
				}
			}
		}
	}
	return ""
}

func TestCodesAreUniqueWhateverTheClocksDo(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			if twice := playCodes(t, memstore.New(), seed, false); twice != "" {
				t.Fatalf("seed %d: %s was issued twice", seed, twice)
			}
		})
	}
}

// resetting is a store as others do it: there is one counter, which is set back
// when another period begins.
type resetting struct {
	driver.Store

	mu     sync.Mutex // guards the fields below
	period string
	mark   int64
}

func (r *resetting) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := r.Store.Allocate(ctx, tag, n, last)
	_, period, ok := define.CutLine(tag)
	if err != nil || !ok {
		return a, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.period != period {
		r.period, r.mark = period, 1
	}
	a.Grant = hapax.Grant{Lo: r.mark, Hi: r.mark + a.Grant.Len()}
	a.From, r.mark = a.Grant.Lo, a.Grant.Hi
	return a, nil
}

func TestACounterThatIsSetBackIsCaught(t *testing.T) {
	for seed := range uint64(40) {
		caught := false
		synctest.Test(t, func(t *testing.T) {
			caught = playCodes(t, &resetting{Store: memstore.New()}, seed, true) != ""
		})
		if caught {
			return
		}
	}
	t.Error("a counter that is set back passes for unique")
}

func TestTextsOfATypo(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		mustCreate(t, s, hapax.Tag{Name: "invoices", Extra: define.CodeExtra(invoiceSpec, "")})
		for name, c := range map[string]struct{ text, allowed string }{
			"check":    {"INV-20261121-0000019", `position 20, where "9" stands`},
			"letter":   {"INV-20261121-OOOOO18", `a character of 0123456789 at position 14, where "O" stands; perhaps INV-20261121-0000018 is meant`},
			"literal":  {"INW-20261121-0000018", `position 3, where "W" stands`},
			"too long": {"INV-20261121-00000181", `position 21`},
			"empty":    {"", `where the text ends`},
		} {
			_, err := s.ParseCode(t.Context(), "invoices", c.text)
			e, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || !errors.Is(err, hapax.ErrInvalidID) || !strings.Contains(e.Allowed, c.allowed) {
				t.Errorf("%s: got %v, want %s", name, err, c.allowed)
			}
		}
	})
}

func TestCodeDefinitions(t *testing.T) {
	keys := map[string][]byte{"k1": []byte("0123456789abcdef"), "k2": []byte("another key of ours")}
	bubble(t, Options{CodeKeys: keys}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		for name, c := range map[string]struct {
			tag  hapax.Tag
			want string // in the error; empty: none
		}{
			"plain":               {hapax.Tag{Name: "a", Extra: define.CodeExtra("{id:6}", "")}, ""},
			"canonical":           {hapax.Tag{Name: "b", Extra: define.CodeExtra("{id:8:crockford32:feistel=k1}", "")}, ""},
			"bad spec":            {hapax.Tag{Name: "c", Extra: define.CodeExtra("{id:6", "")}, "position 1"},
			"no key":              {hapax.Tag{Name: "c", Extra: define.CodeExtra("{id:8:36:feistel=k3}", "")}, `"k3" is missing`},
			"no zone":             {hapax.Tag{Name: "c", Extra: define.CodeExtra("{yyyy}-{seq:6}", "")}, "zone"},
			"unknown field":       {hapax.Tag{Name: "c", Extra: `{"code":1,"spec":"{id:6}","x":1}`}, "this version"},
			"later version":       {hapax.Tag{Name: "c", Extra: `{"code":2,"spec":"{id:6}"}`}, "this version"},
			"more behind":         {hapax.Tag{Name: "c", Extra: `{"code":1,"spec":"{id:6}"} {}`}, "this version"},
			"not a code":          {hapax.Tag{Name: "d", Extra: `{"else":1}`}, ""},
			"old of the same":     {hapax.Tag{Name: "c", Extra: `{"code":1,"spec":"{id:6}","old":["{id:6:36}"]}`}, "another shape"},
			"snowflake":           {hapax.Tag{Name: "e", Kind: hapax.KindSnowflake, Extra: define.CodeExtra("{id:13:crockford32}", "")}, ""},
			"snowflake by day":    {hapax.Tag{Name: "f", Kind: hapax.KindSnowflake, Extra: define.CodeExtra(invoiceSpec, "")}, "without a period"},
			"name of a line":      {hapax.Tag{Name: "a@@20261121"}, "lines of tags"},
			"name almost a line":  {hapax.Tag{Name: "a@@2026112"}, ""},
			"too long for a line": {hapax.Tag{Name: strings.Repeat("x", 117), Extra: define.CodeExtra(invoiceSpec, "")}, "116 bytes"},
		} {
			_, err := s.CreateTag(t.Context(), c.tag, hapax.CreateExplicit)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", name, err, c.want)
			}
		}
	})
}

func TestCodesSupersedeEachOther(t *testing.T) {
	keys := map[string][]byte{"k1": []byte("0123456789abcdef"), "k2": []byte("another key of ours")}
	bubble(t, Options{CodeKeys: keys}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		mustCreate(t, s, hapax.Tag{Name: "coupons", Extra: define.CodeExtra("A{id:8:crockford32:feistel=k1}", "")})
		before := mustCodes(t, s, "coupons", 2)
		set := func(spec string) error {
			extra := define.CodeExtra(spec, "")
			_, err := s.UpdateTag(t.Context(), "coupons", driver.TagUpdate{Extra: &extra})
			return err
		}
		for spec, want := range map[string]string{
			"A{id:8:crockford32:feistel=k2}": "another shape",
			"{id:9:crockford32:feistel=k2}":  "another shape",
			"{zone:UTC}{yyyy}-{seq:6}":       "restart",
			"":                               "not taken away",
			"B" + strings.Repeat("x", 250) + "{id:8:feistel=k2}": "position",
		} {
			if err := set(spec); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %s", spec, err, want)
			}
		}
		if err := set("B{id:8:crockford32:feistel=k2}"); err != nil {
			t.Fatal(err)
		}
		after := mustCodes(t, s, "coupons", 1)
		if after[0][0] != 'B' {
			t.Errorf("the new codec wrote %s", after[0])
		}
		for i, text := range append(before, after...) {
			if p, err := s.ParseCode(t.Context(), "coupons", text); err != nil || i < 2 && p.ID != hapax.ID(i+1) || i == 2 && p.ID <= 2 {
				t.Errorf("%s: %+v, %v", text, p, err)
			}
		}
		if err := set("A{id:8:crockford32:feistel=k1}"); err == nil {
			t.Error("an old codec came back, whose texts are taken")
		}
		if _, err := s.DeleteTag(t.Context(), "coupons"); err != nil {
			t.Fatal(err)
		}
		_, err := s.CreateTag(t.Context(), hapax.Tag{Name: "coupons", Extra: define.CodeExtra("A{id:8:crockford32:feistel=k2}", "")}, hapax.CreateExplicit)
		if err == nil {
			t.Error("a tag was revived with a code whose texts are taken")
		}
		tag := mustCreate(t, s, hapax.Tag{Name: "coupons", Extra: define.CodeExtra("B{id:8:crockford32:feistel=k2}", "")})
		if _, old := codeNow(tag); len(old) != 1 {
			t.Errorf("the revived tag has the old codes %q", old)
		}
	})
}

// Two nodes give a tag another code at the same time: the one that was made of what is not there any
// more is made anew, so that every code that was shown stays readable.
func TestCodesSupersedeEachOtherAcrossNodes(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		other := open(t, store, Options{})
		mustCreate(t, s, hapax.Tag{Name: "coupons", Extra: define.CodeExtra("A{id:8}", "")})
		texts := mustCodes(t, s, "coupons", 1)
		set := func(s *Service, spec string) {
			t.Helper()
			extra := define.CodeExtra(spec, "")
			if _, err := s.UpdateTag(t.Context(), "coupons", driver.TagUpdate{Extra: &extra}); err != nil {
				t.Fatalf("%s: %v", spec, err)
			}
		}
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "UpdateTag" { // this node has read the tag
				store.Inject(nil)
				set(other, "C{id:8}")
				texts = append(texts, mustCodes(t, other, "coupons", 1)...)
			}
			return storetest.Fault{}
		})
		set(s, "B{id:8}")
		for _, text := range append(texts, mustCodes(t, s, "coupons", 1)...) {
			if _, err := s.ParseCode(t.Context(), "coupons", text); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
		tag, err := s.Tag(t.Context(), "coupons")
		if spec, old := codeNow(tag); err != nil || spec != "B{id:8}" || !slices.Equal(old, []string{"C{id:8}", "A{id:8}"}) {
			t.Errorf("the code is %s, after %q, %v; want B after C and A", spec, old, err)
		}
	})
}

func TestWhatACodeCannotShowIsRefused(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		mustCreate(t, s, hapax.Tag{Name: "few", Extra: define.CodeExtra("{id:1}", "")})
		mustCodes(t, s, "few", 9)
		if _, err := s.NextCodes(t.Context(), "few", 1); !errors.Is(err, hapax.ErrLineExhausted) {
			t.Errorf("got %v, want ErrLineExhausted", err)
		}
		if _, err := s.NextCodes(t.Context(), "none", 1); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("without a code: got %v", err)
		}
	})
}

func TestLeasesOfTagsWithPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memstore.New(), Options{Clock: setHandClock(berlin(t, "2026-11-21 12:00:00"))})
		mustCreate(t, s, hapax.Tag{Name: "invoices", Step: 10, Extra: define.CodeExtra(invoiceSpec, "")})
		if _, err := s.Allocate(t.Context(), "invoices", 1, ""); err == nil || !strings.Contains(err.Error(), "invoices@@20261121") {
			t.Errorf("Allocate returned %v, want the line's name", err)
		}
		seg, err := hapax.NewSegment(t.Context(), s, "invoices@@20261121", hapax.SegmentOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer seg.Close(context.Background())
		id, err := seg.Next(t.Context())
		if err != nil || id != 1 {
			t.Errorf("the lease issued %d, %v", id, err)
		}
		if id := mustNext(t, s, "invoices"); id != 11 {
			t.Errorf("the server issued %d, want 11", id)
		}
		for _, name := range []string{"invoices@@20261131", "invoices@@2026", "orders@@20261121"} {
			if _, err := s.Next(t.Context(), name); err == nil {
				t.Errorf("%s was created", name)
			}
		}
	})
}

func TestDeletingATagDeletesItsLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		s := open(t, store, Options{Clock: setHandClock(berlin(t, "2026-11-21 12:00:00"))})
		mustCreate(t, s, hapax.Tag{Name: "invoices", Extra: define.CodeExtra(invoiceSpec, "")})
		mustCodes(t, s, "invoices", 3)
		if _, err := s.DeleteTag(t.Context(), "invoices"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.NextCodes(t.Context(), "invoices", 1); !errors.Is(err, hapax.ErrTagDeleted) {
			t.Errorf("got %v, want ErrTagDeleted", err)
		}
		if tag, err := store.Tag(t.Context(), "invoices@@20261121"); err != nil || !tag.Deleted {
			t.Errorf("the line is %+v, %v", tag, err)
		}
		mustCreate(t, s, hapax.Tag{Name: "invoices", Extra: define.CodeExtra(invoiceSpec, "")})
		if got := mustCodes(t, s, "invoices", 1)[0]; got <= "INV-20261121-0000039" {
			t.Errorf("the revived tag issued %s", got)
		}
	})
}

func TestDeclaredCodes(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"a": {Code: "{yyyy}-{seq:6}", Zone: "UTC"}}}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		if got := mustCodes(t, s, "a", 1)[0]; !strings.HasSuffix(got, "-000001") {
			t.Errorf("got %s", got)
		}
	})
	for field, c := range map[string]TagConfig{"tags.b.code": {Code: "{id"}, "tags.b.zone": {Zone: "UTC"}} {
		err := Options{Tags: map[string]TagConfig{"b": c}}.Validate()
		if e, ok := errors.AsType[*hapax.ValueError](err); !ok || e.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestKeysAreChecked(t *testing.T) {
	for _, keys := range []map[string][]byte{{"k": []byte("short")}, {"a b": make([]byte, 16)}, {"": make([]byte, 16)}, {"k": make([]byte, 65)}} {
		if err := (Options{CodeKeys: keys}).Validate(); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%v: got %v", slices.Collect(maps.Keys(keys)), err)
		}
	}
}

// codeNow returns the spec of a tag's code, and those that it had before.
func codeNow(t hapax.Tag) (spec string, old []string) {
	says := define.Read(t).Says
	return says.Spec, says.Old
}
