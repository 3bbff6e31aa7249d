package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/witness"
)

// Limits on what the overview lists.
const (
	maxLacksShown  = 10 // of a node
	maxAlarmsShown = 20
	busiestShown   = 8

	// mournFor is how long a node that fell silent counts as a trouble.
	mournFor = 24 * time.Hour
)

// An overviewBody answers the questions of three in the morning.
type overviewBody struct {
	Class     string // of the verdict
	Verdict   string
	Rate      float64
	Budget    *nodeBudget // the shortest of all nodes; nil: no time is the limit
	Pool      *poolEnd    // the pool that ends first; nil: none is in use
	Troubles  []trouble
	Alarms    []nodeAlarm
	More      int // alarms that are not listed
	Forecasts []service.Forecast
	Busiest   []tagSum
	Quiet     bool // nothing was issued since the start
}

// A nodeBudget is how long a node could issue if the store answered nothing any more.
type nodeBudget struct {
	Node string
	service.Budget
}

// Lasts returns the budget.
func (b nodeBudget) Lasts() time.Duration { return lasting(b.Seconds) }

// lasting returns a length of time in seconds, which may be longer than a Duration.
func lasting(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, 0), math.MaxInt64/1e10) * float64(time.Second))
}

type poolEnd struct {
	Name string
	Ends time.Time
}

// A nodeAlarm is one that is up on a node.
type nodeAlarm struct {
	Node string
	service.Alarm
}

// A trouble is what keeps something from being issued, and what to do.
type trouble struct {
	Class, Node, What, Why, Code string
	Command                      string
	Link, LinkText               string
	See                          string // where the runbook tells of it
}

func (c *Console) overview(v *visit) error {
	out := c.view(v, "Overview", "overview")
	out.Live, out.Command = true, c.at("status")
	b := overviewBody{Quiet: true, Busiest: busiest(out.Nodes)}
	b.Busiest = b.Busiest[:min(len(b.Busiest), busiestShown)]
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
		b.add(n)
	}
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
	slices.SortStableFunc(b.Alarms, func(a, b nodeAlarm) int { return b.Since.Compare(a.Since) })
	if b.More = max(0, len(b.Alarms)-maxAlarmsShown); b.More > 0 {
		b.Alarms = b.Alarms[:maxAlarmsShown]
	}
	b.Forecasts = soonest(b.Forecasts)
	out.Body = b
	c.render(v.w, http.StatusOK, "overview", out)
	return nil
}

// add takes what a node says into the whole.
func (b *overviewBody) add(n nodeView) {
	f := n.Facts
	b.Rate += f.Rate
	for _, t := range f.Tags {
		b.Quiet = b.Quiet && t.Issued == 0
	}
	for _, p := range f.Pools {
		b.Quiet = b.Quiet && p.Issued == 0
		if !p.Ends.IsZero() && (b.Pool == nil || p.Ends.Before(b.Pool.Ends)) {
			b.Pool = &poolEnd{p.Name, p.Ends}
		}
	}
	if l := f.Readiness.Budget; l != nil && (b.Budget == nil || l.Seconds < b.Budget.Seconds) {
		b.Budget = &nodeBudget{n.Called(), *l}
	}
	for _, a := range f.Readiness.Alarms {
		b.Alarms = append(b.Alarms, nodeAlarm{n.Called(), a})
	}
	b.Forecasts = append(b.Forecasts, f.Readiness.Forecasts...)
}

// soonest returns of what several nodes forecast the nearest end, the nearest of all first.
func soonest(all []service.Forecast) []service.Forecast {
	slices.SortStableFunc(all, func(a, b service.Forecast) int { return a.Ends.Compare(b.Ends) })
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(f service.Forecast) bool {
		key := f.What + "\x00" + f.Kind + "\x00" + f.Name
		old := seen[key]
		seen[key] = true
		return old
	})
}

func nodesOf(ready, all int) string {
	if all == 1 {
		return "one node, and it can"
	}
	return fmt.Sprintf("%d of %d nodes can", ready, all)
}

// troublesOf returns what is wrong with a node.
func (c *Console) troublesOf(n nodeView) (all []trouble) {
	if n.Facts == nil {
		if n.State == "silent" && (n.Seen == 0 || n.Seen > mournFor) { // it is gone, and others have what it knew
			return nil
		}
		return append(all, c.silence(n))
	}
	r := n.Facts.Readiness
	if n.Facts.Code != "" || r.State != "serving" {
		t := trouble{Class: "warn", Node: n.Called(), What: standing(r.State), Why: n.Facts.Why, Code: n.Facts.Code, Command: n.Facts.Command, See: r.See}
		if r.Fenced || !r.Ready {
			t.Class = "bad"
		}
		switch {
		case t.Command != "":
		case t.Code == string(hapax.ErrStoreUnavailable.Code()):
			t.Command = c.at("doctor")
		default:
			t.Command = c.at("status")
		}
		if r.Fenced {
			t.Link, t.LinkText = "fence", "See the fence"
		}
		all = append(all, t)
	}
	for _, lack := range r.Cannot[:min(len(r.Cannot), maxLacksShown)] {
		all = append(all, trouble{
			Class: "bad", Node: n.Called(), What: lack.Kind + " " + lack.Name + " cannot be issued from", Why: lack.Detail, Code: string(lack.Code),
			Command: c.at("status"), See: seeCode(string(lack.Code)),
		})
	}
	if more := len(r.Cannot) - maxLacksShown; more > 0 {
		all = append(all, trouble{Class: "bad", Node: n.Called(), What: fmt.Sprintf("%d more tags and pools cannot be issued from", more), Command: c.at("status")})
	}
	for name, other := range r.Beside {
		if !other.Ready || other.Degraded {
			all = append(all, trouble{
				Class: "bad", Node: n.Called(), What: "stands in for " + name + ", which is in trouble: " + other.State, Why: other.StoreDetail,
				Code: strings.TrimPrefix(other.Store, "ok"), Command: cmp.Or(other.Command, c.at("status")), See: other.See,
			})
		}
	}
	for _, p := range n.Facts.Pools {
		if p.Rollback > time.Second {
			all = append(all, trouble{
				Class: "warn", Node: n.Called(), What: "its clock was set back by " + span(p.Rollback),
				Why:  "pool " + p.Name + " goes on in the time that was granted; its numbers show a time ahead of the clock until that has caught up",
				Code: string(hapax.ErrClockRollback.Code()), Command: "chronyc tracking", Link: "clocks", LinkText: "See the clocks", See: seeCode(string(hapax.ErrClockRollback.Code())),
			})
		}
	}
	return all
}

// standing says in words how a node stands with its store, where that is in trouble.
func standing(state string) string {
	switch witness.State(state) {
	case witness.Serving:
		return "is granted nothing"
	case witness.Fenced:
		return "is granted nothing: the store went back, and is not healed yet"
	case witness.Refusing:
		return "refuses the store, and is granted nothing"
	case witness.Joining:
		return "joins the store, and is granted nothing yet"
	case witness.Leaving:
		return "is about to stop"
	}
	return state
}

// silence is the trouble with a node that tells nothing.
func (c *Console) silence(n nodeView) trouble {
	t := trouble{Class: "bad", Node: n.Called(), What: "dead: no heartbeat, no answer", Why: n.Err, Command: c.at("nodes")}
	if n.Alive {
		t.Class, t.What = "warn", "writes to the store, and does not answer here"
	}
	if n.State == "missing" {
		t.What, t.Command = "missing: it must say what it used before the fence can end", c.at("nodes", "settle", n.Short())
		t.Link, t.LinkText = "fence?node="+n.Short()+"#speak", "Speak for it"
	}
	if n.Seen > 0 && n.State != "silent" { // whoever says that it is silent writes its row
		t.Why += fmt.Sprintf(" (last heartbeat %s ago)", span(n.Seen))
	}
	return t
}

// series answers with the points of the plots, of all nodes together.
func (c *Console) series(v *visit) error {
	type point struct{ rate, took float64 }
	sum := map[int64]*point{}
	const plotted = 2 * samples * int64(lookEvery/time.Second)
	oldest := time.Now().Unix() - plotted/2
	nodes, _ := c.nodes(v.Context())
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		for _, s := range n.Facts.Samples {
			slot := (s.At + int64(math.Round(-n.Off.Seconds()))) / 2 * 2 // in our own time
			if slot < oldest || slot > oldest+plotted {
				continue
			}
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
