package driver

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
)

const defaultTimeout = 5 * time.Second

// Calls are the calls on one handle of a store.
type Calls struct {
	Service string        // for messages: the engine and where it is
	Timeout time.Duration // of one call; 0: 5 s; below 0: none but the context's
	closed  atomic.Bool
}

// Begin refuses a call that cannot be served, and bounds one that can.
func (c *Calls) Begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if c.closed.Load() {
		return nil, nil, fmt.Errorf("%w: the store in %s", hapax.ErrClosed, c.Service)
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, nil, c.Unavailable(ctx, cause)
	}
	timeout := c.Timeout
	switch {
	case timeout < 0:
		return ctx, func() {}, nil
	case timeout == 0:
		timeout = defaultTimeout
	}
	// The caller's own context has not ended: the error does not look as if it had.
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	return ctx, cancel, nil
}

// Unavailable wraps what an engine or its client reports. A context that ended
// stays visible.
func (c *Calls) Unavailable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, c.Service, err)
}

// End makes Begin refuse from now on, and reports whether it did not before.
func (c *Calls) End() bool { return !c.closed.Swap(true) }
