package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/witness"
)

// Limits on the overview's lists.
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
	Forecasts []api.Forecast
	Busiest   []tagSum
	Quiet     bool // nothing was issued since the start
	Range     string
	Ranges    []timeRange
	Charts    []chart
}

// A nodeBudget is how long a node could issue if the store answered nothing any more.
type nodeBudget struct {
	Node string
	api.Budget
}

type poolEnd struct {
	Name string
	Ends time.Time
}

// A nodeAlarm is one that is up on a node.
type nodeAlarm struct {
	Node string
	api.Alarm
	Link string // to the page of its subject; empty where there is none
}

// aboutLink returns the link to the page about an alarm's subject.
func aboutLink(nodes []nodeView, alarm, about string) string {
	kind := api.KindTag
	switch alarm {
	case health.AlarmRollback, health.AlarmSkew, health.AlarmWorkers, health.AlarmPoisoned:
		kind = api.KindPool
	case health.AlarmCannot, health.AlarmBudget, health.AlarmForecast:
		if !uses(nodes, api.KindTag, about) && uses(nodes, api.KindPool, about) {
			kind = api.KindPool
		}
	case health.AlarmFloor, health.AlarmUnreadable:
	default:
		return ""
	}
	return pageOf(kind, about)
}

// uses reports whether a node uses a tag or pool of this name.
func uses(nodes []nodeView, kind, name string) bool {
	return slices.ContainsFunc(nodes, func(n nodeView) bool {
		if n.Facts == nil {
			return false
		}
		if kind == api.KindPool {
			return slices.ContainsFunc(n.Facts.Pools, func(p poolFacts) bool { return p.Name == name })
		}
		return slices.ContainsFunc(n.Facts.Tags, func(t tagFacts) bool { return t.Name == name })
	})
}

// pageOf returns the link to the page of a tag or a pool.
func pageOf(kind, name string) string {
	switch {
	case name == "":
		return ""
	case kind == api.KindPool:
		return "workers?" + url.Values{"pool": {name}}.Encode()
	}
	return "tag?" + url.Values{"name": {name}}.Encode()
}

// A trouble is a reason why something cannot be issued, and what to do.
type trouble struct {
	Class, Node, What, Why, Code string
	Command                      string
	Link, LinkText               string
	See                          string // where the runbook tells of it
}

func (c *Console) overview(v *visit) error {
	out := c.view(v, "Overview", "overview")
	out.Live, out.Command = true, c.at("status")
	chosen := rangeOf(v.URL.Query().Get("range"))
	b := overviewBody{Quiet: true, Busiest: busiest(out.Nodes), Range: ranges[chosen].Key, Ranges: ranges[:]}
	at, rates, took := slots(out.Nodes, chosen, time.Now())
	every := time.Duration(ranges[chosen].every) * time.Second
	b.Charts = []chart{newChart("Numbers a second", rates, at, every), newChart("Store, ms a grant", took, at, every)}
	b.Busiest = b.Busiest[:min(len(b.Busiest), busiestShown)]
	for _, n := range out.Nodes {
		b.Troubles = append(b.Troubles, c.troublesOf(n)...)
		if n.Facts != nil {
			b.add(n, out.Nodes)
		}
	}
	b.Class, b.Verdict = verdict(out.Nodes, len(b.Troubles) > 0)
	b.Troubles = together(b.Troubles, func(t *trouble) (*string, trouble) { same := *t; same.Node = ""; return &t.Node, same })
	// "bad" comes before "warn" in the alphabet, too.
	slices.SortStableFunc(b.Troubles, func(a, b trouble) int { return cmp.Compare(a.Class, b.Class) })
	slices.SortStableFunc(b.Alarms, func(a, b nodeAlarm) int { return a.Since.Compare(b.Since) }) // merged, it is up since the first
	b.Alarms = together(b.Alarms, func(a *nodeAlarm) (*string, nodeAlarm) {
		same := *a
		same.Node, same.Since = "", time.Time{}
		return &a.Node, same
	})
	slices.Reverse(b.Alarms)
	if b.More = max(0, len(b.Alarms)-maxAlarmsShown); b.More > 0 {
		b.Alarms = b.Alarms[:maxAlarmsShown]
	}
	b.Forecasts = soonest(b.Forecasts)
	out.Body = b
	c.render(v.w, http.StatusOK, "overview", out)
	return nil
}

// together makes one of those that differ in the node alone. Key returns the name of the
// node, and what else there is to say.
func together[T any, K comparable](all []T, key func(*T) (*string, K)) (merged []T) {
	at := map[K]int{}
	for i := range all {
		node, same := key(&all[i])
		if first, ok := at[same]; ok {
			of, _ := key(&merged[first])
			*of += ", " + *node
			continue
		}
		at[same] = len(merged)
		merged = append(merged, all[i])
	}
	return merged
}

// add adds a node's account to the whole.
func (b *overviewBody) add(n nodeView, nodes []nodeView) {
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
		b.Alarms = append(b.Alarms, nodeAlarm{n.Called(), a, aboutLink(nodes, a.Name, a.About)})
	}
	b.Forecasts = append(b.Forecasts, f.Readiness.Forecasts...)
}

// soonest returns the nearest end of each forecast of several nodes, the nearest of all first.
func soonest(all []api.Forecast) []api.Forecast {
	slices.SortStableFunc(all, func(a, b api.Forecast) int { return a.Ends.Compare(b.Ends) })
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(f api.Forecast) bool {
		key := f.What + "\x00" + f.Kind + "\x00" + f.Name
		old := seen[key]
		seen[key] = true
		return old
	})
}

// verdict says in a sentence how the fleet stands.
func verdict(nodes []nodeView, troubled bool) (class, text string) {
	ready, answered, fenced := 0, 0, 0
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		answered++
		if n.Facts.Readiness.Ready {
			ready++
		}
		if n.Facts.Readiness.Fenced {
			fenced++
		}
	}
	switch {
	case ready == len(nodes) && !troubled:
		class, text = "good", "Numbers are issued: "+nodesOf(ready, len(nodes))
	case ready > 0 && fenced == answered:
		class, text = "bad", "Nothing is granted: "+nodesOf(ready, len(nodes))+" issue what is in hand"
	case ready > 0:
		class, text = "warn", "Numbers are issued, with trouble: "+nodesOf(ready, len(nodes))
	default:
		class, text = "bad", "No numbers can be issued"
	}
	if answered < len(nodes) {
		text += fmt.Sprintf("; %d not heard", len(nodes)-answered)
	}
	return class, text
}

func nodesOf(ready, all int) string {
	if all == 1 {
		return "one node, and it can"
	}
	return fmt.Sprintf("%d of %d nodes can", ready, all)
}

// troublesOf returns a node's troubles.
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
			Command: c.at("status"), See: seeCode(string(lack.Code)), Link: pageOf(lack.Kind, lack.Name), LinkText: "See the " + lack.Kind,
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

// silence returns the trouble of a node that does not answer.
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
