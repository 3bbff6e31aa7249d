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
// is left for one who comes, the one that has been a stranger for longest, and has been
// silent for a moment, is cut: an honest client is one for a few round trips, and an
// attacker displaces himself. Until there is such a one the newcomer waits, so that many
// honest clients at once come in one after the other, however busy the server is.
//
// What strangers send is read without haste: a handshake and some requests each at once,
// and what is more at a rate that all of them share. A request counts as more than its
// bytes, of which HTTP/2 needs ten. So what the server has to keep, or starts because of
// it, stays little, whatever they send.
package gate

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// A Gate counts connections. Its methods are safe for concurrent use.
type Gate struct {
	places, strangers int

	mu    sync.Mutex // guards the fields below and those of passes; nothing waits under it
	taken int
	queue list.List // of *Pass, strangers in the order in which they came
	due   time.Time // until when strangers' bytes have used up the rate

	freed chan struct{} // holds a value after a stranger's place became free
}

// strangersShare is the part of the places that strangers may take, minStrangers how
// many they may be in any case, and maxStrangers how many at most: one that speaks
// HTTP/2 takes some 25 KiB before it has said anything.
const (
	strangersShare = 8
	minStrangers   = 64
	maxStrangers   = 256
)

// How long a stranger keeps its place, whoever comes: without a word, and in any case
// because what it said may not have been looked at yet; and how often that is judged.
const (
	silentGrace = 50 * time.Millisecond
	grace       = time.Second
	judgeEvery  = 5 * time.Millisecond
)

// How fast strangers are read, in bytes and bytes a second.
const (
	strangersRead = 256       // at a time
	requestBytes  = 256       // as which a request counts, besides its own
	freeBytes     = 2 << 10   // of each connection
	freeAnew      = 256       // a second, of each connection, up to freeBytes
	sharedRate    = 256 << 10 // a second, of all connections, beyond what is free
	sharedAtOnce  = 64 << 10  // of that, before anybody waits
)

// New returns a gate with places for so many connections.
func New(places int) *Gate {
	return &Gate{
		places: places, strangers: min(places, max(minStrangers, min(maxStrangers, places/strangersShare))),
		freed: make(chan struct{}, 1),
	}
}

// A Pass is one connection's place. The nil *Pass is none.
type Pass struct {
	gate *Gate
	came time.Time
	cut  func()
	at   *list.Element // in the queue; nil: known, or gone
	left bool
	rest atomic.Int64 // how long after it came it is read again; written by note, read by its reader
	said atomic.Int64 // how long after it came its client had its last turn; busy: it is the server's. Written by its reader

	known chan struct{} // closed when the connection is no stranger's any more, or gone
	sent  int64         // bytes of the free allowance that are used up
	seen  time.Time     // when that was so
}

// Enter gives a new connection a place, for which it waits up to grace; nil if there is
// none. The cut must end the connection without a wait. It is called once at most, and
// perhaps after Leave.
func (g *Gate) Enter(cut func()) *Pass {
	for {
		p, displaced, wait := g.enter(cut)
		if wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-g.freed:
				timer.Stop()
			case <-timer.C:
			}
			continue
		}
		if displaced != nil {
			displaced()
		}
		return p
	}
}

func (g *Gate) enter(cut func()) (p *Pass, displaced func(), wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.taken >= g.places || g.queue.Len() >= g.strangers {
		first := g.queue.Front()
		if first == nil {
			return nil, nil, 0
		}
		for first != nil && !first.Value.(*Pass).hasHadItsTime(now) {
			first = first.Next()
		}
		if first == nil {
			return nil, nil, judgeEvery
		}
		oldest := first.Value.(*Pass)
		// Cut by the caller, without the lock. The place is free at once, whenever the connection ends.
		displaced = oldest.cut
		oldest.leaveLocked()
	}
	p = &Pass{gate: g, came: now, cut: cut, seen: now, known: make(chan struct{})}
	p.at = g.queue.PushBack(p)
	g.taken++
	return p, displaced, 0
}

// busy is what said is while the server has something to do for the client.
const busy = -1

// hasHadItsTime reports whether a stranger may have to make room.
func (p *Pass) hasHadItsTime(now time.Time) bool {
	age, said := now.Sub(p.came), time.Duration(p.said.Load())
	return age >= grace || said != busy && age-said >= silentGrace
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

// Began notes that a request of the connection has begun.
func (p *Pass) Began() { p.note(requestBytes) }

// note counts bytes of the connection, and so decides when it is read again.
func (p *Pass) note(n int) {
	if p == nil || n <= 0 || p.isKnown() {
		return
	}
	now := time.Now()
	if wait := p.gate.sent(p, int64(n), now); wait > 0 {
		p.rest.Store(int64(now.Add(wait).Sub(p.came)))
	}
}

// wait returns how long the connection is not to be read.
func (p *Pass) wait() time.Duration {
	if p == nil || p.rest.Load() == 0 {
		return 0
	}
	return time.Duration(p.rest.Load()) - time.Since(p.came)
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
	// What is over is on all strangers' account, and not on the connection's a second time.
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
		select {
		case p.gate.freed <- struct{}{}:
		default:
		}
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
