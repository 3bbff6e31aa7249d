package api

import (
	"bytes"
	"encoding/json"
	"math"
	"time"

	"github.com/hapax-id/hapax"
)

// A Status is how a server stands with its store, and the other nodes there.
type Status struct {
	State   string          `json:"state"`          // "joining", "serving", "fenced", "refusing", "leaving" or "left"
	Code    hapax.Code      `json:"code,omitempty"` // the reason why it is granted no numbers; empty while it serves
	Why     string          `json:"why,omitempty"`  // likewise
	Command string          `json:"do,omitempty"`   // what an operator may do; empty: nothing is needed
	Fence   *Fence          `json:"fence,omitempty"`
	Missing []Node          `json:"missing,omitempty"` // nodes that must speak before the fence can end, and have not
	StoreID string          `json:"store"`
	Split   bool            `json:"split,omitempty"` // a step of the store is several writes, each of one row by itself
	Nodes   []Node          `json:"-"`               // that the store knows, by row
	Live    int             `json:"nodes"`           // how many of them live
	Foreign []ForeignStatus `json:"foreign,omitempty"`

	Budget    *Budget    `json:"outage_budget,omitempty"` // the tag or pool that could be issued from for the shortest time without the store; nil where no time is the limit
	Forecasts []Forecast `json:"forecasts,omitempty"`     // what ends within a year at the present rate, the nearest end first
	Alarms    []Alarm    `json:"alarms,omitempty"`        // those that are up
	See       string     `json:"see,omitempty"`           // the runbook's entry on why something is not issued
}

// A Fence stands in the store while nobody is granted anything.
type Fence struct {
	ID   string    `json:"-"`
	Node string    `json:"node"` // what the node that raised it is known by
	At   time.Time `json:"at"`   // by that node's clock
	Why  string    `json:"why"`
}

// A Node is a process that the store knows.
type Node struct {
	Row     string // as which one it joined, and a random text
	Name    string // what operators know it by
	Address string
	State   string        // "serving", "joining", "fenced" while a fence stands, "left", "silent", or "missing": it must speak before the fence can end
	Beats   int64         // how often it has written to the store
	Grants  int64         // how often it has asked for numbers, as far as is known
	Seen    time.Duration // how long ago the server saw its heartbeat advance; 0: it did not
	Self    bool          // it is the server that answers
}

// IsLive reports whether the process has neither left nor fallen silent.
func (n Node) IsLive() bool { return n.State != "left" && n.State != "silent" }

// MarshalJSON implements json.Marshaler. The heartbeats are the guard's own business.
func (n Node) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // whoever writes it chooses
	err := e.Encode(struct {
		Row     string  `json:"row"`
		Name    string  `json:"name,omitempty"`
		Address string  `json:"address,omitempty"`
		State   string  `json:"state"`
		Grants  int64   `json:"grants"`
		Seen    float64 `json:"seen_seconds_ago,omitempty"`
		Self    bool    `json:"self,omitempty"`
	}{n.Row, n.Name, n.Address, n.State, n.Grants, n.Seen.Seconds(), n.Self})
	return b.Bytes(), err
}

// Live returns how many of the processes live.
func Live(nodes []Node) (n int) {
	for _, node := range nodes {
		if node.IsLive() {
			n++
		}
	}
	return n
}

// A ForeignStatus is how the table or the tree of a foreign system stands with a server.
type ForeignStatus struct {
	Name    string     `json:"name"`           // in metrics and readiness, such as leaf table
	State   string     `json:"state"`          // "serving", or "refusing" while rows are refused
	Code    hapax.Code `json:"code,omitempty"` // of why nothing, or nothing of some rows, is granted; empty: everything is
	Why     string     `json:"why,omitempty"`  // likewise
	Command string     `json:"do,omitempty"`   // what an operator may do; empty: nothing is needed
}

// The kinds of issuers.
const (
	KindTag  = "tag"
	KindPool = "pool"
)

// A Lack is a tag or pool that cannot issue now.
type Lack struct {
	Kind   string     `json:"kind"` // KindTag or KindPool
	Name   string     `json:"name"`
	Code   hapax.Code `json:"code"`
	Detail string     `json:"detail"`
}

// A Budget is how long numbers of a tag or pool could be issued at the present rate if
// the store answered nothing any more.
type Budget struct {
	Kind    string  `json:"kind"` // KindTag or KindPool
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Lasts returns the budget, which in seconds may be longer than a Duration.
func (b Budget) Lasts() time.Duration {
	return time.Duration(min(max(b.Seconds, 0), math.MaxInt64/1e10) * float64(time.Second))
}

// A Forecast tells when something that cannot be refilled ends at the present rate.
type Forecast struct {
	What string    `json:"what"` // "line", "reader", "layout", "workers" or "starts"
	Kind string    `json:"kind"` // KindTag or KindPool
	Name string    `json:"name"`
	Ends time.Time `json:"ends"`
}

// An Alarm is something that an operator should look at.
type Alarm struct {
	Name   string    `json:"alarm"`
	About  string    `json:"about,omitempty"` // a tag, a pool, or another name
	Detail string    `json:"detail"`
	Since  time.Time `json:"since"`
	See    string    `json:"see"` // where the runbook tells of it
}

// A NodeStatus is how one node of a fleet stands.
type NodeStatus struct {
	Name   string
	Self   bool   // it is the server that answers
	Err    string // why it told nothing; empty: it did
	Status Status // without the other nodes
}
