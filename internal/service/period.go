package service

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
	"github.com/hapax-id/hapax/internal/service/define"
)

// A tag whose numbers restart has a line for each period: a tag of its own, named
// after both, such as orders@@20261121. It is made at first use, and no mark is
// ever set back. The period is the one that the wall clock says: if it jumps back,
// issuing goes on in the old line above its mark, and a text, which shows period
// and number, never comes twice.
//
//	          first use              period over, a while     Options.RetireLines
//	(nothing) ---------> issued from -------------------> closed ------> tombstone
//	                          ^                              |                |
//	                          |        the clock is back     |                |
//	                          +------------------------------+----------------+
const (
	// lineGrace is how long a line stays open on this node after its period.
	lineGrace = 10 * time.Minute

	// maxRetired bounds how many lines are retired at once.
	maxRetired = 100
)

// periods issues the numbers of a tag from the line of the current period.
type periods struct {
	svc  *Service
	tag  string
	code *define.Code
	now  atomic.Pointer[moment] // of the latest use
}

// A moment is a second of the wall clock and the period that it lies in.
type moment struct {
	second int64
	period codec.Period
	line   string
}

var _ issuer = (*periods)(nil)

// current returns what period it is.
func (p *periods) current() (*moment, error) {
	now := p.svc.now()
	m := p.now.Load()
	// No period begins within a second, so that the calendar is asked once in each.
	if m != nil && m.second == now.Unix() {
		return m, nil
	}
	period, err := p.code.Period(now)
	if err != nil {
		return nil, fmt.Errorf("%w: tag %q: %w", hapax.ErrTimeExhausted, p.tag, err)
	}
	next := &moment{second: now.Unix(), period: period}
	if m != nil && m.period == period {
		next.line = m.line
	} else {
		next.line = define.PeriodLine(p.tag, period)
	}
	p.now.Store(next)
	return next, nil
}

// line returns the line of the current period if it is open.
func (p *periods) line() *line {
	m, err := p.current()
	if err != nil {
		return nil
	}
	return p.svc.tags.find(m.line)
}

// TryNext implements issuer.
func (p *periods) TryNext() (hapax.ID, bool) {
	if l := p.line(); l != nil {
		return l.issuer.TryNext()
	}
	return 0, false
}

// TryNextN implements issuer. It takes all or nothing, so that what it returns
// is of one period.
func (p *periods) TryNextN([]hapax.ID) int { return 0 }

// Next implements hapax.Issuer.
func (p *periods) Next(ctx context.Context) (hapax.ID, error) {
	var ids [1]hapax.ID
	_, _, err := p.take(ctx, ids[:])
	return ids[0], err
}

// NextN implements hapax.Issuer.
func (p *periods) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	_, n, err := p.take(ctx, dst)
	return n, err
}

// Close implements hapax.Issuer. The lines are the service's.
func (p *periods) Close(context.Context) error { return nil }

// take fills dst with numbers of one period, which it returns.
func (p *periods) take(ctx context.Context, dst []hapax.ID) (period codec.Period, n int, err error) {
	of := ""
	period, err = p.on(ctx, func(ctx context.Context, l *line) error {
		if l.name != of { // another period has begun
			of, n = l.name, 0
		}
		m, err := p.svc.fill(ctx, l, dst[n:])
		n += m
		return err
	})
	return period, n, err
}

// reserve is Service.Reserve on the line of the current period.
func (p *periods) reserve(ctx context.Context, n int64) (g hapax.Grant, err error) {
	_, err = p.on(ctx, func(ctx context.Context, l *line) error {
		g, err = l.reserve(ctx, n)
		return err
	})
	return g, err
}

// on calls f with the current period's line. A line that was retired meanwhile is opened
// again, above its mark, as long as the tag lives.
func (p *periods) on(ctx context.Context, f func(context.Context, *line) error) (codec.Period, error) {
	for try := 1; ; try++ {
		m, err := p.current()
		if err != nil {
			return codec.Period{}, err
		}
		if err = p.svc.issue(ctx, m.line, f); err == nil || !isGone(err) || try == staleTries || ctx.Err() != nil {
			return m.period, err
		}
		// The line's refusal would be the answer for a second, and its tag lives.
		p.svc.forgive(m.line)
	}
}

// Line returns the line that the tag's numbers are to be taken from now: a
// period's, which is made at first use, or the tag itself.
func (s *Service) Line(ctx context.Context, tag string) (name string, err error) {
	t, err := s.definition(ctx, tag)
	if err != nil {
		return tag, err
	}
	c, err := s.opts.keys().Code(t)
	if err != nil || !c.HasPeriod() || t.Deleted {
		return tag, err
	}
	m, err := (&periods{svc: s, tag: tag, code: c}).current()
	if err != nil {
		return tag, err
	}
	_, err = admin(ctx, s.core, func(ctx context.Context) (hapax.Tag, error) {
		line, _, err := s.lineTag(ctx, m.line)
		return line.Tag, err
	})
	return m.line, err
}

// A lineReview finds the lines of periods that are over.
type lineReview struct {
	parents map[string]*define.Code // live tags that have a line for each period
	over    []string                // lines to retire
}

// see looks at one tag of the store. They come in the order of their names, so a
// tag comes before its lines.
func (r *lineReview) see(s *Service, t hapax.Tag, now time.Time) {
	if t.Deleted {
		return
	}
	if define.MayRestart(t) {
		if c, err := s.opts.keys().Code(define.Read(t)); err == nil && c.HasPeriod() {
			if r.parents == nil {
				r.parents = map[string]*define.Code{}
			}
			r.parents[t.Name] = c
		}
		return
	}
	parent, period, ok := define.CutLine(t.Name)
	if !ok || r.parents[parent] == nil {
		return
	}
	c := r.parents[parent]
	p, err := c.ParsePeriod(period)
	if err != nil {
		return
	}
	_, end, err := c.Bounds(p)
	if err != nil {
		return
	}
	if l := s.tags.find(t.Name); l != nil && now.Sub(end) > lineGrace {
		s.drop(l) // which hands back what is left
	}
	if now.Sub(end) > s.opts.RetireLines && len(r.over) < maxRetired {
		r.over = append(r.over, t.Name)
	}
}

// retire leaves a tombstone of each line. If a clock is wrong, this one or the
// one of a node that issues from it, the line is revived above its mark.
func (r *lineReview) retire(ctx context.Context, s *Service) {
	for _, name := range r.over {
		// The next review finds those that fail here.
		if _, err := s.store.DeleteTag(ctx, name); err == nil {
			s.observe(hapax.Event{Kind: hapax.EventTagDeleted, Tag: name})
		}
	}
}
