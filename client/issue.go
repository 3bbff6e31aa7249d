package client

import (
	"context"
	"fmt"
	"math"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
)

// Next has a server issue one number of a tag, which is created if the server
// allows that. While the servers are in trouble it waits, until the context
// ends.
//
// Callers that want numbers of one tag at the same time share requests. A number whose
// caller has gone is not issued to anybody else. For the speed of the library use [Segment]
// or [Snowflake], which lease.
//
// Errors: those of the tag, such as ErrTagDeleted; a *hapax.WaitError that
// matches the trouble and the context's error.
func (c *Client) Next(ctx context.Context, tag string) (hapax.ID, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return 0, err
	}
	return c.joints.next(ctx, c, tag)
}

// one has a server issue one number to one caller.
func (c *Client) one(ctx context.Context, tag string) (hapax.ID, error) {
	ids, err := c.next(ctx, tag, 1)
	if err != nil {
		return 0, err
	}
	return hapax.ID(ids[0]), nil
}

// NextN has a server fill dst with ascending numbers of a tag, as many as the
// server allows at most (by default 10,000). Either all of dst is filled, or
// there is an error.
func (c *Client) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	if len(dst) == 0 {
		return 0, nil
	}
	ids, err := c.next(ctx, tag, len(dst))
	if err != nil {
		return 0, err
	}
	for i, id := range ids {
		dst[i] = hapax.ID(id)
	}
	return len(dst), nil
}

func (c *Client) next(ctx context.Context, tag string, n int) ([]int64, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return nil, err
	}
	if n > math.MaxInt32 {
		return nil, outOfRange("count", n, "what the server allows at once")
	}
	req := &hapaxv1.NextRequest{Tag: tag, Count: int32(n)}
	return persist(ctx, c, func(ctx context.Context) ([]int64, error) {
		return granted(&c.fences, "issue/"+tag, func() ([]int64, error) {
			return call(ctx, c, repeatable, func(ctx context.Context, s *server) ([]int64, error) {
				res, err := s.issue.Next(ctx, req)
				if err == nil && len(res.GetIds()) != n {
					err = fmt.Errorf("server %s sent %d numbers instead of %d", s.url, len(res.GetIds()), n)
				}
				return res.GetIds(), err
			})
		})
	})
}
