package hapax

import (
	"sync"
	"time"
)

const (
	paceInterval = time.Millisecond
	paceIdle     = 10               // intervals without an issue after which the pacer stops
	minBurst     = 64               // single adds allowed at once before the clock is read again
	maxBurst     = 1 << 17          // also at the highest rates
	starvedQuiet = time.Second      // how long nobody must have waited for the clock until that is over
	burstLength  = 2 * paceInterval // a burst lasts about this long at the current rate
)

// pacer lets the single adds of a Snowflake follow the clock while numbers
// flow: every millisecond it moves the cursor into the current tick and raises
// the limit, by no more than the current rate uses in two. When no number
// was issued for ten milliseconds it parks the cursor and ends, so that the
// next call reads the clock itself.
type pacer struct {
	mu       sync.Mutex // guards the fields below and every opening of a limit
	running  bool
	on       *stretch  // what opened and count refer to
	opened   time.Time // when the limit was last raised
	count    int64     // numbers issued at that moment
	burst    int64
	seen     int64     // cursor less skipped at the last interval
	idle     int       // intervals since that changed
	waiting  int       // callers that wait for the clock
	starving bool      // somebody waited for the clock, and that is not over
	starved  time.Time // when somebody last did
	ahead    time.Time // when the cursor was last seen ahead of the clock
}

// enter announces a caller that waits for the clock, and keeps the pacer
// running until it leaves. It returns false if the issuer is closed.
func (p *pacer) enter(s *Snowflake) bool {
	now, _ := s.clock.Now()
	p.mu.Lock()
	ok := p.runLocked(s)
	first := ok && !p.starving
	if ok {
		p.waiting++
		p.starving, p.starved = true, now
	}
	p.mu.Unlock()
	if first {
		s.observe(Event{Kind: EventTickExhausted})
	}
	return ok
}

// overtook tells that the numbers of the clock's tick are used up, at the first of them in a
// while.
func (p *pacer) overtook(s *Snowflake) {
	now, _ := s.clock.Now()
	p.mu.Lock()
	first := p.overtookLocked(now)
	p.mu.Unlock()
	if first {
		s.observe(Event{Kind: EventTickUsed})
	}
}

func (p *pacer) overtookLocked(now time.Time) (first bool) {
	first = p.ahead.IsZero() || now.Sub(p.ahead) >= starvedQuiet
	p.ahead = now
	return first
}

func (p *pacer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
}

// follow keeps the pacer running for a lane, which looks at its block again at each of
// the pacer's intervals. It returns false if the issuer is closed.
func (p *pacer) follow(s *Snowflake) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = 0
	return p.runLocked(s)
}

func (p *pacer) runLocked(s *Snowflake) bool {
	if !p.running {
		p.running = s.supply.start(func() { p.loop(s) })
	}
	return p.running
}

// isLockFree reports whether numbers are issued by single adds.
func (s *Snowflake) isLockFree() bool { return !s.opts.Mutex && s.opts.Populate == nil }

// open raises the limit of single adds as far as the clock, the grant and the
// current rate allow.
func (p *pacer) open(s *Snowflake, r *stretch) {
	if !s.isLockFree() {
		return
	}
	tick, err := s.tick()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.runLocked(s) {
		p.openLocked(s, r, tick)
	}
}

// shut ends the single adds of a stretch that has no time left.
func (p *pacer) shut(r *stretch) {
	// With the lock: an opening under way ends before, and a later one finds that the stretch has no time.
	p.mu.Lock()
	defer p.mu.Unlock()
	r.limit.Store(0)
}

func (p *pacer) openLocked(s *Snowflake, r *stretch, tick int64) {
	next, skipped := r.position()
	now, _ := s.clock.Now()
	count := r.issuedSoFar(next, skipped)
	if p.on != r {
		p.on, p.count, p.burst = r, count, minBurst
	} else if passed := now.Sub(p.opened); passed > 0 {
		rate := float64(count-p.count) / float64(passed)
		p.burst = int64(min(max(rate*float64(burstLength), minBurst), maxBurst))
	}
	p.opened, p.count = now, count
	// The last numbers before the bound are claimed one by one: of those who add at
	// the same time, some would come out too high, and burn a number each.
	limit := min(r.bound(tick, s.ahead)-minBurst, next+p.burst)
	if limit <= next {
		limit = 0
	}
	r.limit.Store(limit)
}

// loop follows the clock until no numbers flow.
func (p *pacer) loop(s *Snowflake) {
	ticker := time.NewTicker(paceInterval)
	defer ticker.Stop()
	ends := s.supply.ends()
	var last int64
	for {
		select {
		case <-ends:
			return
		case <-ticker.C:
		}
		r := s.cur.Load()
		tick, err := s.tick()
		if err != nil {
			// Single adds do not look at the clock: parked, they become calls that are told what is wrong with
			// it.
			r.limit.Store(0)
		} else {
			// Claims nothing, and moves the cursor into the clock's tick: single adds would go on in one that is
			// past.
			r.pop.take(0, 0, tick-s.behind, r.bound(tick, s.ahead))
			s.extendIfDue(r, tick)
		}
		if tick != last || err != nil {
			s.supply.signal()
		}
		last = tick
		if p.step(s, r, tick, err == nil) {
			return
		}
	}
}

// step does the pacer's own part of an interval and reports whether it ended.
func (p *pacer) step(s *Snowflake, r *stretch, tick int64, open bool) (ended bool) {
	next, skipped := r.pop.position()
	now, _ := s.clock.Now()
	p.mu.Lock()
	s.spares.turn.Add(1) // with the lock held: a lane that saw this pacer run is told of its end
	if count := next - skipped; count != p.seen || p.waiting > 0 {
		p.seen, p.idle = count, 0
	} else {
		p.idle++
	}
	ended = p.idle >= paceIdle
	used := open && next>>r.bits > tick && p.overtookLocked(now)
	resumed := p.starving && p.waiting == 0 && (ended || now.Sub(p.starved) >= starvedQuiet)
	if resumed {
		p.starving = false
	}
	switch {
	case ended:
		r.limit.Store(0)
		p.running, p.idle = false, 0
	case open && s.isLockFree():
		p.openLocked(s, r, tick)
	}
	p.mu.Unlock()
	if used {
		s.observe(Event{Kind: EventTickUsed})
	}
	if resumed {
		s.observe(Event{Kind: EventTickResumed})
	}
	return ended
}
