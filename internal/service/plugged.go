package service

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/strategy"
)

// Plugins stand around the calls of callers, not around lines: one call goes through
// each hook once, however often the line is opened anew below it.
//
//	Next ---> line.plugged ---> tap ---> line.issuer, or the line that is open by then
//
// A tag whose numbers restart has its plugins around the tag. Its lines have the
// same ones, for those who take numbers from a line itself.

// An ownKind strategy stands in the registry for a kind whose issuers the service opens
// itself, so that its name is taken and plugins can ask for it. Services that share a
// registry share it.
type ownKind hapax.Kind

// Open implements strategy.Strategy.
func (ownKind) Open(_ context.Context, tag hapax.Tag) (hapax.Issuer, error) {
	return nil, outOfRange("tag", tag.Name, "one that a service opens")
}

// hooks are the strategies and plugins of a service, and what they forbid.
type hooks struct{ *core }

// openLine opens the line of a tag by its strategy, and puts the plugins around it. The
// tag whose strategy and plugins count is another where the line is one of a period.
func (s *Service) openLine(ctx context.Context, a *attempt, t, plugins define.Tag, c *define.Code) (*line, error) {
	if err := s.checkFrozen(plugins); err != nil {
		return nil, err
	}
	l, err := s.openIssuer(ctx, a, t, plugins, c)
	if err != nil {
		return nil, err
	}
	l.name, l.code, l.extra, l.delta = t.Name, c, t.Extra, t.Delta
	l.plugged = s.strategies.Line(plugins.StrategyName(), plugins.Name, &tap{s, l})
	if err := s.checkFrozen(plugins); err != nil { // it cannot change from here on
		s.discard(l)
		return nil, err
	}
	return l, nil
}

// openIssuer opens what a tag's line issues from.
func (s *Service) openIssuer(ctx context.Context, a *attempt, t, plugins define.Tag, c *define.Code) (l *line, err error) {
	name := plugins.StrategyName()
	switch {
	case plugins.Says.Strategy != "":
		// What the strategy asks may hang while our store does not.
		if err := a.move(ctx, s.foreign); err != nil {
			return nil, err
		}
		own, err := s.strategies.Issuer(ctx, name, plugins.Tag)
		s.store.Note(watch.Tag(t.Name), err) // what it asks is not asked through the store that is watched
		if err != nil {
			return nil, err
		}
		return &line{issuer: newForeignIssuer(own)}, nil
	case name == string(hapax.KindSnowflake):
		l, err = s.openSnowflake(ctx, a, t.Pool)
	case c.HasPeriod():
		p := &periods{svc: s, tag: t.Name, code: c}
		l = &line{issuer: p, periods: p}
	default:
		l, err = s.openSegment(ctx, a, t)
	}
	if err != nil {
		s.strategies.Refused(ctx, strategy.Refusal{Strategy: name, Tag: plugins.Name, Err: err})
	}
	return l, err
}

// CallerOf returns the name of the token with which a call is made, empty for none,
// and the address that it comes from.
func CallerOf(ctx context.Context) (name, address string) {
	if caller := auth.FromContext(ctx); caller != nil {
		name = caller.Name()
	}
	return name, auth.AddressFrom(ctx)
}

// through calls f, which issues through the plugins, with the tag's line. Other than
// issue it never calls f twice.
func (s *Service) through(ctx context.Context, tag string, f func(context.Context, *line) error) error {
	var err error
	// Kept from issue, which would take an error for the end of the line and call the plugins again.
	unopened := s.issue(ctx, tag, func(ctx context.Context, l *line) error {
		err = f(ctx, l)
		return nil
	})
	return cmp.Or(unopened, err)
}

// A tap is what a line's plugins stand around.
type tap struct {
	svc  *Service
	line *line
}

// Next implements hapax.Issuer.
func (t *tap) Next(ctx context.Context) (id hapax.ID, err error) {
	// Before the wait is capped: a number in hand costs no timer.
	if id, ok := t.line.issuer.TryNext(); ok {
		return id, nil
	}
	ctx, cancel := t.svc.capped(ctx)
	defer cancel()
	err = t.svc.on(ctx, t.line, func(ctx context.Context, l *line) error { id, err = t.svc.nextOn(ctx, l); return err })
	return id, err
}

// NextN implements hapax.Issuer. It is called below issue, with its context.
func (t *tap) NextN(ctx context.Context, dst []hapax.ID) (n int, err error) {
	err = t.svc.on(ctx, t.line, func(ctx context.Context, l *line) error {
		m, err := t.svc.fill(ctx, l, dst[n:])
		n += m
		l.began(n)
		return err
	})
	return n, err
}

// Close implements hapax.Issuer. Pools and the lines of periods are not the tag's.
func (t *tap) Close(ctx context.Context) error {
	switch l := t.line; {
	case l.segment != nil:
		return l.segment.Close(ctx)
	case l.pool == "" && l.periods == nil:
		return l.issuer.Close(ctx)
	}
	return nil
}

// A foreignIssuer is the issuer of a strategy that is not built in.
//
// Beyond hapax.Issuer it is asked only where it is the engine's own, by its concrete
// type. What embeds a *hapax.Segment has all of its methods, so no interface tells what
// the strategy means to offer from what would go round it: the numbers of the embedded
// segment are not those that the strategy makes of them.
type foreignIssuer struct {
	hapax.Issuer
	segment *hapax.Segment          // the same, if it is one
	try     func() (hapax.ID, bool) // nil where it is not the engine's own

	issued atomic.Int64
}

var _ issuer = (*foreignIssuer)(nil)

func newForeignIssuer(own hapax.Issuer) *foreignIssuer {
	f := &foreignIssuer{Issuer: own}
	switch own := own.(type) {
	case *hapax.Segment:
		f.segment, f.try = own, own.TryNext
	case *hapax.Snowflake:
		f.try = own.TryNext
	}
	return f
}

// Next implements hapax.Issuer.
func (f *foreignIssuer) Next(ctx context.Context) (hapax.ID, error) {
	id, err := f.Issuer.Next(ctx)
	if err == nil {
		f.issued.Add(1)
	}
	return id, err
}

// NextN implements hapax.Issuer.
func (f *foreignIssuer) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	n, err := f.Issuer.NextN(ctx, dst)
	// The strategy is the program's: a wrong count would show zeros as numbers.
	if n < 0 || n > len(dst) {
		return 0, fmt.Errorf("%w: the strategy says that it issued %d of %d numbers", hapax.ErrInternal, n, len(dst))
	}
	f.issued.Add(int64(n))
	return n, err
}

// TryNext implements issuer.
func (f *foreignIssuer) TryNext() (hapax.ID, bool) {
	if f.try == nil {
		return 0, false
	}
	id, ok := f.try()
	if ok {
		f.issued.Add(1)
	}
	return id, ok
}

// TryNextN implements issuer.
func (f *foreignIssuer) TryNextN([]hapax.ID) int { return 0 }

// reserve issues numbers in a row where the strategy's issuer is a segment.
func (f *foreignIssuer) reserve(ctx context.Context, n int64) (hapax.Grant, error) {
	if f.segment == nil {
		return hapax.Grant{}, fmt.Errorf("%w: the tag's strategy has no numbers in a row", hapax.ErrKindMismatch)
	}
	g, err := f.segment.Reserve(ctx, n)
	if err == nil {
		f.issued.Add(n)
	}
	return g, err
}

// reserve issues numbers in a row, as far as the tag has any.
func (l *line) reserve(ctx context.Context, n int64) (hapax.Grant, error) {
	if l.periods != nil {
		return l.periods.reserve(ctx, n)
	}
	if l.segment != nil {
		return l.segment.Reserve(ctx, n)
	}
	if f, ok := l.issuer.(*foreignIssuer); ok {
		return f.reserve(ctx, n)
	}
	return hapax.Grant{}, fmt.Errorf("%w: %q is a snowflake tag; only a segment tag has numbers in a row", hapax.ErrKindMismatch, l.name)
}
