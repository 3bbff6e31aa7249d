package witness

import (
	"context"
	"maps"
	"sync"

	"github.com/hapax-id/hapax/store/driver"
)

// Limits of allocations that are one call: so many may be under way by themselves before
// others wait and go together, and so many go together at most.
const (
	allocateAlone    = 4
	allocateTogether = 128
)

// allocations are those that are under way. A store whose commits wait for a disk makes
// those that wait meanwhile in one step.
type allocations struct {
	few int // how many may be under way by themselves

	mu      sync.Mutex     // guards what follows
	alone   int            // made by themselves
	of      map[string]int // how many of these are of each tag
	runs    bool           // others are made together
	waiting []allocation
}

type allocation struct {
	driver.AllocateOf
	done chan allocated // has room for one
}

type allocated struct {
	driver.Allocated
	alone bool // it was not made: its caller makes it by itself
}

// enter has an allocation be made with others, where there are, or where another one of its
// tag is under way, which it would wait for. It returns nil for one that
// its caller makes by itself, and then ends with leave; first has the caller see to it that
// those who wait are served.
func (q *allocations) enter(of driver.AllocateOf, canWait bool) (done chan allocated, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !canWait || !q.runs && q.alone < q.few && q.of[of.Tag] == 0 {
		q.startLocked(of.Tag)
		return nil, false
	}
	done = make(chan allocated, 1)
	q.waiting = append(q.waiting, allocation{of, done})
	first = !q.runs
	q.runs = true
	return done, first
}

// release has those who wait be made by themselves.
func (q *allocations) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked()
}

func (q *allocations) releaseLocked() {
	for _, w := range q.waiting {
		w.done <- allocated{alone: true}
	}
	q.waiting, q.runs = nil, false
}

// enterAlone is enter for one that has waited, and is to be made by itself.
func (q *allocations) enterAlone(tag string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.startLocked(tag)
}

func (q *allocations) startLocked(tag string) {
	if q.of == nil {
		q.of = map[string]int{}
	}
	q.alone++
	q.of[tag]++
}

func (q *allocations) leave(tag string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.alone--
	if q.of[tag]--; q.of[tag] == 0 {
		delete(q.of, tag)
	}
}

// fewLocked reports whether those who wait are few enough to be made by themselves, each of a tag
// of its own.
func (q *allocations) fewLocked() bool {
	if len(q.waiting)+q.alone > q.few {
		return false
	}
	of := map[string]int{}
	maps.Copy(of, q.of)
	for _, w := range q.waiting {
		if of[w.Tag] > 0 {
			return false
		}
		of[w.Tag]++
	}
	return true
}

// next returns those who wait and are to be served together; few enough to be made by
// themselves are told so.
func (q *allocations) next() []allocation {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || q.fewLocked() {
		q.releaseLocked()
		return nil
	}
	n := min(len(q.waiting), allocateTogether)
	some := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return some
}

// allocateWithOthers has an allocation be made with others, if many are under way and the
// store has a step for that.
func (g *Guarded) allocateWithOthers(of driver.AllocateOf) chan allocated {
	s, _, _ := g.calls.peek()
	_, canWait := s.(driver.TogetherAllocating)
	done, first := g.allocations.enter(of, canWait)
	if first && !g.inLoop(g.allocateWaiting) {
		g.allocations.release()
	}
	return done
}

// inLoop starts f in a goroutine that Close waits for, unless the node is being closed.
func (g *Guarded) inLoop(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == Leaving || g.state == Left {
		return false
	}
	g.loop.Go(f)
	return true
}

func (g *Guarded) allocateWaiting() {
	for some := g.allocations.next(); some != nil; some = g.allocations.next() {
		made, err := g.allocateAll(some)
		for i, w := range some {
			if err != nil {
				w.done <- allocated{Allocated: driver.Allocated{Err: err}}
				continue
			}
			w.done <- allocated{Allocated: made[i]}
		}
	}
}

// allocateAll makes allocations in one call, as grant makes one.
func (g *Guarded) allocateAll(some []allocation) ([]driver.Allocated, error) {
	all := make([]driver.AllocateOf, len(some))
	for i, w := range some {
		all[i] = w.AllocateOf
	}
	return asServing(g.life, g, func(ctx context.Context, s store) ([]driver.Allocated, error) {
		known := make(map[string]Pair, len(all))
		for _, of := range all {
			if want, ok := g.witness.Pair(TagLine(of.Tag)); ok {
				known[of.Tag] = want
			}
		}
		together, ok := s.(driver.TogetherAllocating)
		p := g.pulse(true)
		if !ok || p.Row == "" {
			return nil, errAbandoned()
		}
		if err := g.reserve(p); err != nil {
			return nil, err
		}
		made, c, err := together.AllocateAllWith(ctx, p.Pulse, all)
		if err = g.found(ctx, s, p, c, err); err != nil {
			return nil, err
		}
		var got []granted
		for i, m := range made {
			line := TagLine(all[i].Tag)
			want, isKnown := known[all[i].Tag]
			if m.Err != nil {
				made[i] = driver.Allocated{Err: g.missing(line, isKnown, m.Err)}
				continue
			}
			one := grantedOf(line, m.Allocation)
			if err := sound(line, m.Grant); err != nil {
				return nil, err
			}
			if err := g.judgeGrant(one, want, isKnown); err != nil {
				return nil, err
			}
			got = append(got, one)
		}
		return made, g.record(p, got...)
	})
}
