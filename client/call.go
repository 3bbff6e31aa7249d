package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
)

// A mode tells how a call may be repeated.
type mode int

const (
	// repeatable calls do no harm when a server has carried them out and its
	// reply was lost: at worst they leave a gap.
	repeatable mode = iota
	// leasing calls are repeatable, and go only to servers whose store is known
	// to be the right one.
	leasing
	// single calls would mean another thing the second time: they go to another
	// server only if they cannot have reached the first.
	single
)

// call asks the servers one after the other until one answers. An error that
// another server would not change ends the round. Where none answers, there is something to
// wait for if there is with one of them.
func call[T any](ctx context.Context, c *Client, m mode, ask func(context.Context, *server) (T, error)) (T, error) {
	var zero T
	servers := c.order()
	var errs []error
	for i, s := range servers {
		if c.isClosed() {
			return zero, hapax.ErrClosed
		}
		v, err := attempt(ctx, c, s, m, len(servers)-i, ask)
		if err == nil {
			c.prefer(s)
			return v, nil
		}
		// A transport's error need not say that it was the caller's time that ended.
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		errs = append(errs, err)
		if !isElsewhere(err) {
			return zero, err
		}
		// It may come back as another. One that refuses what it knows its store to be has stayed the same.
		if isTroubled(err) || errors.Is(err, hapax.ErrStoreReplaced) {
			s.verified.Store(false)
		}
		c.failures.Add(1)
		// A call that may have arrived may have been carried out: a second server would do it again.
		if ctx.Err() != nil || m == single && !neverSent(err) {
			break
		}
		if i+1 < len(servers) {
			c.failovers.Add(1)
		}
	}
	if len(errs) == 1 {
		return zero, errs[0]
	}
	sentinel := hapax.ErrorOf(hapax.CodeOf(errs[0]))
	if slices.ContainsFunc(errs, isPassing) {
		sentinel = hapax.ErrStoreUnavailable
	}
	return zero, fmt.Errorf("%w: none of %d servers: %w", sentinel, len(errs), errors.Join(errs...))
}

// attempt asks one server, leaving time for as many others.
func attempt[T any](ctx context.Context, c *Client, s *server, m mode, turns int, ask func(context.Context, *server) (T, error)) (T, error) {
	timeout := c.opts.Timeout
	// A hung server must not use up the time of those after it.
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/time.Duration(turns))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Close does not wait for servers that do not answer.
	defer context.AfterFunc(c.life, cancel)()
	if m == leasing {
		if err := c.verify(ctx, s); err != nil {
			var zero T
			return zero, err
		}
	}
	c.calls.Add(1)
	v, err := ask(ctx, s)
	if err != nil {
		if replaced, ok := errors.AsType[*hapax.Error](err); ok && replaced == hapax.ErrStoreReplaced { // found by the transport
			return v, fmt.Errorf("%w: server %s has another store than the one that was used before; servers of one client must share a store", hapax.ErrStoreReplaced, s.url)
		}
		return v, s.cause(err)
	}
	return v, nil
}

// cause returns the error of a call, which names the server if another one may not
// have it.
func (s *server) cause(err error) error {
	misunderstood := wire.IsMisunderstood(err)
	err = wire.Cause(err, s.url)
	if its := s.product.Load(); misunderstood && its != nil && *its != product() {
		return fmt.Errorf("%w; the server %s is %s and this client %s: use a client of its version", err, s.url, cmp.Or(*its, "of a version before "+product()), product())
	}
	if _, named := errors.AsType[*wire.NoAnswerError](err); !named && isElsewhere(err) {
		return fmt.Errorf("%w (server %s)", err, s.url)
	}
	return err
}

// verify makes sure that a server has the store that the others have.
func (c *Client) verify(ctx context.Context, s *server) error {
	if s.verified.Load() {
		return nil
	}
	c.calls.Add(1)
	res, err := s.lease.GetStoreID(ctx, &hapaxv1.GetStoreIDRequest{})
	if err != nil {
		return s.cause(err)
	}
	return c.checkStore(s, res.GetStoreId())
}

// knownStore returns the identity of the one store behind all servers, empty
// before it is known.
func (c *Client) knownStore() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.storeID
}

// checkStore notes the identity of a server's store. The first one is that of
// all.
func (c *Client) checkStore(s *server, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.storeID == "" {
		c.storeID = id
	}
	if id != c.storeID {
		return fmt.Errorf("%w: server %s has store %s, and %s was used before; servers of one client must share a store", hapax.ErrStoreReplaced, s.url, id, c.storeID)
	}
	s.verified.Store(true)
	return nil
}

// isElsewhere reports whether another server may do better: this one's clock, witness or view of the
// store is its own. A worker ID that is taken is so for all.
func isElsewhere(err error) bool {
	code := hapax.CodeOf(err)
	return isTroubled(err) || wire.Status(code) == connect.CodeUnavailable && code != hapax.ErrNoWorker.Code()
}

// isTroubled reports whether another server, or the same one later, may do better.
func isTroubled(err error) bool {
	switch hapax.ErrorOf(hapax.CodeOf(err)) {
	case hapax.ErrStoreUnavailable, hapax.ErrRefillPending, hapax.ErrClosed, hapax.ErrInternal:
		return true
	}
	return false
}

// isPassing reports whether waiting may help, even where another server would not.
// A limit is for the caller to know of.
func isPassing(err error) bool {
	return isTroubled(err) || hapax.IsTransient(err) && !errors.Is(err, api.ErrLimitExceeded)
}

// neverSent reports that no connection came about.
func neverSent(err error) bool {
	e, ok := errors.AsType[*wire.NoAnswerError](err)
	return ok && e.NeverSent()
}

// persist calls f until it succeeds or fails for good, with backoff while there
// is something to wait for, until the context ends. With Options.Once it calls f
// once.
func persist[T any](ctx context.Context, c *Client, f func(context.Context) (T, error)) (T, error) {
	for failures := 1; ; failures++ {
		v, err := f(ctx)
		// Close has ended the call, which looks like trouble with the server.
		if err != nil && c.isClosed() && !errors.Is(err, hapax.ErrClosed) {
			return v, fmt.Errorf("%w: %w", hapax.ErrClosed, err)
		}
		if err == nil || c.opts.Once || !isPassing(err) {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, &hapax.WaitError{Cause: err, Context: context.Cause(ctx)}
		case <-c.life.Done():
			return v, hapax.ErrClosed
		case <-time.After(hapax.Backoff(failures)):
		}
	}
}
