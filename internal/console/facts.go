package console

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/service/health"
)

// Limits on a node's account of itself.
const (
	maxTagFacts = 2000
	maxEntries  = 100
)

// facts are a node's account of itself, for its own pages and for other nodes.
type facts struct {
	Name      string           `json:"name"`
	Address   string           `json:"address,omitempty"`
	Version   string           `json:"version"`
	Now       time.Time        `json:"now"`
	Readiness health.Readiness `json:"readiness"`
	Code      string           `json:"code,omitempty"`
	Why       string           `json:"why,omitempty"`
	Command   string           `json:"command,omitempty"`
	Rate      float64          `json:"rate"` // numbers a second
	Tags      []tagFacts       `json:"tags"`
	Pools     []poolFacts      `json:"pools"`
	Samples   []sample         `json:"samples,omitempty"` // of the shortest range
	Longer    [][]sample       `json:"longer,omitempty"`  // of the others
	Log       []Entry          `json:"log,omitempty"`
}

// tagFacts are a node's figures of a tag; of a snowflake tag they are its pool's.
type tagFacts struct {
	Name      string        `json:"name"`
	Pool      string        `json:"pool,omitempty"` // of a snowflake tag
	Rate      float64       `json:"rate"`
	Issued    int64         `json:"issued"`
	Burnt     int64         `json:"burnt"`
	Remaining int64         `json:"remaining"`
	Refills   int64         `json:"refills"`
	Waits     int64         `json:"waits"`
	Step      int64         `json:"step"`
	Took      time.Duration `json:"took_ns"`
	Past      []float32     `json:"past,omitempty"` // rates, see trail; of a snowflake tag, its pool tells
}

// Lasts returns how long the numbers in hand last at the present rate; negative for more than 29
// years, or for ever.
func (t tagFacts) Lasts() time.Duration {
	if t.Rate <= 0 || float64(t.Remaining)/t.Rate > math.MaxInt64/1e10 {
		return -1
	}
	return time.Duration(float64(t.Remaining) / t.Rate * float64(time.Second))
}

// poolFacts are a node's figures of a worker pool.
type poolFacts struct {
	Name      string        `json:"name"`
	Worker    int64         `json:"worker"`
	Rate      float64       `json:"rate"`
	Issued    int64         `json:"issued"`
	Grants    int64         `json:"grants"`
	Remaining time.Duration `json:"remaining_ns"`
	Rollback  time.Duration `json:"rollback_ns"`
	Skew      time.Duration `json:"skew_ns"`
	TickWaits int64         `json:"tick_waits"`
	Ends      time.Time     `json:"ends"`
	Past      []float32     `json:"past,omitempty"`
}

// pastOf returns the rates of a tag of the last ten minutes.
func (f *facts) pastOf(t tagFacts) []float32 {
	if t.Pool == "" {
		return t.Past
	}
	for _, p := range f.Pools {
		if p.Name == t.Pool {
			return p.Past
		}
	}
	return nil
}

// own returns this node's facts.
func (c *Console) own(ctx context.Context) facts {
	// Before the lock, since it may wait for the store.
	r := c.svc.Readiness(ctx)
	f := facts{
		Name: c.opts.Name, Address: c.opts.Address, Version: build.Product(), Now: time.Now(),
		Readiness: r, Why: r.StoreDetail, Command: r.Command, Log: c.opts.Log.last(maxEntries),
	}
	if r.Store != "ok" {
		f.Code = r.Store
	}
	w := c.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	f.Samples = slices.Clone(w.past[0].kept)
	for _, h := range w.past[1:] {
		f.Longer = append(f.Longer, slices.Clone(h.kept))
	}
	for _, t := range c.svc.Segments() {
		rate := w.perSecondLocked(w.now.tags[t.Tag].Issued, w.before.tags[t.Tag].Issued)
		f.Rate += rate
		f.Tags = append(f.Tags, tagFacts{t.Tag, "", rate, t.Issued, t.Burnt, t.Remaining, t.Refills, t.Waits, t.Step, t.Took, w.pastOfLocked(t.Tag)})
	}
	pools := map[string]tagFacts{}
	for _, p := range c.svc.Snowflakes() {
		rate := w.perSecondLocked(w.now.pool[p.Pool].Issued, w.before.pool[p.Pool].Issued)
		f.Rate += rate
		f.Pools = append(f.Pools, poolFacts{p.Pool, p.Worker, rate, p.Issued, p.Grants, p.Remaining, p.Rollback, p.Skew, p.TickWaits, p.Ends, w.pastOfLocked(poolTrail(p.Pool))})
		pools[p.Pool] = tagFacts{Pool: p.Pool, Rate: rate, Issued: p.Issued}
	}
	for tag, pool := range c.svc.SnowflakeTags() {
		if t, used := pools[pool]; used {
			t.Name = tag
			f.Tags = append(f.Tags, t)
		}
	}
	if len(f.Tags) > maxTagFacts { // those that are asked for most
		slices.SortFunc(f.Tags, func(a, b tagFacts) int { return cmp.Compare(b.Issued, a.Issued) })
		f.Tags = f.Tags[:maxTagFacts]
	}
	return f
}
