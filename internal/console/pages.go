package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
)

// pages are the pages for visitors who may see the console, by pattern.
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

// cellsShown is how many worker IDs a page draws.
const cellsShown = 1024

type workersBody struct {
	Pool    string
	Pools   []api.PoolStatus
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
	Drawn   bool // all worker IDs are shown: somebody turned their pages
}

type cell struct {
	ID    int64
	State string
	Title string
}

type heldRow struct {
	api.WorkerStatus
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
	b.Pools = statuses
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
	by := map[int64]api.WorkerStatus{}
	for _, w := range used {
		by[w.ID] = w
		b.Count[string(w.State)]++
		if w.State != api.WorkerFree && len(b.Held) < 200 {
			b.Held = append(b.Held, heldRow{w, nodeWith(out.Nodes, b.Pool, w.ID, w.Holder), time.Until(w.Free)})
		}
	}
	// The list has none that was never used.
	b.Count[string(api.WorkerFree)] += b.Total - int64(len(used))
	b.Drawn = v.URL.Query().Has("from")
	b.Starved = b.Count[string(api.WorkerFree)] == 0
	for id := b.First; id <= b.Last; id++ {
		w, ok := by[id]
		state := string(api.WorkerFree)
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
	api.WorkerStatus
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
	Entries           []Entry
	Only, Level, Node string // what is listed; empty: all
	Kinds, Levels     []choice
	Nodes             []string
}

// A choice is an option of a form.
type choice struct{ Key, Title string }

var (
	logKinds  = []choice{{"", "everything"}, {"alarms", "only alarms"}, {"actions", "only what somebody did"}}
	logLevels = []choice{{"", "all"}, {"warn", "warnings and errors"}, {"error", "errors"}}
)

// lists reports whether an entry is to be listed.
func (b *logBody) lists(e *Entry) bool {
	return (b.Only == "" || b.Only == "actions" && e.Audit || b.Only == "alarms" && e.Alarm != "") &&
		(b.Level == "" || e.Level == "error" || b.Level == e.Level) &&
		(b.Node == "" || b.Node == e.Node)
}

func (c *Console) log(v *visit) error {
	out := c.view(v, "Log", "log")
	out.Live = true // no command prints this log
	q := v.URL.Query()
	b := logBody{Only: among(logKinds, q.Get("only")), Level: among(logLevels, q.Get("level")), Node: q.Get("node"), Kinds: logKinds, Levels: logLevels}
	for _, n := range out.Nodes {
		if n.Facts == nil {
			continue
		}
		if !slices.Contains(b.Nodes, n.Called()) {
			b.Nodes = append(b.Nodes, n.Called())
		}
		for _, e := range n.Facts.Log {
			if e.Node = n.Called(); b.lists(&e) {
				e.Link = e.subject(out.Nodes)
				b.Entries = append(b.Entries, e)
			}
		}
	}
	if b.Node != "" && !slices.Contains(b.Nodes, b.Node) { // what is chosen stays to be seen
		b.Nodes = append(b.Nodes, shown(b.Node))
		b.Node = shown(b.Node)
	}
	slices.SortStableFunc(b.Entries, func(x, y Entry) int { return y.At.Compare(x.At) })
	b.Entries = b.Entries[:min(len(b.Entries), maxKept)]
	out.Body = b
	c.render(v.w, http.StatusOK, "log", out)
	return nil
}

// among returns a key that is one of the choices; else that of the first.
func among(all []choice, key string) string {
	if slices.ContainsFunc(all, func(c choice) bool { return c.Key == key }) {
		return key
	}
	return all[0].Key
}

func invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
