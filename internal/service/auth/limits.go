package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

// A LimitError means that a token is used more than it is good for.
type LimitError struct {
	Caller string        // the token's name
	Limit  string        // in words
	After  time.Duration // when it is worth to try again; 0: when another use has ended
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("hapax: %q is limited to %s", e.Caller, e.Limit)
}

// Unwrap returns api.ErrLimitExceeded.
func (e *LimitError) Unwrap() error { return api.ErrLimitExceeded }

// limits is what a token is good for; 0 is no limit.
type limits struct {
	requests, connections int64
	rate                  int64
	interval, burst       time.Duration // between requests; what may be used ahead

	quotas quotas
	uses   uses

	revoked   atomic.Bool
	inFlight  atomic.Int64
	connected atomic.Int64
	start     time.Time    // what free counts from
	free      atomic.Int64 // when the rate has caught up with the requests so far, in nanoseconds
}

func (l *limits) set(field string, config TokenConfig) error {
	for _, v := range []struct {
		name  string
		value int
	}{
		{"rate", config.Rate}, {"burst", config.Burst}, {"requests", config.Requests}, {"connections", config.Connections},
	} {
		if v.value < 0 || v.value > maxLimit {
			return invalid(field+"."+v.name, v.value, fmt.Sprintf("0, for no limit, to %d", maxLimit))
		}
	}
	if config.Burst > 0 && config.Rate == 0 {
		return invalid(field+".burst", config.Burst, "a value only beside a rate")
	}
	l.requests, l.connections, l.rate = int64(config.Requests), int64(config.Connections), int64(config.Rate)
	if l.rate > 0 {
		burst := config.Burst
		if burst == 0 {
			burst = config.Rate
		}
		l.interval = time.Second / time.Duration(l.rate)
		l.burst = l.interval * time.Duration(burst)
		l.start = time.Now()
	}
	return l.quotas.set(field, config)
}

// Begin counts a request. If the error is nil, End must be called. Its errors are
// ErrLimitExceeded, and ErrUnauthenticated where the token was revoked.
func (c *Caller) Begin() error {
	if c == nil {
		return nil
	}
	c.uses.requests.Add(1)
	// Counted before it is compared: of requests that begin together no more than the limit get in.
	if n := c.inFlight.Add(1); c.requests > 0 && n > c.requests {
		c.inFlight.Add(-1)
		c.uses.refused.Add(1)
		return &LimitError{Caller: c.name, Limit: fmt.Sprintf("%d requests in flight", c.requests)}
	}
	if err := c.Spend(); err != nil {
		c.inFlight.Add(-1)
		c.uses.refused.Add(1)
		return err
	}
	return nil
}

// End ends what Begin began.
func (c *Caller) End() {
	if c != nil {
		c.inFlight.Add(-1)
	}
}

// HasRate reports whether requests must be counted one by one.
func (c *Caller) HasRate() bool { return c != nil && c.rate > 0 }

// Spend takes one request off the rate.
func (c *Caller) Spend() error {
	if c != nil && c.revoked.Load() {
		return fmt.Errorf("%w: the token was revoked", api.ErrUnauthenticated)
	}
	if err := c.expired(); err != nil {
		return err
	}
	if !c.HasRate() {
		return nil
	}
	for {
		now := time.Since(c.start)
		was := c.free.Load()
		next := max(time.Duration(was), now) + c.interval
		if wait := next - now - c.burst; wait > 0 {
			return &LimitError{Caller: c.name, Limit: fmt.Sprintf("%d requests a second", c.rate), After: wait}
		}
		if c.free.CompareAndSwap(was, int64(next)) {
			return nil
		}
	}
}

// Wait is Spend that waits until there is something to spend, or the context
// ends.
func (c *Caller) Wait(ctx context.Context) error {
	for {
		err := c.Spend()
		limit, ok := errors.AsType[*LimitError](err)
		if !ok {
			return err
		}
		timer := time.NewTimer(limit.After)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &hapax.WaitError{Cause: err, Context: context.Cause(ctx)}
		}
	}
}

// A Conn is a connection, which counts for each token that is used on it. The
// nil *Conn counts for none. It is safe for concurrent use.
type Conn struct {
	// Known, if set before the first use, is called with that. Began, if set, is called
	// with each request before it.
	Known, Began func()

	vouched atomic.Bool

	secure atomic.Pointer[tls.ConnectionState]

	mu     sync.Mutex // guards the fields below
	used   []*limits
	closed bool
}

// Begin notes that a request begins.
func (n *Conn) Begin() {
	if n != nil && n.Began != nil && !n.vouched.Load() {
		n.Began()
	}
}

// Use notes that the caller uses the connection. ErrLimitExceeded if it
// has too many.
func (n *Conn) Use(c *Caller) error {
	if n == nil || c == nil {
		return nil
	}
	n.Vouch()
	if c.connections == 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// On a closed connection nothing would take the count back.
	if n.closed || slices.Contains(n.used, c.limits) {
		return nil
	}
	if open := c.connected.Add(1); open > c.connections {
		c.connected.Add(-1)
		return &LimitError{Caller: c.name, Limit: fmt.Sprintf("%d connections", c.connections)}
	}
	n.used = append(n.used, c.limits)
	return nil
}

// Vouch notes that whoever is at the other end has shown something good, also if that
// is no token of the policy's.
func (n *Conn) Vouch() {
	if n == nil || n.vouched.Swap(true) {
		return
	}
	if n.Known != nil {
		n.Known()
	}
}

// Close notes that the connection has ended.
func (n *Conn) Close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.used {
		l.connected.Add(-1)
	}
	n.used, n.closed = nil, true
}

type connKey struct{}

// NewConnContext returns a context that carries the connection of its requests.
func NewConnContext(ctx context.Context, n *Conn) context.Context {
	return context.WithValue(ctx, connKey{}, n)
}

// ConnFromContext returns the connection that a context carries; nil if there is
// none.
func ConnFromContext(ctx context.Context) *Conn {
	n, _ := ctx.Value(connKey{}).(*Conn)
	return n
}
