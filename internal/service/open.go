package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/service/watch"
)

// An attempt opens the line of one tag, for all callers that ask for it.
type attempt struct {
	on   atomic.Pointer[watch.Reason] // what it is held up by: its own or its pool's
	done chan struct{}                // closed when line and err are set
	line *line
	err  error
	by   *auth.Caller // the caller for which the tag is created if there is none

	stale bool          // the tag was changed meanwhile; guarded by Service.mu
	slots chan struct{} // where it holds one, nil for none; run's alone
}

// errStale has the callers of an attempt try again.
var errStale = &hapax.WaitError{Cause: hapax.ErrRefillPending, Context: context.Canceled}

// line returns the tag's line, opening it if need be. It waits until the
// context ends.
func (s *Service) line(ctx context.Context, tag string) (*line, error) {
	for waited := false; ; waited = true {
		if l := s.tags.find(tag); l != nil {
			return l, nil
		}
		if !waited {
			if err := hapax.ValidateName("tag", tag); err != nil {
				return nil, err
			}
		}
		a, err := s.attempt(ctx, tag)
		if err != nil {
			return nil, err
		}
		if !waited {
			s.metrics.WaitedForStore()
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, &hapax.WaitError{Cause: a.on.Load().Err(), Context: context.Cause(ctx)}
		}
		_, gaveUp := errors.AsType[*hapax.WaitError](a.err)
		// An attempt that gave up is no answer to a caller with time left.
		switch {
		case a.err == nil:
			return a.line, nil
		case isPersonal(a.err) && a.by != auth.FromContext(ctx): // no answer to this caller
		case !gaveUp:
			return nil, a.err
		case ctx.Err() != nil:
			return nil, &hapax.WaitError{Cause: a.err, Context: context.Cause(ctx)}
		}
	}
}

// attempt returns the attempt to open the tag's line, which it starts if need be.
func (s *Service) attempt(ctx context.Context, tag string) (*attempt, error) {
	s.mu.Lock()
	a, err := s.knownLocked(tag)
	s.mu.Unlock()
	if a != nil || err != nil {
		return a, err
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, &hapax.WaitError{Cause: hapax.ErrRefillPending, Context: context.Cause(ctx)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Another caller may have begun while this one waited for a slot.
	if a, err = s.knownLocked(tag); a != nil || err != nil {
		<-s.slots
		return a, err
	}
	a = &attempt{done: make(chan struct{}), by: auth.FromContext(ctx), slots: s.slots}
	a.on.Store(&watch.Reason{})
	address := auth.AddressFrom(ctx)
	if !s.spawn(func() { s.run(auth.NewContext(s.life, a.by, address), a, tag) }) {
		<-s.slots
		return nil, hapax.ErrClosed
	}
	s.opening[tag] = a // before run, which takes the lock, ends it
	return a, nil
}

// knownLocked returns an attempt under way, or an error if there must be none now. The attempt of a
// line that is open has ended: it did so after the caller had looked, and a second line would
// leave the numbers of the first one unused.
func (s *Service) knownLocked(tag string) (*attempt, error) {
	if s.isClosed() {
		return nil, hapax.ErrClosed
	}
	if l := s.tags.find(tag); l != nil {
		a := &attempt{done: make(chan struct{}), line: l}
		a.on.Store(&watch.Reason{})
		close(a.done)
		return a, nil
	}
	return s.opening[tag], s.refused.of(tag)
}

// run carries out an attempt. It outlasts the callers that wait for it by a
// while, so that a slow store is not asked in vain.
func (s *Service) run(ctx context.Context, a *attempt, tag string) {
	defer a.free()
	// Else a store that is away would be asked on for callers that have long gone, and the attempts
	// would keep the slots of other tags.
	ctx, cancel := context.WithTimeout(ctx, s.opts.MaxWait+s.opts.StoreTimeout)
	defer cancel()
	a.line, a.err = s.open(ctx, a, tag)
	closed := s.isClosed() // from here on Close waits for this, and closes what is added
	s.mu.Lock()
	delete(s.opening, tag)
	discard := a.line != nil && (a.stale || closed)
	switch {
	case closed:
		a.err = hapax.ErrClosed
	case discard:
		a.err = errStale
	case a.err == nil:
		s.tags.add(a.line)
	case isDefinite(a.err):
		s.refused.add(tag, a.err)
	}
	s.mu.Unlock()
	close(a.done)
	// After the callers are told, since to hand back is a call on the store.
	if discard {
		s.discard(a.line)
	}
}

// free gives the attempt's slot to another one.
func (a *attempt) free() {
	if a.slots != nil {
		<-a.slots
		a.slots = nil
	}
}

// move gives the attempt one of other slots, for a wait that is not the store's alone.
func (a *attempt) move(ctx context.Context, to chan struct{}) error {
	a.free()
	select {
	case to <- struct{}{}:
		a.slots = to
		return nil
	case <-ctx.Done():
		return &hapax.WaitError{Cause: hapax.ErrRefillPending, Context: context.Cause(ctx)}
	}
}

// isDefinite reports whether asking again at once would give the same answer.
func isDefinite(err error) bool {
	_, gaveUp := errors.AsType[*hapax.WaitError](err)
	return !gaveUp && !watch.IsAway(err) && !isPersonal(err)
}

// open learns what the tag is, creates it at first use, and returns its line.
func (s *Service) open(ctx context.Context, a *attempt, tag string) (*line, error) {
	t, plugins, err := s.tag(ctx, a.on.Load(), tag)
	if err != nil {
		return nil, err
	}
	code, err := s.opts.keys().Code(t)
	if err != nil {
		return nil, err
	}
	if t.Deleted {
		return nil, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, tag)
	}
	if err := s.opts.keepsApart(t, plugins.Name); err != nil {
		return nil, err
	}
	s.warnIfOther(t)
	if len(t.Says.Floors) == 0 {
		s.floors.settle(t.Name) // so that its first grant asks for nothing
	}
	return s.openLine(ctx, a, t, plugins, code)
}

// openSnowflake opens a line whose numbers hold time.
func (s *Service) openSnowflake(ctx context.Context, a *attempt, name string) (*line, error) {
	p := s.pool(name)
	a.on.Store(&p.reason)
	// The pool is opened once for all its tags, and they may wait for a worker ID for as long as a call
	// may wait: they would keep every other tag from being opened.
	a.free()
	issuer, err := s.openPool(ctx, p)
	if err != nil {
		return nil, err
	}
	return &line{issuer: issuer, pool: p.name}, nil
}

// openSegment opens a line that counts.
func (s *Service) openSegment(ctx context.Context, a *attempt, t define.Tag) (*line, error) {
	seg, err := hapax.NewSegment(ctx, s.store.Telling(a.on.Load()).Of(t), t.Name, hapax.SegmentOptions{
		NoCreate: true, StoreTimeout: s.opts.StoreTimeout, Observer: s.observe, Clock: s.opts.Clock,
	})
	if err != nil {
		return nil, err
	}
	return &line{issuer: seg, segment: seg, rate: health.Rate{Looked: s.now()}}, nil
}

// tag returns the tag as the store has it. It creates the tag if that is allowed. The second
// one is that whose plugins count: the same, or that of a period's line.
func (s *Service) tag(ctx context.Context, why *watch.Reason, name string) (t, plugins define.Tag, err error) {
	def, ok := s.declared(name)
	cached := ok && s.opts.Pools[def.Pool].Cache && s.opts.Cache != nil
	err = s.retry(ctx, why, func(ctx context.Context) error {
		if define.IsPeriodLine(name) {
			t, plugins, err = s.lineTag(ctx, name)
			return err
		}
		if cached {
			// Briefly: a pool with a cache starts while the store is silent.
			known, cancel := context.WithTimeout(ctx, health.AskFor)
			defer cancel()
			if t, err = s.store.Definition(known, name); err != nil && watch.IsAway(err) {
				s.store.Tell(err)
				t, err = def, nil // its pool may go on without the store; refresh tells if the tag is another
			}
		} else {
			t, err = s.store.Definition(ctx, name)
		}
		if errors.Is(err, hapax.ErrTagNotFound) {
			if !ok {
				def.Tag = hapax.Tag{Name: name, Kind: hapax.KindSegment}
			}
			var made hapax.Tag
			made, err = s.CreateTag(ctx, def.Tag, hapax.CreateFirstUse)
			if t = def.Now(made); errors.Is(err, hapax.ErrTagExists) {
				t, err = s.store.Definition(ctx, name)
			}
		}
		plugins = t
		return err
	})
	return t, plugins, err
}

// warnIfOther tells the operator when the store has another definition of a tag
// than the options: the store's counts, and an edit of the options is in vain.
func (s *Service) warnIfOther(t define.Tag) {
	here, ok := s.declared(t.Name)
	if !ok {
		return
	}
	stored, def := t.Tag, here.Tag
	stored.Mark, def.Mark, stored.Token, def.Token = 0, 0, 0, 0 // which issuing moves, and a hand-back
	if t.Extra != "" && t.IsOur && here.Says.Strategy == t.Says.Strategy && slices.Equal(here.Says.Floors, t.Says.Floors) && s.opts.sameCode(t.Name, here.Says, t.Says) {
		def.Extra = t.Extra // it may know older codes, and plugins
	}
	if stored == def {
		return
	}
	if pass, dropped := s.throttle.pass("definition"); pass {
		s.log.Warn("the store defines a tag otherwise than the configuration, and the store's definition counts; change it through the API",
			"tag", t.Name, "stored", fmt.Sprintf("%+v", stored), "configured", fmt.Sprintf("%+v", def), "suppressed", dropped)
	}
}

// keepsApart refuses a tag whose configuration keeps it apart from another region's by delta
// and remainder, and which the store has frozen with others: it would issue that region's numbers.
// A period's line is configured as the tag that it is of.
func (o Options) keepsApart(t define.Tag, configured string) error {
	c, ok := o.Tags[configured]
	if !ok || c.Delta <= 1 || t.Delta == c.Delta && t.Remainder == c.Remainder {
		return nil
	}
	return fmt.Errorf("%w: tag %q has delta %d and remainder %d in the store, which cannot change, and delta %d and remainder %d in the configuration: configure it as it is stored, or take another name",
		hapax.ErrKindMismatch, t.Name, t.Delta, t.Remainder, c.Delta, c.Remainder)
}

// sameCode reports whether the configuration gives a tag the code that is stored.
func (o Options) sameCode(tag string, canonical, stored define.Extra) bool {
	c := o.Tags[tag]
	return canonical.Spec == stored.Spec || o.keys().Same(tag, define.Extra{Spec: c.Code, Zone: c.Zone}, stored)
}

// drop takes a line out of use and closes it. A pool's issuer goes on.
func (s *Service) drop(l *line) {
	s.whileOpen(func() { // else Close closes it
		if s.tags.remove(l) {
			s.children.Go(func() {
				s.discard(l)
				if !l.labelled && l.segment != nil {
					s.metrics.Retire(l.segment.Stats())
				}
			})
		}
	})
}

// discard closes a line. A segment hands back what it can.
func (s *Service) discard(l *line) {
	// Not the service's life, which has ended where a stop discards: the rest is to go back all the same.
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.StoreTimeout)
	defer cancel()
	_ = l.plugged.Close(ctx)
}

// reopen closes the tag's line, so that the next use learns what the tag is now.
func (s *Service) reopen(name string) {
	s.mu.Lock()
	// Before the table is looked at: an attempt that ended earlier has its line there by now.
	if a := s.opening[name]; a != nil {
		a.stale = true
	}
	s.mu.Unlock()
	if l := s.tags.find(name); l != nil {
		s.drop(l)
	}
}
