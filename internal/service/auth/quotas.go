package auth

import (
	"fmt"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// DefaultNewTags is how many tags the first uses of one token may create a day.
const DefaultNewTags = 1000

// maxNumbers bounds a quota of numbers.
const maxNumbers = hapax.MaxMark

// quotas is how many things that cannot be had back a token is good for. They count
// on this server alone, from its start.
type quotas struct {
	mu      sync.Mutex // guards the fields below
	numbers []window
	tags    window
	leases  int64
	held    map[heldKey]time.Time // until when; nil without a limit
	awaited int64                 // leases that are being asked for
	swept   time.Time
}

// A heldKey names a worker that is leased under a token.
type heldKey struct {
	pool   string
	worker int64
}

// A window counts what is used within a length of time; without a limit it
// counts nothing.
type window struct {
	limit  int64
	length time.Duration
	what   string // the limit in words

	used  int64
	start time.Time
}

// check returns how long it takes until n more can be had, 0 if they can be had
// now.
func (w *window) check(n int64, now time.Time) time.Duration {
	if w.limit == 0 {
		return 0
	}
	if now.Sub(w.start) >= w.length {
		w.start, w.used = now, 0
	}
	if n > w.limit-w.used {
		return max(w.start.Add(w.length).Sub(now), time.Millisecond)
	}
	return 0
}

func (q *quotas) set(field string, config TokenConfig) error {
	for _, v := range []struct {
		name        string
		value, most int64
	}{
		{"numbers_per_minute", config.NumbersPerMinute, maxNumbers},
		{"numbers_per_day", config.NumbersPerDay, maxNumbers},
		{"leases", int64(config.Leases), maxLimit},
		{"new_tags", int64(config.NewTags), maxLimit},
	} {
		if v.value < 0 || v.value > v.most {
			return invalid(field+"."+v.name, v.value, fmt.Sprintf("0 to %d", v.most))
		}
	}
	for _, w := range []window{
		{limit: config.NumbersPerMinute, length: time.Minute, what: "numbers a minute"},
		{limit: config.NumbersPerDay, length: 24 * time.Hour, what: "numbers a day"},
	} {
		if w.limit > 0 {
			w.what = fmt.Sprintf("%d %s", w.limit, w.what)
			q.numbers = append(q.numbers, w)
		}
	}
	newTags := int64(config.NewTags)
	if newTags == 0 {
		newTags = DefaultNewTags
	}
	q.tags = window{limit: newTags, length: 24 * time.Hour, what: fmt.Sprintf("%d new tags a day", newTags)}
	if q.leases = int64(config.Leases); q.leases > 0 {
		q.held = map[heldKey]time.Time{}
	}
	return nil
}

// TakeNumbers takes n numbers off what the token is good for. ErrLimitExceeded.
func (c *Caller) TakeNumbers(n int64) error {
	if c == nil {
		return nil
	}
	c.uses.numbers.Add(n)
	if len(c.quotas.numbers) == 0 {
		return nil
	}
	q := &c.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for i := range q.numbers {
		if after := q.numbers[i].check(n, now); after > 0 {
			c.uses.refused.Add(1)
			return &LimitError{Caller: c.name, Limit: q.numbers[i].what, After: after}
		}
	}
	// After all have agreed: the day's refusal must not use up the minute.
	for i := range q.numbers {
		q.numbers[i].used += n
	}
	return nil
}

// ReturnNumbers gives back what TakeNumbers took and nobody was given.
func (c *Caller) ReturnNumbers(n int64) {
	if c == nil || n <= 0 || len(c.quotas.numbers) == 0 {
		return
	}
	c.quotas.mu.Lock()
	defer c.quotas.mu.Unlock()
	for i := range c.quotas.numbers {
		w := &c.quotas.numbers[i]
		// The window may have begun anew since the numbers were taken.
		w.used = max(0, w.used-n)
	}
}

// TakeNewTag counts a tag that the first use by the caller is about to create. It
// returns what takes that back. ErrLimitExceeded.
func (c *Caller) TakeNewTag() (undo func(), err error) {
	if c == nil || c.scopes&ScopeAdmin != 0 {
		return func() {}, nil
	}
	q := &c.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	if after := q.tags.check(1, time.Now()); after > 0 {
		return nil, &LimitError{Caller: c.name, Limit: q.tags.what, After: after}
	}
	q.tags.used++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.tags.used = max(0, q.tags.used-1)
	}, nil
}

// AskLease counts a worker that the caller is about to lease; settle tells what
// came of it. ErrLimitExceeded.
func (c *Caller) AskLease() (settle func(l hapax.Lease, ok bool), err error) {
	if c == nil || c.quotas.leases == 0 {
		return func(hapax.Lease, bool) {}, nil
	}
	q := &c.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	// Once a second at most, since a token may hold a million leases.
	if int64(len(q.held))+q.awaited >= q.leases && now.Sub(q.swept) >= time.Second {
		q.swept = now
		for key, until := range q.held {
			if now.After(until) {
				delete(q.held, key)
			}
		}
	}
	if int64(len(q.held))+q.awaited >= q.leases {
		return nil, &LimitError{Caller: c.name, Limit: fmt.Sprintf("%d leases of workers at a time", q.leases), After: time.Second}
	}
	q.awaited++
	return func(l hapax.Lease, ok bool) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.awaited--
		if ok {
			q.held[heldKey{l.Pool, l.Worker}] = l.Expires
		}
	}, nil
}

// NoteLease notes that a lease of the caller was extended.
func (c *Caller) NoteLease(l hapax.Lease) {
	if c == nil || c.quotas.leases == 0 {
		return
	}
	c.quotas.mu.Lock()
	defer c.quotas.mu.Unlock()
	c.quotas.held[heldKey{l.Pool, l.Worker}] = l.Expires
}

// EndLease notes that a lease of the caller was sealed.
func (c *Caller) EndLease(l hapax.Lease) {
	if c == nil || c.quotas.leases == 0 {
		return
	}
	c.quotas.mu.Lock()
	defer c.quotas.mu.Unlock()
	delete(c.quotas.held, heldKey{l.Pool, l.Worker})
}
