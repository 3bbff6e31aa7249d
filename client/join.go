package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/batch"
)

const (
	joinedMost  = 1000 // numbers that one request asks for on behalf of several callers
	joinedAhead = 2    // requests for one tag that are under way before callers are joined
	joinedFew   = 8    // or the callers that they are for: of many, one request serves all
)

// joints join callers of Next that want numbers of the same tag at the same time.
type joints struct {
	mu     sync.Mutex // guards tags and what they hold; never held while waiting
	tags   map[string]*joint
	closed bool
}

// joint is a tag that is asked for. It goes with its last caller.
type joint struct {
	requests *batch.Batch[struct{}, joined]
	callers  int          // guarded by joints.mu
	most     atomic.Int64 // numbers at once, as far as is known
}

// joined is the answer for one of several callers.
type joined struct {
	id  hapax.ID
	err error
}

// errAlone tells a caller to ask for itself: what it shared was refused because it was
// for many.
var errAlone = errors.New("refused for several")

// next returns one number of a tag.
func (j *joints) next(ctx context.Context, c *Client, tag string) (hapax.ID, error) {
	t := j.join(c, tag)
	if t == nil {
		return 0, hapax.ErrClosed
	}
	got, err := t.requests.Do(ctx, struct{}{})
	j.leave(tag, t)
	switch {
	case err != nil:
		return 0, err
	case errors.Is(got.err, errAlone):
		return c.one(ctx, tag)
	}
	return got.id, got.err
}

// join returns the joint of a tag for one more caller, nil once the client is closed.
func (j *joints) join(c *Client, tag string) *joint {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	t := j.tags[tag]
	if t == nil {
		t = &joint{}
		t.most.Store(joinedMost)
		t.requests = batch.New(batch.Options[struct{}, joined]{
			Trip: func(ctx context.Context, callers []struct{}) ([]joined, error) {
				return t.ask(ctx, c, tag, len(callers)), nil
			},
			Most: joinedMost, Trips: joinedAhead, Few: joinedFew,
			Life: c.life,
			Left: func(cause error) error {
				return &hapax.WaitError{Cause: hapax.ErrStoreUnavailable, Context: cause}
			},
			Closed: hapax.ErrClosed,
		})
		if j.tags == nil {
			j.tags = map[string]*joint{}
		}
		j.tags[tag] = t
	}
	t.callers++
	return t
}

func (j *joints) leave(tag string, t *joint) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// Names come from callers: one that is asked for once must not stay.
	if t.callers--; t.callers == 0 {
		delete(j.tags, tag)
	}
}

// close refuses callers, and waits until no request is under way. The client's life is over.
func (j *joints) close() {
	j.mu.Lock()
	j.closed = true
	var all []*joint
	for _, t := range j.tags {
		all = append(all, t)
	}
	j.mu.Unlock()
	for _, t := range all {
		t.requests.Close()
	}
}

// ask makes the request of so many callers, or several smaller ones after a server has refused that
// many numbers at once.
func (t *joint) ask(ctx context.Context, c *Client, tag string, callers int) []joined {
	all := make([]joined, callers)
	for some := range slices.Chunk(all, int(t.most.Load())) {
		ids, err := c.next(ctx, tag, len(some))
		switch {
		case c.life.Err() != nil && err != nil:
			err = hapax.ErrClosed
		case len(some) > 1 && (errors.Is(err, hapax.ErrInvalidArgument) || errors.Is(err, api.ErrLimitExceeded)):
			err = errAlone
			// A server does not tell how many it takes: half as many are tried next.
			t.most.Store(int64(len(some) / 2))
		}
		for i := range some {
			if some[i].err = err; err == nil {
				some[i].id = hapax.ID(ids[i])
			}
		}
	}
	return all
}
