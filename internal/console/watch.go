package console

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// watcher looks at the service once in a while, so that rates and charts are there when
// somebody comes.
type watcher struct {
	stop    context.CancelFunc
	looking sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	now    look
	before look
	past   [len(ranges)]history
	trails map[string]*trail // of tags, and of pools by the name that poolTrail gives
}

const (
	lookEvery = 2 * time.Second
	points    = 150 // of a chart
	maxTrails = 200 // tags and pools whose rate is remembered, those with the highest ones
)

// A timeRange is how far back charts look; a point of them is the mean of every.
type timeRange struct {
	Key, Title string
	every      int64 // seconds
}

var ranges = [...]timeRange{
	{"10m", "Ten minutes", 4},
	{"1h", "An hour", 24},
	{"24h", "A day", 576},
}

// rangeOf returns the place of a range among all by its key; that of the shortest where
// there is none of that key.
func rangeOf(key string) int {
	return max(0, slices.IndexFunc(ranges[:], func(r timeRange) bool { return r.Key == key }))
}

// A look is what the service had issued at a moment.
type look struct {
	at   time.Time
	tags map[string]service.SegmentStatus
	pool map[string]hapax.SnowflakeStats
}

// A sample is a point of the charts.
type sample struct {
	At   int64   `json:"t"` // Unix seconds
	Rate float64 `json:"r"` // numbers a second
	Took float64 `json:"l"` // milliseconds that the store took for a grant, at most
}

// A history is the samples of a range, the oldest first.
type history struct {
	kept []sample
	in   float64 // looks that the newest one is the mean of
}

// take adds a look to the newest sample, or begins the next one.
func (h *history) take(s sample, every int64) {
	s.At -= s.At % every
	if n := len(h.kept); n > 0 && h.kept[n-1].At == s.At {
		last := &h.kept[n-1]
		h.in++
		last.Rate += (s.Rate - last.Rate) / h.in
		last.Took = max(last.Took, s.Took)
		return
	}
	h.in = 1
	if h.kept = append(h.kept, s); len(h.kept) > points {
		h.kept = append(h.kept[:0], h.kept[len(h.kept)-points:]...)
	}
}

const (
	trailPoints = 60 // ten minutes
	trailEvery  = 10 // seconds
)

// A trail is the rates of the last ten minutes of a tag, or of a pool.
type trail struct {
	rates [trailPoints]float32 // a ring
	slot  int64                // of the newest rate
	in    float32              // looks that it is the mean of
}

// take adds the rate of a look at a time in Unix seconds.
func (t *trail) take(rate float64, at int64) {
	slot := at / trailEvery
	if t.slot == 0 || slot-t.slot >= trailPoints || slot < t.slot { // new, or the clock was set
		t.rates, t.slot, t.in = [trailPoints]float32{}, slot, 0
	}
	for ; t.slot < slot; t.in = 0 {
		t.slot++
		t.rates[t.slot%trailPoints] = 0
	}
	t.in++
	newest := &t.rates[slot%trailPoints]
	*newest += (float32(rate) - *newest) / t.in
}

// all returns the rates, the oldest first, with one digit behind the point.
func (t *trail) all() []float32 {
	first := (t.slot + 1) % trailPoints
	all := slices.Concat(t.rates[first:], t.rates[:first])
	for i, r := range all {
		all[i] = float32(math.Round(float64(r)*10) / 10)
	}
	return all
}

func (t *trail) sum() (sum float32) {
	for _, r := range t.rates {
		sum += r
	}
	return sum
}

// poolTrail is what the trail of a pool is called: no tag has such a name.
func poolTrail(pool string) string { return "\x00" + pool }

func newWatcher(svc *service.Service) *watcher {
	ctx, stop := context.WithCancel(context.Background())
	w := &watcher{stop: stop, trails: map[string]*trail{}}
	w.look(svc)
	w.looking.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.look(svc)
			}
		}
	})
	return w
}

func (w *watcher) close() {
	w.stop()
	w.looking.Wait()
}

func (w *watcher) look(svc *service.Service) {
	next := look{time.Now(), map[string]service.SegmentStatus{}, map[string]hapax.SnowflakeStats{}}
	for _, t := range svc.Segments() {
		next.tags[t.Tag] = t
	}
	for _, p := range svc.Snowflakes() {
		next.pool[p.Pool] = p
	}
	// Only now: pages wait for the lock, and a service of many tags takes its time to be read.
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.now = w.now, next
	if w.before.at.IsZero() {
		return
	}
	s := sample{At: next.at.Unix()}
	rates := map[string]float64{}
	for name, t := range next.tags {
		rates[name] = w.perSecondLocked(t.Issued, w.before.tags[name].Issued)
		s.Took = max(s.Took, float64(t.Took.Microseconds())/1000)
	}
	for name, p := range next.pool {
		rates[poolTrail(name)] = w.perSecondLocked(p.Issued, w.before.pool[name].Issued)
	}
	for _, r := range rates {
		s.Rate += r
	}
	for i, r := range ranges {
		w.past[i].take(s, r.every)
	}
	w.trailLocked(rates, s.At)
}

// trailLocked remembers the rates of those that numbers are taken from.
func (w *watcher) trailLocked(rates map[string]float64, at int64) {
	var fresh []string
	for name, rate := range rates {
		if rate > 0 && w.trails[name] == nil {
			fresh = append(fresh, name)
		}
	}
	for name, t := range w.trails {
		// Tags that are closed, too: with the rate 0, their trails end after ten minutes.
		if t.take(rates[name], at); t.sum() == 0 {
			delete(w.trails, name)
		}
	}
	slices.SortFunc(fresh, func(a, b string) int { return cmp.Compare(rates[b], rates[a]) })
	for _, name := range fresh[:min(len(fresh), maxTrails)] {
		if len(w.trails) >= maxTrails && !w.giveWayLocked(rates[name]) {
			return
		}
		t := &trail{}
		t.take(rates[name], at)
		w.trails[name] = t
	}
}

// giveWayLocked forgets the trail that is worth least, if that is less than a rate.
func (w *watcher) giveWayLocked(rate float64) bool {
	least, worth := "", float32(rate)
	for name, t := range w.trails {
		if sum := t.sum(); sum < worth {
			least, worth = name, sum
		}
	}
	delete(w.trails, least)
	return least != ""
}

// pastOfLocked returns the trail of a tag or pool; nil for one that has none.
func (w *watcher) pastOfLocked(name string) []float32 {
	if t := w.trails[name]; t != nil {
		return t.all()
	}
	return nil
}

// perSecondLocked returns a rate between the last two looks. One of a line that was opened
// anew between them is 0.
func (w *watcher) perSecondLocked(now, before int64) float64 {
	took := w.now.at.Sub(w.before.at).Seconds()
	if w.before.at.IsZero() || took <= 0 || now < before {
		return 0
	}
	return float64(now-before) / took
}
