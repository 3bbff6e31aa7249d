package client

import (
	"context"

	"github.com/hapax-id/hapax"
)

// HoldWorker returns a worker ID for a generator that is not this library's: see
// hapax.HoldWorker. Where the options name no layout it is the pool's, as the server has
// it. Close the HeldWorker before the client.
func (c *Client) HoldWorker(ctx context.Context, opts hapax.HoldOptions) (*hapax.HeldWorker, error) {
	if opts.Layout.IsZero() {
		var err error
		if opts.Layout, err = c.PoolLayout(ctx, opts.Pool); err != nil {
			return nil, err
		}
	}
	return hapax.HoldWorker(ctx, c, opts)
}

// PoolLayout returns the layout that a pool is, or will be, frozen with; it waits for
// the servers until the context ends. An empty name is that of hapax.DefaultPool.
func (c *Client) PoolLayout(ctx context.Context, pool string) (hapax.Layout, error) {
	return persist(ctx, c, func(ctx context.Context) (hapax.Layout, error) { return c.poolLayout(ctx, pool) })
}
