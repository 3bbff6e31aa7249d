package coord

import (
	"bytes"
	"context"
	"slices"
	"sync"
)

// A Convoy lets the guarded calls of one process share beats, for a store in which a
// change of the process's row waits until the one before it is durable. Of the calls
// that are under way one leads, and makes the beat of all that wait; when it has ended
// they follow, all at the same time, and find the row far enough. A call that is alone
// leads. It saves time only: each call still sees by itself what the row is. Where no beat is
// made, as under a fence, each call leads in its turn, and nobody who calls again at once
// gets before those that wait.
type Convoy struct {
	// Alone has nobody lead while others follow, where a change of the row would
	// disturb them.
	Alone bool

	mu        sync.Mutex // guards what follows
	row       string
	want      []byte        // the highest beat of all calls, as driver.Beat encodes it
	reached   []byte        // what a leader has made of the row
	leads     chan struct{} // closed when the call that leads has ended; nil: none leads
	following int
	followed  chan struct{} // closed when nobody follows any more; nil: nobody waits for that
	line      []*int        // a mark of each call that waits, in order of their coming
	moved     chan struct{} // closed when a call leaves the line; nil: nobody waits for that
}

// Join waits until a call with such a beat may go on, and returns the beat that it
// makes, and whether it leads. It calls ended once it has, and says whether the beat was
// made.
func (c *Convoy) Join(ctx context.Context, row string, beat []byte) (_ []byte, leads bool, ended func(made bool), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A process that has joined anew has another row: what was reached of the old one says nothing of it.
	if c.row != row {
		c.row, c.want, c.reached = row, beat, nil
	}
	c.want = later(c.want, beat)
	var place *int // in the line; nil: not there
	defer func() { c.leaveLocked(place) }()
	for c.row == row && bytes.Compare(c.reached, beat) < 0 {
		others := c.leads
		if others == nil && c.Alone && c.following > 0 {
			if c.followed == nil {
				c.followed = make(chan struct{})
			}
			others = c.followed
		}
		if others == nil && len(c.line) > 0 && c.line[0] != place {
			if c.moved == nil {
				c.moved = make(chan struct{})
			}
			others = c.moved
		}
		if others == nil {
			// The highest of all beats, so that no call that waits now needs one of its own.
			beat, c.leads = c.want, make(chan struct{})
			return beat, true, func(made bool) { c.hasLed(row, beat, made) }, nil
		}
		if place == nil {
			place = new(int)
			c.line = append(c.line, place)
		}
		c.mu.Unlock()
		select {
		case <-others:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		c.mu.Lock()
		if err != nil {
			return nil, false, nil, err
		}
	}
	c.following++
	return beat, false, c.hasFollowed, nil
}

// leaveLocked takes a call out of the line, and has the others look for the new first.
func (c *Convoy) leaveLocked(place *int) {
	if place == nil {
		return
	}
	c.line = slices.DeleteFunc(c.line, func(p *int) bool { return p == place })
	if c.moved != nil {
		close(c.moved)
		c.moved = nil
	}
}

// hasLed lets the calls go on that waited for the one that led.
func (c *Convoy) hasLed(row string, beat []byte, made bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// An answer that comes after the process has joined anew is of its old row.
	if made && c.row == row {
		c.reached = later(c.reached, beat)
	}
	close(c.leads)
	c.leads = nil
}

func (c *Convoy) hasFollowed(bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.following--; c.following == 0 && c.followed != nil {
		close(c.followed)
		c.followed = nil
	}
}

func later(a, b []byte) []byte {
	if bytes.Compare(a, b) < 0 {
		return b
	}
	return a
}
