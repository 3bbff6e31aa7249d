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
	running int
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
	callers int // guarded by joints.mu
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
	first := t.running < joinedAhead
	if first {
		t.running++
		j.mu.Unlock()
		runtime.Gosched() // whoever is about to ask joins
		j.mu.Lock()
		if len(t.waiting) == 0 {
			j.mu.Unlock()
			id, err := c.one(ctx, tag)
			j.ended(c, tag, t)
			return id, err
		}
	}
	w := &joined{done: make(chan struct{})}
	t.waiting = append(t.waiting, w)
	if first {
		j.proceedLocked(c, tag, t)
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
	if w.share.callers--; w.share.callers == 0 {
		w.share.cancel()
	}
}

// ended notes that a request has ended, and has the next one made for those that wait.
func (j *joints) ended(c *Client, tag string, t *joint) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.proceedLocked(c, tag, t)
}

// proceedLocked has a request made for those that wait, in the place of one that is
// counted as under way.
func (j *joints) proceedLocked(c *Client, tag string, t *joint) {
	t.running--
	var callers []*joined
	for len(t.waiting) > 0 && len(callers) < t.most {
		if w := t.waiting[0]; !w.left {
			callers = append(callers, w)
		}
		t.waiting = t.waiting[1:]
	}
	if len(callers) == 0 {
		if t.running == 0 {
			delete(j.tags, tag)
		}
		return
	}
	ctx, cancel := context.WithCancel(c.life)
	share := &shared{len(callers), cancel}
	for _, w := range callers {
		w.share = share
	}
	t.running++
	started := c.start(func() {
		defer cancel()
		refused := j.ask(ctx, c, tag, callers)
		if refused {
			j.mu.Lock()
			t.most = max(1, len(callers)/2)
			j.mu.Unlock()
		}
		runtime.Gosched() // who was answered and wants another number shares the next request
		j.ended(c, tag, t)
	})
	if !started {
		cancel()
		t.running--
		answer(callers, nil, hapax.ErrClosed)
		answer(t.waiting, nil, hapax.ErrClosed)
		t.waiting = nil
	}
}

// ask makes one request for several callers, and reports whether it was refused because
// there were several.
func (j *joints) ask(ctx context.Context, c *Client, tag string, callers []*joined) (refused bool) {
	ids, err := c.next(ctx, tag, len(callers))
	refused = len(callers) > 1 && (errors.Is(err, hapax.ErrInvalidArgument) || errors.Is(err, api.ErrLimitExceeded))
	switch {
	case c.life.Err() != nil && err != nil:
		err = hapax.ErrClosed
	case refused:
		err = errAlone
	}
	answer(callers, ids, err)
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
