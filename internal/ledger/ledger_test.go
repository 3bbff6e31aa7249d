package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

// A node is a ledger for tests, with a clock that only it moves.
type node struct {
	*Ledger
	now time.Time
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newNode(t *testing.T, name string) *node {
	t.Helper()
	n := &node{now: noon}
	var err error
	if n.Ledger, err = Open(filepath.Join(t.TempDir(), name+rand.Text()), Options{Node: name, Instance: "I-" + name, Now: func() time.Time { return n.now }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) find(t testing.TB, q Query) Found {
	t.Helper()
	f, err := n.Find(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func alloc(tag string, lo, hi int64) hapax.Allocation {
	return hapax.Allocation{Grant: hapax.Grant{Lo: lo, Hi: hi}, Tag: hapax.Tag{Name: tag}, Key: hapax.GrantKey(fmt.Sprint("key", lo))}
}

// told is the part of findings that a test looks at.
func told(f Found) (lines []string) {
	for _, l := range f.Lines {
		for _, h := range l.Grants {
			text := fmt.Sprintf("%s [%d,%d) %s", l.Name, h.Grant.Lo, h.Grant.Hi, h.Node)
			if h.By.Name != "" {
				text += " to " + h.By.Name
			}
			if h.Given != "" {
				text += " " + h.Given
			}
			lines = append(lines, text)
		}
	}
	return lines
}

func TestFindTags(t *testing.T) {
	n := newNode(t, "a")
	sdk := By{"sdk", "192.0.2.1:5"}
	for _, err := range []error{
		n.Allocated(alloc("orders", 1, 1001), By{}, ""),
		n.Allocated(alloc("orders", 1001, 2001), sdk, ""),
		n.Allocated(alloc("orders2", 1, 5001), By{}, ""),
		n.Allocated(alloc("orders@@20261121", 1, 101), By{}, ""),
		n.Allocated(alloc("other", 1, 11), By{}, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n.HandedBack(alloc("orders", 1001, 2001), 1501, sdk, nil)
	n.HandedBack(alloc("orders2", 1, 5001), 4001, By{}, fmt.Errorf("%w: gone", hapax.ErrStoreUnavailable))
	n.HandedBack(alloc("other", 1, 11), 2, By{}, hapax.ErrLeaseLost)
	for _, tt := range []struct {
		id   hapax.ID
		tag  string
		want []string
	}{
		{1, "orders", []string{"tag/orders [1,1001) a", "tag/orders@@20261121 [1,101) a"}},
		{1, "orders@@20261121", []string{"tag/orders@@20261121 [1,101) a"}},
		{1, "order", nil},
		{1, "", []string{"tag/orders [1,1001) a", "tag/orders2 [1,5001) a", "tag/orders@@20261121 [1,101) a", "tag/other [1,11) a"}},
		{1000, "orders", []string{"tag/orders [1,1001) a"}},
		{1001, "orders", []string{"tag/orders [1001,2001) a to sdk"}},
		{1500, "orders", []string{"tag/orders [1001,2001) a to sdk"}},
		{1501, "orders", []string{"tag/orders [1001,2001) a to sdk back"}},
		{2000, "orders", []string{"tag/orders [1001,2001) a to sdk back"}},
		{2001, "orders", nil},
		{0, "orders", nil},
		{-1, "orders", nil},
		{4000, "orders2", []string{"tag/orders2 [1,5001) a"}},
		{4001, "orders2", []string{"tag/orders2 [1,5001) a offered"}},
		{5, "other", []string{"tag/other [1,11) a"}},
	} {
		if got := told(n.find(t, Query{Number: tt.id, Tag: tt.tag})); !slices.Equal(got, tt.want) {
			t.Errorf("%d of %q: %q, want %q", tt.id, tt.tag, got, tt.want)
		}
	}
	f := n.find(t, Query{Number: 1, Tag: "orders"})
	if !f.Since.Equal(noon) || f.Node != "a" || f.Damaged != 0 {
		t.Errorf("it begins at %v, at node %q, with %d damaged", f.Since, f.Node, f.Damaged)
	}
	h := f.Lines[0].Grants[0]
	if len(h.Ref) != 16 || strings.Contains(h.Ref, "key") || !h.Time.Equal(noon) {
		t.Errorf("the grant is %+v", h)
	}
}

func TestFindWorkers(t *testing.T) {
	n := newNode(t, "a")
	leaf, err := hapax.ParseLayout("leaf")
	if err != nil {
		t.Fatal(err)
	}
	own, err := hapax.ParseLayout("time:41,worker:6,sequence:16,unit=1ms,epoch=2024-01-01T00:00:00Z")
	if err != nil {
		t.Fatal(err)
	}
	lease := func(pool string, worker, lo, hi int64) hapax.Lease {
		return hapax.Lease{Pool: pool, Worker: worker, Token: 3, Holder: "h", Grant: hapax.Grant{Lo: lo, Hi: hi}}
	}
	for _, err := range []error{
		n.Acquired(lease("default", 7, 100, 200), leaf, By{}),
		n.Extended(lease("default", 7, 200, 400), hapax.Layout{}, By{"sdk", ""}), // of the pool's layout
		n.Extended(lease("default", 7, 400, 400), leaf, By{}),                    // is none
		n.Acquired(lease("mine", 7, 100, 200), own, By{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n.Sealed(lease("default", 7, 200, 400), 300, By{}, nil)
	compose := func(l hapax.Layout, worker, tick int64) hapax.ID {
		id, err := l.Compose(hapax.Fields{{Name: "time", Value: tick}, {Name: "worker", Value: worker}, {Name: "sequence", Value: 5}})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first, second := "worker/default/7 [100,200) a", "worker/default/7 [200,400) a to sdk"
	for _, tt := range []struct {
		name string
		q    Query
		want []string
	}{
		{"first tick", Query{Number: compose(leaf, 7, 100), Pool: "default"}, []string{first}},
		{"last tick", Query{Number: compose(leaf, 7, 199), Pool: "default"}, []string{first}},
		{"extended", Query{Number: compose(leaf, 7, 299), Pool: "default"}, []string{second}},
		{"sealed", Query{Number: compose(leaf, 7, 300), Pool: "default"}, []string{second + " back"}},
		{"before", Query{Number: compose(leaf, 7, 99), Pool: "default"}, nil},
		{"after", Query{Number: compose(leaf, 7, 400), Pool: "default"}, nil},
		{"another worker", Query{Number: compose(leaf, 8, 150), Pool: "default"}, nil},
		{"another pool", Query{Number: compose(leaf, 7, 150), Pool: "mine"}, nil},
		{"by layout", Query{Number: compose(own, 7, 150), Layout: own}, []string{"worker/mine/7 [100,200) a"}},
		{"by another layout", Query{Number: compose(leaf, 7, 150), Layout: own}, nil},
		{"anywhere", Query{Number: compose(leaf, 7, 150)}, []string{first}},
		{"as a tag's", Query{Number: compose(leaf, 7, 150), Tag: "orders"}, nil},
		{"of a tag, or of any pool", Query{Number: compose(leaf, 7, 150), Tag: "orders", AnyPool: true}, []string{first}},
		{"no ID of the layout", Query{Number: -1, Pool: "default"}, nil},
	} {
		if got := told(n.find(t, tt.q)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	line := n.find(t, Query{Number: compose(leaf, 7, 100), Pool: "default"}).Lines[0]
	if line.Layout != "leaf" || line.Position != 100 || line.Grants[0].Ref != "3" || line.Grants[0].Holder != "h" {
		t.Errorf("it is %+v", line)
	}
}

// Whatever two nodes take and hand back, in whatever order of their clocks, the
// ledgers together tell of each number who held it last.
func TestLedgersFollowTheStore(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		nodes := []*node{newNode(t, "a"), newNode(t, "b")}
		defer func() {
			for _, n := range nodes {
				_ = n.Close()
			}
		}()
		mark := int64(1)
		holder := map[int64]string{} // by number; a - before the name: it was given back
		type held struct {
			node int
			a    hapax.Allocation
		}
		var last *held
		for range rapid.IntRange(1, 30).Draw(r, "steps") {
			i := rapid.IntRange(0, 1).Draw(r, "node")
			n := nodes[i]
			n.now = noon.Add(time.Duration(rapid.IntRange(-60, 60).Draw(r, "clock")) * time.Second)
			if last != nil && rapid.Bool().Draw(r, "hand back") {
				next := rapid.Int64Range(last.a.From, last.a.Grant.Hi-1).Draw(r, "next")
				for v := next; v < last.a.Grant.Hi; v++ {
					holder[v] = "-" + nodes[last.node].Node()
				}
				nodes[last.node].HandedBack(last.a, next, By{}, nil)
				mark, last = next, nil
				continue
			}
			a := alloc("orders", mark, mark+rapid.Int64Range(1, 9).Draw(r, "n"))
			a.From = a.Grant.Lo
			if last != nil && last.node == i {
				a.From = last.a.From // both can be handed back together
			}
			if err := n.Allocated(a, By{}, ""); err != nil {
				t.Fatal(err)
			}
			for v := a.Grant.Lo; v < a.Grant.Hi; v++ {
				holder[v] = n.Node()
			}
			mark, last = a.Grant.Hi, &held{i, a}
		}
		for v := range mark + 20 {
			var holds, gave []string
			for _, n := range nodes {
				f := n.find(t, Query{Number: hapax.ID(v), Tag: "orders"})
				if len(f.Lines) == 0 {
					continue
				}
				switch h := f.Lines[0].Grants; h[len(h)-1].Given {
				case Back:
					gave = append(gave, n.Node())
				default:
					holds = append(holds, n.Node())
				}
			}
			switch want := holder[v]; {
			case want == "":
				if len(holds)+len(gave) > 0 {
					r.Errorf("%d was never granted; held by %q, given back by %q", v, holds, gave)
				}
			case want[0] == '-':
				if len(holds) > 0 || !slices.Contains(gave, want[1:]) {
					r.Errorf("%d was given back by %s; held by %q, given back by %q", v, want[1:], holds, gave)
				}
			default:
				if !slices.Equal(holds, []string{want}) {
					r.Errorf("%d is held by %s, the ledgers say %q", v, want, holds)
				}
			}
		}
	})
}

// failing is a file that takes nothing.
type failing struct{ *os.File }

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A ledger that cannot be written stops grants only where it is required.
func TestUnwritable(t *testing.T) {
	for _, required := range []bool{false, true} {
		full := false
		l, err := Open(t.TempDir(), Options{Node: "a", Required: required, Open: func(path string) (journal.File, error) {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
			if full {
				return failing{f}, err
			}
			return f, err
		}, Bytes: journal.MinBytes})
		if err != nil {
			t.Fatal(err)
		}
		full = true
		long := strings.Repeat("n", 100)
		var failed error
		for i := range 10_000 { // until the next file is begun
			if failed = errors.Join(l.Ready(), l.Allocated(alloc(long, int64(i), int64(i+1)), By{}, "")); failed != nil {
				break
			}
		}
		if required != errors.Is(failed, hapax.ErrStoreUnavailable) || !required && failed != nil {
			t.Errorf("required=%t: %v", required, failed)
		}
		if required && l.Ready() == nil {
			t.Error("a required ledger is ready that cannot be written")
		}
		if s := l.Stats(); s.Waiting == 0 {
			t.Errorf("nothing waits: %+v", s)
		}
		_ = l.Close() // it cannot be written
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, Options{}); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a file for a directory: %v", err)
	}
}

func TestNoLedger(t *testing.T) {
	var l *Ledger
	l.HandedBack(alloc("orders", 1, 2), 1, By{}, nil)
	l.Sealed(hapax.Lease{}, 0, By{}, nil)
	found, err := l.Find(context.Background(), Query{})
	if err := errors.Join(err, l.Ready(), l.Allocated(alloc("orders", 1, 2), By{}, ""), l.Acquired(hapax.Lease{}, hapax.Layout{}, By{}), l.Close()); err != nil || len(found.Lines) != 0 {
		t.Error(err, found)
	}
}

func TestJudge(t *testing.T) {
	at := noon.Add(time.Hour)
	grant := func(hs ...Holding) Found {
		return Found{Since: noon, Lines: []FoundLine{{Name: "tag/orders", Position: 7, Grants: hs}}}
	}
	holding := Holding{Grant: hapax.Grant{Lo: 1, Hi: 101}, Node: "a", Time: at}
	with := func(f func(*Holding)) Holding { h := holding; f(&h); return h }
	back := with(func(h *Holding) { h.Given, h.GivenAt = Back, at })
	tag := hapax.Tag{Start: 5, Delta: 1}
	facts := func(mark int64) Facts { return Facts{Known: true, Exists: true, Mark: mark, Tag: tag} }
	history := func(n int) *strategy.HistoryFinding {
		h := &strategy.HistoryFinding{Since: noon}
		for range n {
			h.Issues = append(h.Issues, strategy.Issue{Tag: "orders", Strategy: "segment", First: 7, Last: 9, Caller: "web", Address: "192.0.2.1:5", From: at, Until: at.Add(time.Second)})
		}
		return h
	}
	late := history(0)
	late.Since = at.Add(time.Minute)
	lossy := history(0)
	lossy.Lost = 1
	odd := facts(100)
	odd.Tag.Delta, odd.Tag.Remainder = 2, 0
	restart := facts(100)
	restart.Restart = true
	for _, tt := range []struct {
		name    string
		found   Found
		history *strategy.HistoryFinding
		facts   Facts
		want    api.Verdict
		why     string
	}{
		{"issued", grant(holding), history(1), facts(100), api.VerdictIssued, `between 2026-11-21T13:00:00.000Z and 2026-11-21T13:00:01.000Z to token "web" at 192.0.2.1:5`},
		{"issued, without the store", grant(holding), history(1), Facts{}, api.VerdictIssued, "to token"},
		{"issued twice", grant(holding), history(2), facts(100), api.VerdictIssued, "which must not be"},
		{"granted", grant(holding), nil, facts(100), api.VerdictGranted, "because the history is off"},
		{"taken by a command", grant(with(func(h *Holding) { h.By = Command })), nil, facts(100), api.VerdictGranted, "taken by a command on node a"},
		{"not in the history", grant(holding), history(0), facts(100), api.VerdictGranted, "which tags it records is known only to a server"},
		{"before the history", grant(holding), late, facts(100), api.VerdictGranted, "does not go back so far"},
		{"in a history with gaps", grant(holding), lossy, facts(100), api.VerdictGranted, "has lost records"},
		{"leased", grant(with(func(h *Holding) { h.By = By{"sdk", "192.0.2.9:1"} })), history(0), facts(100), api.VerdictGranted, `leased to token "sdk" at 192.0.2.9:1, through node a`},
		{"handed back, granted to nobody", grant(back), nil, facts(7), api.VerdictHandedBack, "nobody was granted it since"},
		{"handed back, granted since", grant(back), nil, facts(8), api.VerdictHandedBack, "another node was granted it since"},
		{"handed back, without the store", grant(back), nil, Facts{}, api.VerdictHandedBack, "not known here"},
		{"handed back, and granted anew", grant(back, holding), nil, facts(100), api.VerdictGranted, "granted to node a"},
		{"offered", grant(with(func(h *Holding) { h.Given, h.GivenAt = Offered, at })), nil, facts(100), api.VerdictGranted, "the store's answer is not recorded"},
		{"of another node", Found{Since: noon}, nil, facts(100), api.VerdictElsewhere, "another node was granted it"},
		{"above the mark", Found{Since: noon}, nil, facts(7), api.VerdictNeverGranted, "the store's mark, 7"},
		{"below the start", Found{Since: noon}, nil, Facts{Known: true, Exists: true, Mark: 100, Tag: hapax.Tag{Start: 8, Delta: 1}}, api.VerdictNeverGranted, "begins at 8"},
		{"the tag's first number", Found{Since: noon}, nil, Facts{Known: true, Exists: true, Mark: 100, Tag: hapax.Tag{Start: 7, Delta: 1}}, api.VerdictElsewhere, "another node was granted it"},
		{"not of the tag's remainder", grant(holding), nil, odd, api.VerdictNeverGranted, "divided by 2"},
		{"no such tag", Found{Since: noon}, nil, Facts{Known: true}, api.VerdictNeverGranted, "no such tag"},
		{"no store", Found{Since: noon}, nil, Facts{}, api.VerdictUnknown, "begins at 2026-11-21T12:00:00.000Z"},
		{"no store, no ledger", Found{}, nil, Facts{}, api.VerdictUnknown, "(it is empty)"},
		{"restarting", Found{Since: noon}, nil, restart, api.VerdictUnknown, "trace its code"},
	} {
		tr := Judge(7, "a", tt.found, tt.history, []Candidate{{Name: "tag/orders", Position: 7, Facts: tt.facts}})
		if len(tr.Lines) != 1 || tr.Lines[0].Verdict != tt.want || !strings.Contains(tr.Lines[0].Why, tt.why) {
			t.Errorf("%s: %+v, want %s because %q", tt.name, tr.Lines, tt.want, tt.why)
		}
	}
	for recording, why := range map[Recording]string{Recorded: "it was not issued, unless", NotRecorded: "does not record this tag"} {
		tr := Judge(7, "a", grant(holding), history(0), []Candidate{{Name: "tag/orders", Position: 7, Facts: facts(100), Recording: recording}})
		if !strings.Contains(tr.Lines[0].Why, why) {
			t.Errorf("%v: %s, want %q", recording, tr.Lines[0].Why, why)
		}
	}
	w := Judge(7, "a", Found{Since: noon}, nil, []Candidate{{Name: "worker/default/3", Position: 7, Facts: Facts{Known: true, Exists: true, Mark: 8, Worker: driver.Worker{Holder: "node-b", Token: 4}}}})
	if l := w.Lines[0]; l.Verdict != api.VerdictElsewhere || *l.Worker != 3 || !strings.Contains(l.Why, "held by node-b, under fencing token 4") {
		t.Errorf("%+v", l)
	}
	if v := Strongest(api.VerdictNeverGranted, api.VerdictHandedBack, api.VerdictUnknown); v != api.VerdictHandedBack {
		t.Errorf("the strongest is %s", v)
	}
}
