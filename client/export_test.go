package client

import (
	"context"
	"net"
)

// Waiting returns how many callers of Next wait for another's request.
func Waiting(c *Client, tag string) int {
	c.joints.mu.Lock()
	defer c.joints.mu.Unlock()
	if t := c.joints.tags[tag]; t != nil {
		return t.requests.Waiting()
	}
	return 0
}

// Over returns a client that connects by a function, for virtual time.
func Over(opts Options, dial func(context.Context) (net.Conn, error), urls ...string) (*Client, error) {
	c, err := newClient(opts, urls)
	if err != nil {
		return nil, err
	}
	c.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	c.children.Go(c.watch)
	return c, nil
}
