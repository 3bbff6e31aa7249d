package driver

import (
	"context"
	"time"
)

// The rows that a beat looks at, besides the process's own.
var (
	fenceKey   = Key{TableFence, RowFence}
	joinsKey   = Key{TableGuard, RowJoins}
	changesKey = Key{TableGuard, RowChanges} // of a beat alone
)

// step is a step of a KV under the pulse, if there is one, with changes that are done or not each
// by itself.
func (p *Pulse) step(each ...Change) Step {
	if p == nil {
		return Step{Each: each}
	}
	own := Key{TableBeats, p.Row}
	return Step{
		If:    []Cond{{Key: own, Least: p.Was.Encode()}, {Key: fenceKey}},
		Raise: []Put{{own, p.Now.Encode()}},
		Each:  each,
		Look:  []Key{joinsKey},
	}
}

// contactOf returns the contact of a step under the pulse. It is judged by the rows alone: a step
// that was not done may come with a contact that is met, if its conditions hold by now.
func (p *Pulse) contactOf(r Result) (Contact, error) {
	if p == nil {
		return Contact{Met: true}, nil
	}
	own, fence := p.Now.Encode(), []byte(nil)
	if !r.Met {
		own, fence = r.If[0].Value, r.If[1].Value
	}
	c, err := p.Judge(own, fence, r.Look[0].Value)
	c.Primary = r.Primary
	return c, err
}

// beat makes the beat alone, however often that is lost to others.
func (b *Base) beat(ctx context.Context, p Pulse) (Contact, error) {
	step := p.step()
	step.Look = append(step.Look, changesKey)
	if p.Watch != "" {
		step.Look = append(step.Look, Key{TableBeats, p.Watch})
	}
	for lost := 0; ; lost++ {
		sent := time.Now()
		r, err := b.kv.Step(ctx, step)
		if err != nil {
			return Contact{}, err
		}
		c, err := p.contactOf(r)
		if err != nil {
			return c, err
		}
		// Not done although its conditions hold by now: a race was lost, which says nothing of the row.
		if r.Met || !c.Met {
			var watched Cell
			if p.Watch != "" {
				watched = r.Look[2]
			}
			// An engine may leave out what is looked at: nobody has seen that row, which must not seem gone.
			if !watched.Known {
				p.Watch = ""
			}
			return c.Tell(p, r.Look[1].Value, watched.Value)
		}
		if err := pause(ctx, lost, time.Since(sent)); err != nil {
			return Contact{}, b.calls.Unavailable(ctx, err)
		}
	}
}

// Beat implements [Guarding].
func (b *Base) Beat(ctx context.Context, p Pulse) (Contact, error) {
	if err := p.Check(); err != nil {
		return Contact{}, err
	}
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return Contact{}, err
	}
	defer cancel()
	return b.beat(ctx, p)
}
