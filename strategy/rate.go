package strategy

import (
	"context"
	"slices"
	"sync"
	"time"
)

// maxRateKeys bounds how many pairs of tag and caller a Rate tells apart.
const maxRateKeys = 10_000

// OtherCallers is the caller that a Rate and a Quota count for beyond what they
// can tell apart.
const OtherCallers = "(others)"

// A Rate counts what is issued, by tag and caller, in windows of time. Make one
// with [NewRate], and add its [Plugin] to a registry.
type Rate struct {
	windows []time.Duration

	mu     sync.Mutex // guards what follows
	counts map[rateKey][]rateCount
	swept  time.Time // when those that got nothing were last removed
}

type rateKey struct{ tag, caller string }

// rateCount is the count of one window: how many since it began, and in the one
// before it.
type rateCount struct {
	began         time.Time
	now, previous int64
}

// NewRate returns a [Rate] with windows of the given lengths, each of which begins
// at a multiple of its length in UTC. Default: one minute and one day.
func NewRate(windows ...time.Duration) *Rate {
	if len(windows) == 0 {
		windows = []time.Duration{time.Minute, 24 * time.Hour}
	}
	return &Rate{windows: slices.Clone(windows), counts: map[rateKey][]rateCount{}}
}

// Plugin returns the plugin "rate", which serves all lines.
func (r *Rate) Plugin() Plugin {
	return Plugin{Name: "rate", Usage: r.Counts, After: func(ctx context.Context, c Call, ids Numbers) error {
		r.add(rateKey{c.Tag(), CallerOf(ctx)}, int64(ids.Len()), time.Now())
		return nil
	}}
}

func (r *Rate) add(k rateKey, n int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts, ok := r.counts[k]
	if !ok {
		// Once a second at most: in a crowd of new callers each would go through all of them.
		if len(r.counts) >= maxRateKeys && now.Sub(r.swept) >= time.Second {
			r.forgetLocked(now)
		}
		if len(r.counts) >= maxRateKeys {
			k = rateKey{caller: OtherCallers}
			counts = r.counts[k]
		}
		if counts == nil {
			counts = make([]rateCount, len(r.windows))
			r.counts[k] = counts
		}
	}
	for i, w := range r.windows {
		counts[i].roll(w, now)
		counts[i].now += n
	}
}

// roll begins a new window if the current one is over.
func (c *rateCount) roll(window time.Duration, now time.Time) {
	began := now.UTC().Truncate(window)
	// A clock that was set back counts on in the window that has begun.
	if !began.After(c.began) {
		return
	}
	if c.previous = 0; began.Sub(c.began) == window {
		c.previous = c.now
	}
	c.began, c.now = began, 0
}

// forgetLocked removes whoever got nothing in any window.
func (r *Rate) forgetLocked(now time.Time) {
	r.swept = now
	for k, counts := range r.counts {
		used := false
		for i, w := range r.windows {
			counts[i].roll(w, now)
			used = used || counts[i].now+counts[i].previous > 0
		}
		if !used {
			delete(r.counts, k)
		}
	}
}

// Counts returns what was issued, by tag, caller and window.
func (r *Rate) Counts() []Usage {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(now)
	all := make([]Usage, 0, len(r.counts)*len(r.windows))
	for k, counts := range r.counts {
		for i, w := range r.windows {
			all = append(all, Usage{Tag: k.tag, Caller: k.caller, Window: w, Current: counts[i].now, Previous: counts[i].previous})
		}
	}
	slices.SortFunc(all, Usage.compare)
	return all
}
