package witness

import (
	"context"
	"fmt"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

// A distant store. A heartbeat that takes long leaves no room within the interval, and one that
// takes longer than its time-out none at all. So a process that measures that its heartbeats
// take more than a third of their time-out lengthens its own interval, and with it the time-out
// and the time after which it counts as out of contact. Its row says so first, since others
// judge by that whether it is silent: only then it beats less often.

const (
	// slowBeats is how many heartbeats in a row are to be slow, or fast. A distance shows in the
	// fastest of them, and a store that is slow now and then in the slowest alone.
	slowBeats, fastBeats = 5, 60
	// longest bounds the interval.
	longestInterval = 15 * time.Second
)

// A pace is how often a process beats, and how long its heartbeats take.
type pace struct {
	interval time.Duration // at present
	took     time.Duration // the last heartbeat
	slow     int           // so many were slow in a row
	fast     int           // so many would do with the shortest interval
	want     time.Duration // the interval that the fastest of the slow ones asks for
}

// intervalFor returns the interval of which a heartbeat that takes so long needs a third of its
// time-out, in quarters of a second.
func intervalFor(took time.Duration) time.Duration {
	const step = 250 * time.Millisecond
	return min((took*15/4 + step - 1).Truncate(step), longestInterval)
}

// timeoutOf is how long one heartbeat may take.
func timeoutOf(interval time.Duration) time.Duration { return interval * 4 / 5 }

// dialTrips is for how many answers a process waits at most until its store is dialled, and one more.
const dialTrips = 8

// dialTimeout is how long it may take to dial for a heartbeat: two intervals, or on a store that is
// far away as long as that takes there. An attempt that ends sooner has to begin anew, and no
// later one has more time. Longer than a living node may take it is of no use.
func (g *Guarded) dialTimeout() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(2*g.intervalLocked(), min(dialTrips*g.pace.took, g.waitLocked()))
}

// interval returns how often this process beats.
func (g *Guarded) interval() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.intervalLocked()
}

func (g *Guarded) intervalLocked() time.Duration { return max(g.pace.interval, g.opts.Heartbeat) }

// waitLocked is the longest that this process takes to meet the store again while it lives.
func (g *Guarded) waitLocked() time.Duration { return waitOf(g.intervalLocked()) }

// timed notes how long a heartbeat took, or a call as long as one.
func (g *Guarded) timed(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.pace
	p.took = took
	if took*3 > timeoutOf(g.intervalLocked()) {
		if p.want = min(p.want, intervalFor(took)); p.slow == 0 {
			p.want = intervalFor(took)
		}
		p.slow++
	} else {
		p.slow, p.want = 0, 0
	}
	if p.fast++; took*3 > timeoutOf(g.opts.Heartbeat) {
		p.fast = 0
	}
}

// late notes a heartbeat that was the first on its connection, and not answered in its time, on a store that
// is known to be far away. The next ones would be dialled for, too, and none be the second: some engines
// take a round trip more for the first.
func (g *Guarded) late(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := &g.pace; g.state == Serving && g.intervalLocked() > g.opts.Heartbeat {
		p.slow, p.fast, p.want = slowBeats, 0, intervalFor(took)
	}
}

// servingIntervalLocked returns how often a process beats that serves: so seldom that a heartbeat of all its
// round trips has the time, where a store is far away on which grants beside it cost some. While the
// process joins there are none, and it waits for others by the shorter interval.
func (g *Guarded) servingIntervalLocked(s store) time.Duration {
	every := g.intervalLocked()
	if paced, ok := s.(driver.Paced); ok && every > g.opts.Heartbeat {
		every = max(every, intervalFor(time.Duration(paced.BeatTrips())*g.pace.took))
	}
	return every
}

// adapt changes how often this process beats, if its heartbeats ask for that.
func (g *Guarded) adapt() error {
	g.mu.Lock()
	p, row := &g.pace, g.me.row
	was, next := g.intervalLocked(), g.intervalLocked()
	switch {
	case p.slow >= slowBeats && p.want > was:
		next = p.want
	case p.fast >= fastBeats && was > g.opts.Heartbeat:
		next = g.opts.Heartbeat
	}
	// Shorter at once, longer only once the row says so: others must never find it silent for
	// beating as it does.
	if next < was || row == "" {
		p.interval = next
	}
	if next != was || p.slow >= slowBeats {
		p.slow, p.fast = 0, 0
	}
	g.mu.Unlock()
	if next == was || row == "" {
		return nil
	}
	err := g.within(g.opts.Timeout, func(ctx context.Context, s store) error {
		return g.tellInterval(ctx, s, row, next)
	})
	if err != nil {
		return err
	}
	g.mu.Lock()
	// A row of its own since then has told its own interval.
	isNew := g.me.row == row && next > was
	if isNew {
		g.pace.interval = next
	}
	took := g.pace.took
	g.mu.Unlock()
	if isNew {
		g.opts.Log.Warn("the store is far away or slow: this node writes its heartbeat less often, and what goes wrong is noticed later",
			"heartbeat_takes", took.Round(time.Millisecond), "of", timeoutOf(was), "interval", next)
	}
	return nil
}

// tellInterval has the process's row say how often it beats.
func (g *Guarded) tellInterval(ctx context.Context, s store, row string, next time.Duration) error {
	return g.sayOfItself(ctx, s, row, func(about *nodeRow) { about.Every = next.Milliseconds() })
}

// text says how long a heartbeat takes and may take, where that is long, or would be with the
// interval that is set.
func (p *pace) text(set time.Duration) string {
	interval := max(p.interval, set)
	limit := timeoutOf(interval)
	if p.took*3 <= limit && interval == set {
		return ""
	}
	return fmt.Sprintf("a heartbeat takes %.1f s of %.1f s (heartbeat: %v)", p.took.Seconds(), limit.Seconds(), interval)
}
