package console

import (
	"reflect"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/service"
)

// What is the same on several nodes is told once, with the names of all.
func TestTogether(t *testing.T) {
	at := func(node, about string, since int64) nodeAlarm {
		return nodeAlarm{Node: node, Alarm: service.Alarm{Name: "cannot_issue", About: about, Since: time.Unix(since, 0)}}
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

// An alarm leads to what it is about, where the console has a page of that.
func TestAboutLink(t *testing.T) {
	nodes := []nodeView{{}, {Facts: &facts{Tags: []tagFacts{{Name: "orders"}, {Name: "both"}}, Pools: []poolFacts{{Name: "shop"}, {Name: "both"}}}}}
	for _, tt := range []struct{ alarm, about, want string }{
		{service.AlarmCannot, "orders", "tag?name=orders"},
		{service.AlarmCannot, "shop", "workers?pool=shop"},
		{service.AlarmBudget, "both", "tag?name=both"},
		{service.AlarmForecast, "in no node", "tag?name=in+no+node"},
		{service.AlarmWorkers, "orders", "workers?pool=orders"},
		{service.AlarmFloor, "a&b", "tag?name=a%26b"},
		{service.AlarmPlugin, "orders", ""},
		{service.AlarmStoreLost, "", ""},
		{service.AlarmCannot, "", ""},
		{"of a later version", "orders", ""},
	} {
		if got := aboutLink(nodes, tt.alarm, tt.about); got != tt.want {
			t.Errorf("%s of %q leads to %q, want %q", tt.alarm, tt.about, got, tt.want)
		}
	}
}
