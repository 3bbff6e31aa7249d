package codec

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// An Issuer issues texts. It is safe for concurrent use.
type Issuer struct {
	codec *Codec
	open  func(context.Context, Period) (hapax.Issuer, error)

	mu     sync.Mutex // guards the fields below; never held while waiting
	line   *issuerLine
	closed bool
}

// An issuerLine is the issuer of one period, which its first user opens.
type issuerLine struct {
	period Period
	ready  chan struct{} // closed when the fields below are set
	issuer hapax.Issuer
	err    error
	ended  bool // nothing came of it, and the context of the opener had ended, or it panicked
}

// tries is how often a text is asked for anew when the period ends under it.
const tries = 3

// Of returns an issuer of texts. The function opens the line of a period, which
// must be the same numbers for the same period and no others, above all that were
// issued of it: as hapax.NewSegment does of a tag that is named after the period. A
// codec without periods has one, the zero [Period].
//
// The period is the one that the wall clock says. When it changes, the line of the
// one before is closed.
func Of(c *Codec, open func(context.Context, Period) (hapax.Issuer, error)) *Issuer {
	return &Issuer{codec: c, open: open}
}

// Next issues one number and returns its text. Errors are those of opening, of the
// issuer, and [ErrRange] where the codec cannot show the number.
func (i *Issuer) Next(ctx context.Context) (string, error) {
	for try := 1; ; try++ {
		line, err := i.current(ctx)
		if err != nil {
			return "", err
		}
		id, err := line.issuer.Next(ctx)
		if errors.Is(err, hapax.ErrClosed) && try < tries {
			continue // its period ended
		}
		if err != nil {
			return "", err
		}
		text, err := i.codec.AppendPeriod(nil, line.period, id)
		return string(text), err
	}
}

// current returns the line of the current period.
func (i *Issuer) current(ctx context.Context) (*issuerLine, error) {
	i.mu.Lock()
	p, err := i.codec.Period(time.Now()) // under the lock, so that no call is late with a period
	if i.closed {
		err = hapax.ErrClosed
	}
	if err != nil {
		i.mu.Unlock()
		return nil, err
	}
	line := i.line
	if line != nil && line.period == p {
		i.mu.Unlock()
		select {
		case <-line.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if line.ended && ctx.Err() == nil { // its opener could not go on, and this caller can
			return i.current(ctx)
		}
		return line, line.err
	}
	next := &issuerLine{period: p, ready: make(chan struct{})}
	i.line = next
	i.mu.Unlock()
	// After the new line is ready, so that no caller waits for the old one.
	defer func() { _ = line.close(ctx) }() // what it cannot hand back is a gap
	i.begin(ctx, next)
	return next, next.err
}

// begin opens a line, or has the next call try again.
func (i *Issuer) begin(ctx context.Context, next *issuerLine) {
	next.ended = true // also where the function panics: it answers nobody then
	defer func() {
		if next.issuer == nil {
			// Before waiting callers are woken, one of which opens the line anew.
			i.mu.Lock()
			if i.line == next {
				i.line = nil
			}
			i.mu.Unlock()
		}
		close(next.ready)
	}()
	// Under the context of the first caller: where that ends, another one opens the line.
	issuer, err := i.open(ctx, next.period)
	if next.err = err; err == nil {
		next.issuer = issuer
	}
	next.ended = err != nil && ctx.Err() != nil
}

// close closes the line's issuer, once it is there.
func (l *issuerLine) close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	select {
	case <-l.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.issuer == nil { // it was not opened
		return nil
	}
	return l.issuer.Close(ctx)
}

// Close closes the line that is in use. It is idempotent; Next fails with
// hapax.ErrClosed from then on.
func (i *Issuer) Close(ctx context.Context) error {
	i.mu.Lock()
	line := i.line
	i.closed, i.line = true, nil
	i.mu.Unlock()
	return line.close(ctx)
}
