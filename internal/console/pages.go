package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
)

// pages are what those see who may see the console, by pattern.
func (c *Console) pages() map[string]page {
	return map[string]page{
		"GET " + Prefix + "{$}":         c.overview,
		"GET " + Prefix + "series.json": c.series,
		"GET " + Prefix + "tags":        c.tags,
		"GET " + Prefix + "tag":         c.tag,
		"POST " + Prefix + "tags":       c.createTag,
		"POST " + Prefix + "tag":        c.actOnTag,
		"GET " + Prefix + "workers":     c.workers,
		"GET " + Prefix + "worker":      c.worker,
		"POST " + Prefix + "worker":     c.retireWorker,
		"GET " + Prefix + "decoder":     c.decoder,
		"POST " + Prefix + "decoder":    c.decoder,
		"GET " + Prefix + "fence":       c.fence,
		"POST " + Prefix + "fence":      c.speak,
		"GET " + Prefix + "clocks":      c.clocks,
		"GET " + Prefix + "planner":     c.planner,
		"GET " + Prefix + "log":         c.log,
	}
}

// An overviewBody answers the questions of three in the morning.
type overviewBody struct {
	Class    string // of the verdict
	Verdict  string
	Rate     float64
	Lasts    time.Duration // of what is in hand, where it lasts shortest; negative: without end
	LastsOf  string
	Troubles []trouble
	Busiest  []tagFacts
	Quiet    bool // nothing was issued since the start
}

// A trouble is what keeps something from being issued, and what to do.
type trouble struct {
	Class, Node, What, Why, Code string
	Command                      string
	Link, LinkText               string
}

func (c *Console) overview(v *visit) error {
	out := c.view(v, "Overview", "overview")
	out.Live, out.Command = true, c.at("status")
	b := overviewBody{Lasts: -1, Quiet: true}
	ready, answered := 0, 0
	for _, n := range out.Nodes {
		b.Troubles = append(b.Troubles, c.troublesOf(n)...)
		if n.Facts == nil {
			continue
		}
		answered++
		if n.Facts.Readiness.Ready {
			ready++
		}
		b.Rate += n.Facts.Rate
		for _, t := range n.Facts.Tags {
			b.Quiet = b.Quiet && t.Issued == 0
			b.shorter(t.Lasts(), "tag "+t.Name+" on "+n.Called())
		}
		for _, p := range n.Facts.Pools {
			b.Quiet = b.Quiet && p.Issued == 0
			b.shorter(p.Remaining, "pool "+p.Name+" on "+n.Called())
		}
		b.Busiest = append(b.Busiest, n.Facts.Tags...)
	}
	b.Busiest = busiest(b.Busiest)
	switch {
	case ready == len(out.Nodes) && len(b.Troubles) == 0:
		b.Class, b.Verdict = "good", "Numbers are issued: "+nodesOf(ready, len(out.Nodes))
	case ready > 0:
		b.Class, b.Verdict = "warn", "Numbers are issued, with trouble: "+nodesOf(ready, len(out.Nodes))
	default:
		b.Class, b.Verdict = "bad", "No numbers can be issued"
	}
	if answered < len(out.Nodes) {
		b.Verdict += fmt.Sprintf("; %d not heard", len(out.Nodes)-answered)
	}
	slices.SortStableFunc(b.Troubles, func(a, b trouble) int { return cmp.Compare(a.Class, b.Class) })
	out.Body = b
	c.render(v.w, http.StatusOK, "overview", out)
	return nil
}

func nodesOf(ready, all int) string {
	if all == 1 {
		return "one node, and it can"
	}
	return fmt.Sprintf("%d of %d nodes can", ready, all)
}

func (b *overviewBody) shorter(d time.Duration, of string) {
	if d >= 0 && (b.Lasts < 0 || d < b.Lasts) {
		b.Lasts, b.LastsOf = d, of
	}
}

// busiest adds up what the nodes say of each tag, the one that burns most first.
func busiest(all []tagFacts) []tagFacts {
	sum := map[string]*tagFacts{}
	var out []*tagFacts
	for _, t := range all {
		s := sum[t.Name]
		if s == nil {
			s = &tagFacts{Name: t.Name}
			sum[t.Name] = s
			out = append(out, s)
		}
		s.Rate += t.Rate
		s.Issued += t.Issued
		s.Burnt += t.Burnt
		s.Remaining += t.Remaining
		s.Refills += t.Refills
		s.Waits += t.Waits
		s.Step = max(s.Step, t.Step)
		s.Took = max(s.Took, t.Took)
	}
	slices.SortFunc(out, func(a, b *tagFacts) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Issued, a.Issued), cmp.Compare(a.Name, b.Name))
	})
	var top []tagFacts
	for _, s := range out[:min(len(out), 8)] {
		top = append(top, *s)
	}
	return top
}

// troublesOf returns what is wrong with a node.
func (c *Console) troublesOf(n nodeView) (all []trouble) {
	if n.Facts == nil {
		t := trouble{Class: "bad", Node: n.Called(), What: "dead: no heartbeat, no answer", Why: n.Err, Command: c.at("nodes")}
		if n.Alive {
			t.Class, t.What = "warn", "writes to the store, and does not answer here"
		}
		if n.State == "missing" {
			t.What, t.Command = "missing: it must say what it used before the fence can end", c.at("nodes", "settle", n.Short())
			t.Link, t.LinkText = "fence", "Speak for it"
		}
		if n.Seen > 0 && n.State != "silent" { // whoever says that it is silent writes its row
			t.Why += fmt.Sprintf(" (last heartbeat %s ago)", span(n.Seen))
		}
		return append(all, t)
	}
	r := n.Facts.Readiness
	if n.Facts.Code != "" || r.State != "serving" {
		t := trouble{Class: "warn", Node: n.Called(), What: r.State, Why: n.Facts.Why, Code: n.Facts.Code, Command: n.Facts.Command}
		if r.Fenced || !r.Ready {
			t.Class = "bad"
		}
		if r.State == "serving" {
			t.What = "is granted nothing"
		}
		if t.Command == "" {
			t.Command = c.at("status")
		}
		if r.Fenced {
			t.Link, t.LinkText = "fence", "See the fence"
		}
		all = append(all, t)
	}
	for _, lack := range r.Cannot[:min(len(r.Cannot), 10)] {
		all = append(all, trouble{Class: "bad", Node: n.Called(), What: lack.Kind + " " + lack.Name + " cannot be issued from", Why: lack.Detail, Code: string(lack.Code), Command: c.at("status")})
	}
	for _, p := range n.Facts.Pools {
		if p.Rollback > time.Second {
			all = append(all, trouble{
				Class: "warn", Node: n.Called(), What: "its clock was set back by " + span(p.Rollback),
				Why: "pool " + p.Name + " goes on in the time that was granted; its numbers show a time ahead of the clock until that has caught up", Code: "clock_rollback",
				Command: "chronyc tracking", Link: "clocks", LinkText: "See the clocks",
			})
		}
		if p.Ends.Before(time.Now().AddDate(1, 0, 0)) && !p.Ends.IsZero() {
			all = append(all, trouble{Class: "warn", Node: n.Called(), What: "pool " + p.Name + " ends " + p.Ends.Format(time.DateOnly), Why: "its layout's time runs out", Command: "hapax plan", Link: "planner", LinkText: "Plan its successor"})
		}
	}
	return all
}

// series answers with the points of the plots, of all nodes together.
func (c *Console) series(v *visit) error {
	type point struct{ rate, took float64 }
	sum := map[int64]*point{}
	for _, n := range c.nodes(v.Context()) {
		if n.Facts == nil {
			continue
		}
		for _, s := range n.Facts.Samples {
			slot := (s.At + int64(math.Round(-n.Off.Seconds()))) / 2 * 2 // in our own time
			if sum[slot] == nil {
				sum[slot] = &point{}
			}
			sum[slot].rate += s.Rate
			sum[slot].took = max(sum[slot].took, s.Took)
		}
	}
	var at []int64
	for t := range sum {
		at = append(at, t)
	}
	slices.Sort(at)
	rates, took := []float64{}, []float64{}
	for _, t := range at {
		rates, took = append(rates, sum[t].rate), append(took, sum[t].took)
	}
	v.w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(v.w).Encode(map[string]any{"t": append([]int64{}, at...), "rate": rates, "took": took})
}

// tagsPage is how many tags a page shows.
const tagsPage = 100

type tagRow struct {
	hapax.Tag
	Sum   tagFacts
	Nodes int // that issue from it
}

type tagsBody struct {
	Rows  []tagRow
	Next  string // the last name, if there may be more
	After string
	Form  createForm
}

func (c *Console) tags(v *visit) error {
	return c.showTags(v, http.StatusOK, createForm{Kind: "segment", Step: "1000"}, "")
}

// showTags shows the list, with the form as it was filled in.
func (c *Console) showTags(v *visit, status int, form createForm, wrong string) error {
	out := c.view(v, "Tags", "tags")
	out.Live, out.Command, out.Error = v.Method == http.MethodGet, c.at("tags", "list"), wrong
	out.Done = doneText(v)
	b := tagsBody{After: v.URL.Query().Get("after"), Form: form}
	tags, err := c.svc.Tags(v.Context(), b.After, tagsPage)
	if err != nil { // what is in use is known without the store
		out.Error = cmp.Or(out.Error, "The store does not tell which tags there are; below are those in use. "+messageOf(err))
		for _, t := range c.svc.Segments() {
			tags = append(tags, hapax.Tag{Name: t.Tag, Kind: hapax.KindSegment})
		}
		tags = tags[:min(len(tags), tagsPage)]
	} else if len(tags) == tagsPage {
		b.Next = tags[len(tags)-1].Name
	}
	sums := sumsOf(out.Nodes)
	for _, t := range tags {
		row := tagRow{Tag: t, Sum: tagFacts{Name: t.Name}}
		if s := sums[t.Name]; s != nil {
			row.Sum, row.Nodes = s.tagFacts, s.nodes
		}
		b.Rows = append(b.Rows, row)
	}
	slices.SortStableFunc(b.Rows, func(a, b tagRow) int { return cmp.Compare(b.Sum.Rate, a.Sum.Rate) })
	out.Body = b
	c.render(v.w, status, "tags", out)
	return nil
}

type tagSum struct {
	tagFacts
	nodes int
}

func sumsOf(nodes []nodeView) map[string]*tagSum {
	sums := map[string]*tagSum{}
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		for _, t := range n.Facts.Tags {
			s := sums[t.Name]
			if s == nil {
				s = &tagSum{tagFacts: tagFacts{Name: t.Name}}
				sums[t.Name] = s
			}
			s.Rate += t.Rate
			s.Issued += t.Issued
			s.Burnt += t.Burnt
			s.Remaining += t.Remaining
			s.Step = max(s.Step, t.Step)
			s.nodes++
		}
	}
	return sums
}

type nodeTag struct {
	Node string
	tagFacts
}

type tagBody struct {
	hapax.Tag
	Sum      tagFacts
	ByNode   []nodeTag
	Left     int64         // numbers up to 2^63 - 1
	LineEnds time.Duration // at the present rate; negative: not to be seen
	Form     changeForm
	Confirm  bool // deletion
	Command  string
}

func (c *Console) tag(v *visit) error {
	return c.showTag(v, http.StatusOK, v.URL.Query().Get("name"), nil, "")
}

func (c *Console) showTag(v *visit, status int, name string, form *changeForm, wrong string) error {
	t, err := c.svc.Tag(v.Context(), name)
	if err != nil {
		return err
	}
	out := c.view(v, "Tag "+name, "tags")
	out.Live, out.Command, out.Error, out.Done = v.Method == http.MethodGet, c.at("tags", "show", name), wrong, doneText(v)
	b := tagBody{Tag: t, Left: math.MaxInt64 - t.Mark, LineEnds: -1, Confirm: v.URL.Query().Has("delete")}
	b.Sum.Name = name
	for _, n := range out.Nodes {
		if n.Facts == nil {
			continue
		}
		for _, f := range n.Facts.Tags {
			if f.Name == name {
				b.ByNode = append(b.ByNode, nodeTag{n.Called(), f})
			}
		}
	}
	if s := sumsOf(out.Nodes)[name]; s != nil {
		b.Sum = s.tagFacts
	}
	if seconds := float64(b.Left) / b.Sum.Rate; b.Sum.Rate > 0 && seconds < 250*365*24*3600 {
		b.LineEnds = time.Duration(seconds * float64(time.Second))
	}
	if b.Form = formOf(t); form != nil {
		b.Form = *form
	}
	b.Command = c.at("tags", "delete", name)
	out.Body = b
	c.render(v.w, status, "tag", out)
	return nil
}

// cellsShown is how many worker IDs a page draws.
const cellsShown = 1024

type workersBody struct {
	Pool    string
	Pools   []driver.Pool
	Layout  string
	Count   map[string]int64
	Cells   []cell
	First   int64
	Last    int64
	Prev    int64 // the page before; negative: none
	Next    int64 // likewise
	Total   int64
	Ends    time.Time
	Held    []heldRow
	Starved bool
}

type cell struct {
	ID    int64
	State string
	Title string
}

type heldRow struct {
	service.WorkerStatus
	Node string
	In   time.Duration // until others may have it
}

func (c *Console) workers(v *visit) error {
	out := c.view(v, "Workers", "workers")
	q := v.URL.Query()
	b := workersBody{Pool: cmp.Or(q.Get("pool"), hapax.DefaultPool), Count: map[string]int64{}, Prev: -1, Next: -1}
	out.Live, out.Done, out.Command = true, doneText(v), c.at("workers", "list", b.Pool)
	statuses, err := c.svc.PoolStatuses(v.Context())
	if err != nil {
		return err
	}
	for _, p := range statuses {
		b.Pools = append(b.Pools, p.Pool)
	}
	layout, err := c.svc.PoolLayout(v.Context(), b.Pool)
	if err != nil {
		return err
	}
	used, err := c.svc.WorkerStatuses(v.Context(), b.Pool)
	if err != nil {
		return err
	}
	b.Layout, b.Total, b.Ends = service.LayoutName(layout), layout.Workers(), layout.Ends()
	b.First, _ = strconv.ParseInt(q.Get("from"), 10, 64)
	b.First = min(max(b.First, 0), max(b.Total-1, 0))
	b.Last = min(b.First+cellsShown, b.Total) - 1
	if b.First > 0 {
		b.Prev = max(b.First-cellsShown, 0)
	}
	if b.Last+1 < b.Total {
		b.Next = b.Last + 1
	}
	by := map[int64]service.WorkerStatus{}
	for _, w := range used {
		by[w.ID] = w
		b.Count[string(w.State)]++
		if w.State != service.WorkerFree && len(b.Held) < 200 {
			b.Held = append(b.Held, heldRow{w, nodeWith(out.Nodes, b.Pool, w.ID, w.Holder), time.Until(w.Free)})
		}
	}
	b.Count[string(service.WorkerFree)] += b.Total - int64(len(used))
	b.Starved = b.Count[string(service.WorkerFree)] == 0
	for id := b.First; id <= b.Last; id++ {
		w, ok := by[id]
		state := string(service.WorkerFree)
		if ok {
			state = string(w.State)
		}
		title := fmt.Sprintf("%d: %s", id, state)
		if ok && w.Holder != "" {
			title += ", " + w.Holder
		}
		b.Cells = append(b.Cells, cell{id, state, title})
	}
	out.Body = b
	c.render(v.w, http.StatusOK, "workers", out)
	return nil
}

// nodeWith returns the node that issues from a worker ID, and else who holds it.
func nodeWith(nodes []nodeView, pool string, worker int64, holder string) string {
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		for _, p := range n.Facts.Pools {
			if p.Name == pool && p.Worker == worker {
				return n.Called()
			}
		}
	}
	return holder
}

type workerBody struct {
	service.WorkerStatus
	Node    string
	In      time.Duration
	Command string
}

func (c *Console) worker(v *visit) error {
	q := v.URL.Query()
	pool := cmp.Or(q.Get("pool"), hapax.DefaultPool)
	id, err := strconv.ParseInt(q.Get("id"), 10, 64)
	if err != nil {
		return invalid("id", q.Get("id"), "a worker ID")
	}
	w, err := c.svc.WorkerStatus(v.Context(), pool, id)
	if err != nil {
		return err
	}
	out := c.view(v, fmt.Sprintf("Worker %d of %s", id, pool), "workers")
	out.Done, out.Command = doneText(v), c.at("workers", "show", pool, fmt.Sprint(id))
	out.Body = workerBody{w, nodeWith(out.Nodes, pool, id, w.Holder), time.Until(w.Free), c.at("workers", "retire", pool, fmt.Sprint(id))}
	c.render(v.w, http.StatusOK, "worker", out)
	return nil
}

func (c *Console) clocks(v *visit) error {
	out := c.view(v, "Clocks", "clocks")
	out.Live, out.Command = true, c.at("workers", "list")
	c.render(v.w, http.StatusOK, "clocks", out)
	return nil
}

type logBody struct {
	Entries []Entry
	Audit   bool // only what somebody did
}

func (c *Console) log(v *visit) error {
	out := c.view(v, "Log", "log")
	out.Live, out.Command = true, c.at("status")
	b := logBody{Audit: v.URL.Query().Get("only") == "actions"}
	for _, n := range out.Nodes {
		if n.Facts == nil {
			continue
		}
		for _, e := range n.Facts.Log {
			if e.Node = n.Called(); e.Audit || !b.Audit {
				b.Entries = append(b.Entries, e)
			}
		}
	}
	slices.SortStableFunc(b.Entries, func(x, y Entry) int { return y.At.Compare(x.At) })
	b.Entries = b.Entries[:min(len(b.Entries), maxKept)]
	out.Body = b
	c.render(v.w, http.StatusOK, "log", out)
	return nil
}

func invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
