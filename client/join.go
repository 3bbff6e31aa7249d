package client

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

const (
	joinedMost  = 1000 // numbers that one request asks for on behalf of several callers
	joinedAhead = 2    // requests for one tag that are under way before callers are joined
	joinedFew   = 8    // or the callers that they are for: of many, one request serves all
)

// joints join callers of Next that want numbers of the same tag at the same time: while
// requests are under way, those who come later wait, and share the next one. So the more
// there are, the more numbers a request is for, and nobody waits for company.
type joints struct {
	mu   sync.Mutex // guards tags and what they hold; never held while waiting
	tags map[string]*joint
}

// joint is a tag that is asked for. It goes with the last request.
type joint struct {
	running int // requests
	served  int // callers that they are for
	waiting []*joined
	most    int // numbers at once, as far as is known
}

// joined is a caller that waits.
type joined struct {
	done chan struct{} // closed when the fields below are set
	id   hapax.ID
	err  error
	left bool // the caller has gone; guarded by joints.mu

	share *shared // the request that it waits for; nil before. Guarded by joints.mu
}

// shared is a request for several callers. It ends when all of them have gone.
type shared struct {
	callers []*joined
	left    int // how many of them have not gone; guarded by joints.mu
	ctx     context.Context
	cancel  context.CancelFunc
}

// next returns one number of a tag.
func (j *joints) next(ctx context.Context, c *Client, tag string) (hapax.ID, error) {
	j.mu.Lock()
	t := j.tags[tag]
	if t == nil {
		t = &joint{most: joinedMost}
		if j.tags == nil {
			j.tags = map[string]*joint{}
		}
		j.tags[tag] = t
	}
	first := t.running < joinedAhead && t.served < joinedFew
	if first {
		t.running++
		t.served++
		j.mu.Unlock()
		runtime.Gosched() // whoever is about to ask joins
		j.mu.Lock()
		// Alone, a caller makes its request itself: no goroutine, and its own deadline.
		if len(t.waiting) == 0 {
			j.mu.Unlock()
			id, err := c.one(ctx, tag)
			j.ended(c, tag, t, 1)
			return id, err
		}
	}
	w := &joined{done: make(chan struct{})}
	t.waiting = append(t.waiting, w)
	if first {
		j.proceedLocked(c, tag, t, 1)
	}
	j.mu.Unlock()
	select {
	case <-w.done: // Close comes to this, too
	case <-ctx.Done():
		j.leave(w)
		return 0, &hapax.WaitError{Cause: hapax.ErrStoreUnavailable, Context: context.Cause(ctx)}
	}
	if errors.Is(w.err, errAlone) {
		return c.one(ctx, tag)
	}
	return w.id, w.err
}

// errAlone tells a caller to ask for itself: what it shared was refused because it was
// for many.
var errAlone = errors.New("refused for several")

func (j *joints) leave(w *joined) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if w.left = true; w.share == nil {
		return
	}
	if w.share.left--; w.share.left == 0 {
		w.share.cancel()
	}
}

// ended notes that a request for so many callers has ended, and has the next one made for
// those that wait.
func (j *joints) ended(c *Client, tag string, t *joint, served int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.proceedLocked(c, tag, t, served)
}

// proceedLocked has requests made for those that wait, in the place of one that is
// counted as under way for so many.
func (j *joints) proceedLocked(c *Client, tag string, t *joint, served int) {
	share := j.takeLocked(c, tag, t, served)
	if share == nil {
		return
	}
	started := c.start(func() {
		for share != nil {
			refused := j.ask(c, tag, share)
			runtime.Gosched() // lets a caller that was answered, and wants another number, share the next request
			j.mu.Lock()
			if refused {
				t.most = max(1, len(share.callers)/2)
			}
			share = j.takeLocked(c, tag, t, len(share.callers))
			j.mu.Unlock()
		}
	})
	// The client was closed in between: nobody will make the next request, so nobody may wait for one.
	if !started {
		share.cancel()
		t.running--
		t.served -= len(share.callers)
		answer(share.callers, nil, hapax.ErrClosed)
		answer(t.waiting, nil, hapax.ErrClosed)
		t.waiting = nil
	}
}

// takeLocked returns the next request, for those that wait, in the place of one that is
// counted as under way for so many; nil if nobody waits.
func (j *joints) takeLocked(c *Client, tag string, t *joint, served int) *shared {
	t.running--
	t.served -= served
	share := &shared{}
	for len(t.waiting) > 0 && len(share.callers) < t.most {
		// A number for a caller that has left would be burnt.
		if w := t.waiting[0]; !w.left {
			w.share = share
			share.callers = append(share.callers, w)
		}
		t.waiting = t.waiting[1:]
	}
	if len(share.callers) == 0 {
		if t.running == 0 {
			delete(j.tags, tag)
		}
		return nil
	}
	share.ctx, share.cancel = context.WithCancel(c.life)
	share.left = len(share.callers)
	t.running++
	t.served += share.left
	return share
}

// ask makes one request for several callers, and reports whether it was refused because
// there were several.
func (j *joints) ask(c *Client, tag string, share *shared) (refused bool) {
	defer share.cancel()
	ids, err := c.next(share.ctx, tag, len(share.callers))
	refused = len(share.callers) > 1 && (errors.Is(err, hapax.ErrInvalidArgument) || errors.Is(err, api.ErrLimitExceeded))
	switch {
	case c.life.Err() != nil && err != nil:
		err = hapax.ErrClosed
	case refused:
		err = errAlone
	}
	answer(share.callers, ids, err)
	return refused
}

// answer tells callers what they waited for.
func answer(callers []*joined, ids []int64, err error) {
	for i, w := range callers {
		if w.err = err; err == nil {
			w.id = hapax.ID(ids[i])
		}
		close(w.done)
	}
}
