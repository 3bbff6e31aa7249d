package console

import (
	"reflect"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/health"
)

// What is the same on several nodes is told once, with the names of all.
func TestTogether(t *testing.T) {
	at := func(node, about string, since int64) nodeAlarm {
		return nodeAlarm{Node: node, Alarm: api.Alarm{Name: "cannot_issue", About: about, Since: time.Unix(since, 0)}}
	}
	got := together([]nodeAlarm{at("a", "full", 1), at("b", "other", 2), at("c", "full", 3)}, func(a *nodeAlarm) (*string, nodeAlarm) {
		same := *a
		same.Node, same.Since = "", time.Time{}
		return &a.Node, same
	})
	if want := []nodeAlarm{at("a, c", "full", 1), at("b", "other", 2)}; !reflect.DeepEqual(got, want) {
		t.Errorf("together they are %+v, want %+v", got, want)
	}
}

// An alarm leads to its subject, where the console has a page of that.
func TestAboutLink(t *testing.T) {
	nodes := []nodeView{{}, {Facts: &facts{Tags: []tagFacts{{Name: "orders"}, {Name: "both"}}, Pools: []poolFacts{{Name: "shop"}, {Name: "both"}}}}}
	for _, tt := range []struct{ alarm, about, want string }{
		{health.AlarmCannot, "orders", "tag?name=orders"},
		{health.AlarmCannot, "shop", "workers?pool=shop"},
		{health.AlarmBudget, "both", "tag?name=both"},
		{health.AlarmForecast, "in no node", "tag?name=in+no+node"},
		{health.AlarmWorkers, "orders", "workers?pool=orders"},
		{health.AlarmFloor, "a&b", "tag?name=a%26b"},
		{health.AlarmPlugin, "orders", ""},
		{health.AlarmStoreLost, "", ""},
		{health.AlarmCannot, "", ""},
		{"of a later version", "orders", ""},
	} {
		if got := aboutLink(nodes, tt.alarm, tt.about); got != tt.want {
			t.Errorf("%s of %q leads to %q, want %q", tt.alarm, tt.about, got, tt.want)
		}
	}
}

// The overview's first sentence tells a fence from a trouble that leaves grants coming.
func TestVerdict(t *testing.T) {
	node := func(ready, fenced bool) nodeView {
		return nodeView{Facts: &facts{Readiness: health.Readiness{Ready: ready, Fenced: fenced}}}
	}
	for _, tt := range []struct {
		name        string
		nodes       []nodeView
		troubled    bool
		class, text string
	}{
		{"all well", []nodeView{node(true, false), node(true, false)}, false, "good", "Numbers are issued: 2 of 2 nodes can"},
		{"a trouble", []nodeView{node(true, false), node(true, false)}, true, "warn", "Numbers are issued, with trouble: 2 of 2 nodes can"},
		{"one is silent", []nodeView{node(true, false), {}}, true, "warn", "Numbers are issued, with trouble: 1 of 2 nodes can; 1 not heard"},
		{"one is fenced", []nodeView{node(true, false), node(true, true)}, true, "warn", "Numbers are issued, with trouble: 2 of 2 nodes can"},
		{"all are fenced", []nodeView{node(true, true), node(false, true), {}}, true, "bad", "Nothing is granted: 1 of 3 nodes can issue what is in hand; 1 not heard"},
		{"nothing in hand", []nodeView{node(false, true)}, true, "bad", "No numbers can be issued"},
		{"one alone", []nodeView{node(true, false)}, false, "good", "Numbers are issued: one node, and it can"},
		{"one alone, fenced", []nodeView{node(true, true)}, true, "bad", "Nothing is granted: one node, and it can issue what is in hand"},
	} {
		if class, text := verdict(tt.nodes, tt.troubled); class != tt.class || text != tt.text {
			t.Errorf("%s: %s, %q; want %s, %q", tt.name, class, text, tt.class, tt.text)
		}
	}
}

// What is left of a line is what can be granted: each delta-th number up to its end.
func TestLeftOfALine(t *testing.T) {
	for _, v := range []struct {
		mark, delta, want int64
	}{
		{1, 0, hapax.MaxMark - 1}, {1, 1, hapax.MaxMark - 1}, {hapax.MaxMark - 350_000_000, 1 << 20, 333}, {hapax.MaxMark, 1, 0}, {hapax.MaxMark + 5, 1, 0},
	} {
		if got := left(hapax.Tag{Mark: v.mark, Delta: v.delta}); got != v.want {
			t.Errorf("at %d by %d: %d are left, want %d", v.mark, v.delta, got, v.want)
		}
	}
}
