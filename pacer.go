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
// the limit, by no more than what the current rate uses in two. When no number
// was issued for ten milliseconds it parks the cursor and ends, so that the
// next call reads the clock itself.
type pacer struct {
	mu       sync.Mutex // guards the fields below and every opening of a limit
	running  bool
	on       *stretch  // what opened and count refer to
	opened   time.Time // when the limit was last raised
	count    int64     // numbers issued at that moment
	burst    int64
	starving bool      // somebody waited for the clock
	starvedT time.Time // when somebody last did
}

// run sees to it that the pacer runs; false tells that the issuer is closed.
func (p *pacer) run(s *Snowflake) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runLocked(s)
}

func (p *pacer) runLocked(s *Snowflake) bool {
	if !p.running {
		p.running = s.supply.start(func() { p.loop(s) })
	}
	return p.running
}

// open raises the limit of single adds as far as the clock, the grant and the
// current rate allow.
func (p *pacer) open(s *Snowflake, r *stretch, tick int64) {
	if s.opts.Populator != PopulatorAtomic {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runLocked(s) {
		p.openLocked(s, r, tick)
	}
}

func (p *pacer) openLocked(s *Snowflake, r *stretch, tick int64) {
	next, skipped := r.position()
	now, _ := s.clock.now()
	count := r.issuedSoFar(next, skipped)
	if p.on != r {
		p.on, p.count, p.burst = r, count, minBurst
	} else if passed := now.Sub(p.opened); passed > 0 {
		rate := float64(count-p.count) / float64(passed)
		p.burst = int64(min(max(rate*float64(burstLength), minBurst), maxBurst))
	}
	p.opened, p.count = now, count
	r.limit.Store(min(r.bound(tick, s.ahead), next+p.burst))
}

// starved notes that somebody waits for the clock.
func (p *pacer) starved(s *Snowflake) {
	now, _ := s.clock.now()
	p.mu.Lock()
	first := !p.starving
	p.starving, p.starvedT = true, now
	p.mu.Unlock()
	if first {
		s.observe(Event{Kind: EventTickExhausted})
	}
}

// loop follows the clock until no numbers flow.
func (p *pacer) loop(s *Snowflake) {
	ticker := time.NewTicker(paceInterval)
	defer ticker.Stop()
	var issued, lastTick int64
	for idle := 0; ; {
		select {
		case <-s.supply.life.Done():
			return
		case <-ticker.C:
		}
		r := s.cur.Load()
		tick, err := s.tick()
		if err != nil {
			r.limit.Store(0)
			tick = lastTick
		}
		if tick != lastTick || err != nil {
			s.supply.signal()
		}
		lastTick = tick
		next, skipped := r.pop.position()
		if n := next - skipped; n != issued || s.supply.hasWaiters() {
			issued, idle = n, 0
		} else {
			idle++
		}
		if p.step(s, r, tick, idle, err == nil) {
			return
		}
	}
}

// step does the work of one interval and tells whether the pacer ended.
func (p *pacer) step(s *Snowflake, r *stretch, tick int64, idle int, open bool) (ended bool) {
	if open {
		r.pop.take(0, 0, tick-s.behind, r.bound(tick, s.ahead))
		s.extendIfDue(r, tick)
	}
	now, _ := s.clock.now()
	p.mu.Lock()
	resumed := p.starving && now.Sub(p.starvedT) >= starvedQuiet
	if resumed {
		p.starving = false
	}
	if idle >= paceIdle {
		r.limit.Store(0)
		p.running = false
		resumed, p.starving = resumed || p.starving, false
	} else if open && s.opts.Populator == PopulatorAtomic {
		p.openLocked(s, r, tick)
	}
	ended = !p.running
	p.mu.Unlock()
	if resumed {
		s.observe(Event{Kind: EventTickResumed})
	}
	return ended
}
