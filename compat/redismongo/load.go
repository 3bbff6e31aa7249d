package redismongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// load fetches a segment in the background and installs it under the right that
// Redis gave.
func (i *Issuer) load(f fetching, right string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return // the right lapses
	}
	done := make(chan struct{})
	i.loading = done
	i.tasks.Go(func() {
		err := i.fetch(f, right)
		i.mu.Lock()
		defer i.mu.Unlock()
		// Where the right has lapsed another load may have begun by now.
		if i.failed = err; i.loading == done {
			i.loading = nil
		}
		close(done)
	})
}

// fetch asks the store for as long as the right lasts. A segment that was sent to
// Redis is never used elsewhere, whatever the answer.
func (i *Issuer) fetch(f fetching, right string) error {
	// No longer than the right: a segment that comes later cannot be installed, and is a gap.
	ctx, cancel := context.WithTimeout(i.life, rightFor)
	defer cancel()
	for {
		g, err := i.allocate(ctx, i.nextStep(f.step, f.age))
		switch {
		case err == nil:
			return i.install(ctx, f.server, right, g)
		case !errors.Is(err, hapax.ErrStoreUnavailable):
			i.observe(hapax.Event{Kind: hapax.EventRefused, Err: err})
			_ = i.install(ctx, f.server, right, hapax.Grant{}) // the right lapses anyway
			return err
		}
		i.mu.Lock()
		i.failed = err // for those who give up waiting
		i.mu.Unlock()
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return err
		}
	}
}

// nextStep returns how many numbers to ask for where the latest segment had step of them and is so old;
// 0 stands for the tag's own step. A hash does not say how old a cursor's first segment is, or was written
// by somebody else: then the step stays.
//
// The rule is that of a hapax.Segment but for two things, since processes share the step. How long callers
// waited does not count: Redis bounds the rate. An edited step counts by its bounds alone: processes
// learn of it one after the other, and each would begin anew.
func (i *Issuer) nextStep(step int64, age time.Duration) int64 {
	i.mu.Lock()
	def := i.def
	i.mu.Unlock()
	switch {
	case step <= 0:
		return i.opts.ahead()
	case def.Step == 0: // the tag's bounds are not known here yet
		age, def.MaxStep = stepAim, hapax.DefaultMaxStep
	case age < 0:
		age = stepAim
	}
	return max(def.NextStep(step, age, stepAim), i.opts.ahead())
}

// allocate takes a segment from the store and checks it: it must lie above all that
// was known here when it was asked for.
func (i *Issuer) allocate(ctx context.Context, n int64) (hapax.Grant, error) {
	i.mu.Lock()
	// From before the call: Redis may give numbers of a later segment meanwhile, beside which this one would
	// look like a loss.
	known := i.mark
	if seen := i.seen.Load(); seen > 0 {
		known = max(known, seen+1)
	}
	i.mu.Unlock()
	if err := i.identify(ctx); err != nil {
		return hapax.Grant{}, err
	}
	began := time.Now()
	a, err := hapax.Allocate(ctx, i.store, hapax.AllocateRequest{Tag: i.tag, N: n, Mark: known, Create: &i.create, Observer: i.opts.Observer})
	g := a.Grant
	switch {
	case err != nil:
		return g, err
	case g.Lo < 1: // the cursor begins below it
		return g, fmt.Errorf("%w: tag %q: the store granted [%d, %d)", hapax.ErrStoreCorrupt, i.tag, g.Lo, g.Hi)
	case a.Tag.Delta != 1:
		return g, &hapax.ValueError{Field: "delta", Value: a.Tag.Delta, Allowed: "1 for a tag that Redis counts", Err: hapax.ErrInvalidArgument}
	}
	i.mu.Lock()
	i.mark, i.def = max(i.mark, g.Hi), a.Tag
	i.mu.Unlock()
	i.observe(hapax.Event{Kind: hapax.EventGrant, Grant: g, Took: time.Since(began)})
	return g, nil
}

// install sends a segment, at most once for each right; an empty one gives the right
// back.
func (i *Issuer) install(ctx context.Context, server, right string, g hapax.Grant) error {
	top, err := i.counter.install(ctx, installing{server: server, right: right, store: i.storeID(), grant: g})
	switch {
	case notAllowed(err):
		return i.errNotAllowed(err)
	case err != nil:
		return fmt.Errorf("%w: redis: %w", hapax.ErrStoreUnavailable, err)
	case top != "":
		err = fmt.Errorf("%w: tag %q: the store granted numbers from %d, but Redis knows of numbers up to %s; raise the tag's floor above that", hapax.ErrStoreRolledBack, i.tag, g.Lo, top)
		i.observe(hapax.Event{Kind: hapax.EventRefused, Err: err})
		return err
	}
	return nil // somebody else may have installed one, or will
}
