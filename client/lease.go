package client

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
)

// How often the validity of leased numbers is renewed, well before it ends.
const (
	renewEvery    = time.Minute
	minRenewEvery = time.Second
	renewsPerTerm = 10
	maxRenewing   = 8 // at a time
)

// A Segment issues a tag's numbers in this process. It is a *hapax.Segment on
// the client, except that it gives up the numbers it holds when the server says
// that the tag was deleted or the client is no longer allowed to use it, or when
// no server has said otherwise for the lease's validity. Its next call asks the
// servers then, and returns what they say.
type Segment struct {
	*hapax.Segment

	client *Client
}

// Segment returns an issuer of the tag's numbers, once it has a first lease; it
// waits for the servers until the context ends. Errors are those of
// hapax.NewSegment and the server's.
func (c *Client) Segment(ctx context.Context, tag string, opts hapax.SegmentOptions) (*Segment, error) {
	l := &lease{Client: c, tag: tag}
	inner, err := hapax.NewSegment(ctx, l, tag, opts)
	if err != nil {
		return nil, err
	}
	s := &Segment{Segment: inner, client: c}
	l.inner = inner
	if err := c.keep(ctx, s, l); err != nil {
		return nil, err
	}
	return s, nil
}

// Close implements hapax.Issuer.
func (s *Segment) Close(ctx context.Context) error {
	s.client.forget(s)
	return s.Segment.Close(ctx)
}

// A Snowflake issues a pool's numbers in this process, under a worker ID of its
// own. It is a *hapax.Snowflake on the client. When the servers refuse to extend
// its lease it stops at the end of its grant, minutes later at most.
type Snowflake struct {
	*hapax.Snowflake

	client *Client
}

// Snowflake returns an issuer with a worker ID of its pool, once it has a first
// grant; it waits for the servers until the context ends. Where the options name
// no layout it is the pool's, as the server has it. Errors are those of
// hapax.NewSnowflake and the server's.
func (c *Client) Snowflake(ctx context.Context, opts hapax.SnowflakeOptions) (*Snowflake, error) {
	if opts.Layout.IsZero() {
		var err error
		opts.Layout, err = persist(ctx, c, func(ctx context.Context) (hapax.Layout, error) { return c.poolLayout(ctx, opts.Pool) })
		if err != nil {
			return nil, err
		}
	}
	inner, err := hapax.NewSnowflake(ctx, c, opts)
	if err != nil {
		return nil, err
	}
	s := &Snowflake{Snowflake: inner, client: c}
	if err := c.keep(ctx, s, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// Close implements hapax.Issuer.
func (s *Snowflake) Close(ctx context.Context) error {
	s.client.forget(s)
	return s.Snowflake.Close(ctx)
}

// keep notes an issuer that Close of the client has to close.
func (c *Client) keep(ctx context.Context, issuer hapax.Issuer, l *lease) error {
	c.mu.Lock()
	closed := c.closing
	if !closed {
		c.open[issuer] = l
	}
	c.mu.Unlock()
	if closed {
		// The client closed while this issuer was being made, so that nobody else would close it.
		_ = issuer.Close(ctx)
		return hapax.ErrClosed
	}
	return nil
}

func (c *Client) forget(issuer hapax.Issuer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, issuer)
}

// A lease is the client as one segment's store. It knows how long the numbers
// that it returned may be used.
type lease struct {
	*Client

	tag   string
	inner *hapax.Segment
	until atomic.Int64  // end of the validity, since Client.began
	term  atomic.Int64  // its length, when it was last told
	ended atomic.Bool   // given up, and nothing was leased or renewed since
	asked time.Duration // when renewal was last due; used by watch alone
}

// Allocate implements hapax.SegmentStore.
func (l *lease) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	began := l.elapsed()
	// The validity counts from before the call: the server's clock ran while the answer was on its way.
	a, validFor, err := l.allocate(ctx, tag, n, last)
	if err == nil {
		l.extend(began, validFor)
	}
	return a, err
}

// elapsed returns the time since the client began, with the time that the machine slept: the
// monotonic clock stands still meanwhile, and a tag may be deleted.
func (c *Client) elapsed() time.Duration {
	// In seconds: a pause amid a reading looks like sleep, too.
	return time.Since(c.began) + (c.asleep() - c.slept).Truncate(time.Second)
}

// asleep returns how long the machine has been asleep since it booted, where that can be told.
func asleep() time.Duration {
	clock, ok := any(hapax.SystemClock{}).(interface{ Asleep() time.Duration })
	if !ok {
		return 0
	}
	return clock.Asleep()
}

// extend moves the end of the validity on; it counts from when it was asked for.
func (l *lease) extend(began, validFor time.Duration) {
	l.term.Store(int64(validFor))
	l.until.Store(int64(began + validFor))
	l.ended.Store(false)
}

// isDue reports whether it is time to renew.
func (l *lease) isDue(now time.Duration) bool {
	every := min(max(time.Duration(l.term.Load())/renewsPerTerm, minRenewEvery), renewEvery)
	return now-l.asked >= every
}

// giveUp burns the numbers that are left, and those that a call has which waits for more.
func (l *lease) giveUp() {
	left := l.inner.Stats().Remaining > 0
	// Once: while no server answers, this comes by each second.
	if !l.ended.Swap(true) || left {
		l.inner.Drop()
	}
	if left {
		l.dropped.Add(1)
	}
}

// watch has leased numbers given up when their validity ends, and renewed before
// that, until the client closes.
func (c *Client) watch() {
	tick := time.NewTicker(minRenewEvery)
	defer tick.Stop()
	// One round at a time: while servers hang, each second would begin another.
	renewing := make(chan struct{}, 1)
	for {
		select {
		case <-c.life.Done():
			return
		case <-tick.C:
		}
		due := c.expire(c.elapsed())
		if len(due) == 0 {
			continue
		}
		select {
		case renewing <- struct{}{}:
			c.children.Go(func() {
				renew(c.life, due)
				<-renewing
			})
		default: // servers are slow to answer
		}
	}
}

// expire gives up what is no longer valid, and returns the leases to renew.
func (c *Client) expire(now time.Duration) []*lease {
	c.mu.Lock()
	leases := slices.Collect(maps.Values(c.open))
	c.mu.Unlock()
	var due []*lease
	for _, l := range leases {
		if l == nil {
			continue // of a Snowflake
		}
		if now >= time.Duration(l.until.Load()) {
			l.giveUp()
		}
		if l.isDue(now) {
			l.asked = now
			due = append(due, l)
		}
	}
	return due
}

// renew renews leases, several at a time.
func renew(ctx context.Context, leases []*lease) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxRenewing)
	for _, l := range leases {
		slots <- struct{}{}
		wg.Go(func() {
			l.renew(ctx)
			<-slots
		})
	}
	wg.Wait()
}

// renew asks whether the numbers may still be used. What the server says for
// sure counts at once; while none answers, the validity that was told last runs
// out.
func (l *lease) renew(ctx context.Context) {
	began := l.elapsed()
	ctx, cancel := context.WithTimeout(ctx, hapax.DefaultStoreTimeout)
	defer cancel()
	res, err := call(ctx, l.Client, leasing, func(ctx context.Context, s *server) (*hapaxv1.RenewResponse, error) {
		return s.lease.Renew(ctx, &hapaxv1.RenewRequest{Tag: l.tag})
	})
	switch {
	case err == nil:
		l.extend(began, res.GetValidFor().AsDuration())
		l.renewals.Add(1)
	case revokes(err):
		l.giveUp()
	}
}

// revokes reports whether an error means that leased numbers must not be used. A store that went
// back takes nothing away: it is healed above all that was granted.
func revokes(err error) bool {
	switch hapax.ErrorOf(hapax.CodeOf(err)) {
	case hapax.ErrTagDeleted, hapax.ErrTagNotFound, hapax.ErrKindMismatch,
		api.ErrUnauthenticated, api.ErrPermissionDenied, hapax.ErrStoreReplaced:
		return true
	}
	return false
}
