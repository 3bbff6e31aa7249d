// Package gate bounds how many connections a listener has, so that strangers keep
// nobody else out:
//
//	       Enter                Vouch
//	new -----------> stranger -----------> known
//	    \               |                    |
//	     refused        | cut, Leave         | Leave
//	     (full of       v                    v
//	      known ones)  gone                 gone
//
// A connection is a stranger's until it has shown what it is asked for: a certificate,
// a token. Strangers have a small part of the places. Where they are more, or no place
// is left for one who comes, the one that has been a stranger for longest is cut: an
// honest client is one for a few round trips, and an attacker displaces himself.
package gate

import (
	"container/list"
	"sync"
)

// A Gate counts connections. Its methods are safe for concurrent use.
type Gate struct {
	places, strangers int

	mu    sync.Mutex // guards the fields below and those of passes; nothing waits under it
	taken int
	queue list.List // of *Pass, strangers in the order in which they came
}

// strangersShare is the part of the places that strangers may take, and
// minStrangers how many they may be in any case.
const (
	strangersShare = 8
	minStrangers   = 16
)

// New returns a gate with places for so many connections.
func New(places int) *Gate {
	return &Gate{places: places, strangers: min(places, max(minStrangers, places/strangersShare))}
}

// A Pass is one connection's place. The nil *Pass is none.
type Pass struct {
	gate *Gate
	cut  func()
	at   *list.Element // in the queue; nil: known, or gone
	left bool
}

// Enter gives a new connection a place; nil if there is none. The cut must end the
// connection without a wait. It is called once at most, and perhaps after Leave.
func (g *Gate) Enter(cut func()) *Pass {
	p, displaced := g.enter(cut)
	if displaced != nil {
		displaced()
	}
	return p
}

func (g *Gate) enter(cut func()) (p *Pass, displaced func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken >= g.places || g.queue.Len() >= g.strangers {
		first := g.queue.Front()
		if first == nil {
			return nil, nil
		}
		oldest := first.Value.(*Pass)
		displaced = oldest.cut
		oldest.leaveLocked()
	}
	p = &Pass{gate: g, cut: cut}
	p.at = g.queue.PushBack(p)
	g.taken++
	return p, displaced
}

// Vouch marks the connection as no stranger's any more.
func (p *Pass) Vouch() {
	if p == nil {
		return
	}
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if p.at != nil {
		p.gate.queue.Remove(p.at)
		p.at = nil
	}
}

// Leave gives the place back. It may be called more than once.
func (p *Pass) Leave() {
	if p == nil {
		return
	}
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.leaveLocked()
}

func (p *Pass) leaveLocked() {
	if p.left {
		return
	}
	p.left = true
	p.gate.taken--
	if p.at != nil {
		p.gate.queue.Remove(p.at)
		p.at = nil
	}
}

// Expel cuts all strangers.
func (g *Gate) Expel() {
	for _, cut := range g.expel() {
		cut()
	}
}

func (g *Gate) expel() (cuts []func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.queue.Len() > 0 {
		p := g.queue.Front().Value.(*Pass)
		cuts = append(cuts, p.cut)
		p.leaveLocked()
	}
	return cuts
}

// Len returns how many connections have places.
func (g *Gate) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken
}
