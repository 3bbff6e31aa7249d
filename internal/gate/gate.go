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
//
// What strangers send is read without haste: a handshake and a request each at once, and
// what is more at a rate that all of them share. So what the server has to keep of it, or
// starts because of it, stays little, whatever they send.
package gate

import (
	"container/list"
	"sync"
	"time"
)

// A Gate counts connections. Its methods are safe for concurrent use.
type Gate struct {
	places, strangers int

	mu    sync.Mutex // guards the fields below and those of passes; nothing waits under it
	taken int
	queue list.List // of *Pass, strangers in the order in which they came
	due   time.Time // until when strangers' bytes have used up the rate
}

// strangersShare is the part of the places that strangers may take, minStrangers how
// many they may be in any case, and maxStrangers how many at most: one that speaks
// HTTP/2 takes some 25 KiB before it has said anything.
const (
	strangersShare = 8
	minStrangers   = 16
	maxStrangers   = 512
)

// How fast strangers are read, in bytes and bytes a second.
const (
	strangersRead = 1 << 10   // at a time
	freeBytes     = 2 << 10   // of each connection
	freeAnew      = 256       // a second, of each connection, up to freeBytes
	sharedRate    = 256 << 10 // a second, of all connections, beyond what is free
	sharedAtOnce  = 64 << 10  // of that, before anybody waits
)

// New returns a gate with places for so many connections.
func New(places int) *Gate {
	return &Gate{places: places, strangers: min(places, max(minStrangers, min(maxStrangers, places/strangersShare)))}
}

// A Pass is one connection's place. The nil *Pass is none.
type Pass struct {
	gate *Gate
	cut  func()
	at   *list.Element // in the queue; nil: known, or gone
	left bool

	known chan struct{} // closed when the connection is no stranger's any more, or gone
	sent  int64         // bytes of what is free that are used up
	seen  time.Time     // when that was so
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
	p = &Pass{gate: g, cut: cut, seen: time.Now(), known: make(chan struct{})}
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
	p.outLocked()
}

// Sent notes that n bytes came over the connection, and returns how long to wait before
// it is read again.
func (p *Pass) Sent(n int) time.Duration {
	if p == nil || n <= 0 || p.isKnown() {
		return 0
	}
	return p.gate.sent(p, int64(n), time.Now())
}

func (p *Pass) isKnown() bool {
	select {
	case <-p.known:
		return true
	default:
		return false
	}
}

func (g *Gate) sent(p *Pass, n int64, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	anew := int64(now.Sub(p.seen) * freeAnew / time.Second)
	p.sent, p.seen = max(0, p.sent-min(anew, freeBytes))+n, now
	over := min(p.sent-freeBytes, n)
	if over <= 0 {
		return 0
	}
	p.sent = freeBytes
	if g.due.Before(now) {
		g.due = now
	}
	g.due = g.due.Add(time.Duration(over) * time.Second / sharedRate)
	return max(0, g.due.Sub(now)-sharedAtOnce*time.Second/sharedRate)
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
	p.outLocked()
}

// outLocked takes the pass out of the queue of strangers, if it is there.
func (p *Pass) outLocked() {
	if p.at != nil {
		p.gate.queue.Remove(p.at)
		p.at = nil
		close(p.known)
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
