package console

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/fleet"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/witness"
)

// aboutConsole is the question for a node's facts, which a node without a console does not answer.
const aboutConsole = "console"

// What is shown of other nodes.
const (
	askAgain    = time.Second // after which an answer is old
	maxCalled   = 80          // runes of a name that are shown
	silentAfter = 5 * time.Second
)

// heard keeps the other nodes' accounts of themselves.
type heard struct {
	mu   sync.Mutex // guards the fields below
	last []nodeView
	more int // rows that are neither asked nor shown
	at   time.Time
}

// A nodeView is a node as pages show it.
type nodeView struct {
	witness.Node
	Facts *facts        // nil: it did not answer
	Alive bool          // its facts are there, or its heartbeat is
	Trip  time.Duration // how long the question took
	Off   time.Duration // its clock less ours
	Err   string        // why there are no facts
}

// Says returns the state of a node in one word, or a few.
func (n nodeView) Says() string {
	switch {
	case n.Facts != nil && n.Facts.Readiness.Leaving:
		return "leaving"
	case n.Facts != nil:
		return n.Facts.Readiness.State
	case n.State == "missing":
		return "missing"
	case !n.Alive:
		return "dead"
	}
	return n.State + ", not heard"
}

// Class returns how bad a node's state is: good, warn or bad.
func (n nodeView) Class() string {
	switch {
	case n.Facts == nil && n.Alive:
		return "warn"
	case n.Facts == nil, !n.Facts.Readiness.Ready:
		return "bad"
	case n.Facts.Readiness.Degraded || n.Facts.Code != "":
		return "warn"
	}
	return "good"
}

// Called returns the node's name as pages show it.
func (n nodeView) Called() string { return shown(cmp.Or(n.Name, n.Address, n.Row)) }

// shown returns a text as a page can hold it: the writer of a row chooses its length.
func shown(text string) string {
	if runes := []rune(text); len(runes) > maxCalled {
		return string(runes[:maxCalled/2]) + "…" + string(runes[len(runes)-maxCalled/2:])
	}
	return text
}

// nodes returns this node, first, and the others, and how many more there are.
func (c *Console) nodes(ctx context.Context) (all []nodeView, more int) {
	own := c.own(ctx)
	self := nodeView{Node: witness.Node{Name: own.Name, Address: own.Address, Self: true, State: own.Readiness.State}, Facts: &own, Alive: true}
	p := &c.heard
	p.mu.Lock()
	defer p.mu.Unlock()
	// Under the lock, so that pages that come at once wait for one question to the fleet.
	if time.Since(p.at) >= askAgain {
		c.askLocked(ctx)
	}
	all = []nodeView{self}
	for _, n := range p.last {
		if n.Self {
			all[0].Row, all[0].Beats, all[0].Grants = n.Row, n.Beats, n.Grants
			continue
		}
		all = append(all, n)
	}
	return all, p.more
}

// askLocked asks the other nodes for their facts. The caller holds the lock of c.heard.
func (c *Console) askLocked(ctx context.Context) {
	rows, more := c.opts.Fleet.Rows(ctx)
	answers := fleet.Ask[facts](ctx, c.opts.Fleet, rows, aboutConsole, nil)
	all := make([]nodeView, len(answers))
	for i, a := range answers {
		all[i] = nodeView{Node: a.Node, Trip: a.Trip}
		// Its row speaks for it, too: it may beat, and not be reached from here.
		all[i].Alive = a.Err == nil || a.Seen > 0 && a.Seen < silentAfter && a.State != "silent"
		switch {
		case errors.Is(a.Err, fleet.ErrNothing):
			all[i].Err = "it serves no console there, at " + a.Address
			continue
		case a.Err != nil:
			all[i].Err = messageOf(a.Err)
			continue
		}
		// A clock counts as read in the middle of the trip.
		all[i].Facts, all[i].Off = &answers[i].Said, a.Said.Now.Sub(a.At.Add(a.Trip/2))
	}
	c.heard.last, c.heard.more, c.heard.at = all, more, time.Now()
}

// tellFacts answers another node's console.
func (c *Console) tellFacts(ctx context.Context, _ url.Values) (any, error) { return c.own(ctx), nil }

// traces asks all nodes for a number, this one first.
func (c *Console) traces(ctx context.Context, req service.TraceRequest) []api.NodeTrace {
	all, err := c.opts.Fleet.Trace(ctx, req)
	if err != nil {
		return []api.NodeTrace{{Name: c.opts.Name, Err: messageOf(err)}}
	}
	return all
}
