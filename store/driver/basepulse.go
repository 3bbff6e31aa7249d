package driver

import (
	"context"
	"errors"
	"time"

	"github.com/hapax-id/hapax"
)

// The rows that a beat looks at, besides the process's own.
var (
	fenceKey   = Key{TableFence, RowFence}
	joinsKey   = Key{TableGuard, RowJoins}
	changesKey = Key{TableGuard, RowChanges} // of a beat alone
)

// step is the pulse as a step of a KV, with changes that are done or not each by itself.
func (p Pulse) step(each ...Change) Step {
	own := Key{TableBeats, p.Row}
	return Step{
		If:    []Cond{{Key: own, Least: p.Was.Encode()}, {Key: fenceKey}},
		Raise: []Put{{own, p.Now.Encode()}},
		Each:  each,
		Look:  []Key{joinsKey},
	}
}

// contactOf is what a step under a pulse has found. A step that was not done is of the
// same contact where its conditions would hold by now.
func contactOf(p Pulse, r Result) (Contact, error) {
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
		c, err := contactOf(p, r)
		if err != nil {
			return c, err
		}
		if r.Met || !c.Met {
			var watched Cell
			if p.Watch != "" {
				watched = r.Look[2]
			}
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

// errNoBeat ends a change whose beat was not made.
var errNoBeat = errors.New("the beat was not made")

// updateWith is update under a pulse. Where change fails before a beat was made, that is made
// alone.
func (b *Base) updateWith(ctx context.Context, p Pulse, key Key, change changing) (contact Contact, err error) {
	if err := p.Check(); err != nil {
		return contact, err
	}
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return contact, err
	}
	defer cancel()
	s, err := b.take(ctx, key)
	if err != nil {
		return contact, err
	}
	defer s.leave()
	err = b.try(ctx, s, change, func(one Change) (Outcome, error) {
		r, err := b.kv.Step(ctx, p.step(one))
		if err != nil {
			return Outcome{}, err
		}
		c, err := contactOf(p, r)
		if err != nil {
			return Outcome{}, err
		}
		if !c.Met {
			contact = c
			return Outcome{}, errNoBeat
		}
		if r.Met {
			contact = c
		}
		return r.Each[0], nil
	})
	switch {
	case err == nil, errors.Is(err, errNoBeat):
		return contact, nil
	case !IsOfTag(err) && !errors.Is(err, errOtherValue):
		return Contact{}, err
	case !contact.Met:
		var failed error
		if contact, failed = b.beat(ctx, p); failed != nil {
			return Contact{}, failed
		}
	}
	return contact, err
}

// AllocateWith implements [Guarding]. It is as many round trips as Allocate.
func (b *Base) AllocateWith(ctx context.Context, p Pulse, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, Contact, error) {
	var a hapax.Allocation
	c, err := b.changeTagWith(ctx, p, tag, func(t Tag) (next Tag, err error) {
		a, next, err = Advance(t, n, last)
		return next, err
	})
	if err != nil || !c.Met {
		a = hapax.Allocation{}
	}
	return a, c, err
}

// HandBackWith implements [Guarding].
func (b *Base) HandBackWith(ctx context.Context, p Pulse, a hapax.Allocation, next int64) (Contact, error) {
	return b.changeTagWith(ctx, p, a.Tag.Name, func(t Tag) (Tag, error) { return HandBack(t, a, next) })
}

func (b *Base) changeTagWith(ctx context.Context, p Pulse, name string, f func(Tag) (Tag, error)) (Contact, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return Contact{}, err
	}
	return b.updateWith(ctx, p, tagKey(name), tagChange(name, f))
}

// SwapRowWith implements [Guarding].
func (b *Base) SwapRowWith(ctx context.Context, p Pulse, table, name string, old, next []byte) (bool, Contact, error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, Contact{}, err
	}
	c, err := b.updateWith(ctx, p, Key{table, name}, swapTo(old, next))
	if errors.Is(err, errOtherValue) {
		return false, c, nil
	}
	return err == nil && c.Met, c, err
}

// Split implements [Guarding].
func (b *Base) Split() bool { return b.opts.Split }
