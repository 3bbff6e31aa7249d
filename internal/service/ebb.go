package service

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/health"
)

const (
	maxEbbing   = 100                    // tags that are waited for, those with the most requests first
	ebbSample   = 50 * time.Millisecond  // for which their rates are taken
	ebbInterval = 5 * time.Millisecond   // between looks at what is left
	ebbStill    = 250 * time.Millisecond // without a number, after which nobody asks for them any more
)

// An ebbing is a tag whose numbers in hand would be lost with a stop.
type ebbing struct {
	*line
	before hapax.SegmentStats
}

// ebbs has what is in hand used up before a stop.
type ebbs struct {
	*core

	tags *tagTable
}

// Ebb issues what is in hand of tags that other nodes use, too, and takes no more of them:
// below what another was granted since, nothing can be handed back. It waits for those
// that will be used up before the context's deadline at the rate of their requests, and
// no longer than there are some. The service is about to be closed, and serves on until
// then; requests beyond what is in hand are refused as by one that is closed.
func (eb *ebbs) Ebb(ctx context.Context) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return
	}
	all := eb.shared(ctx, eb.requested())
	if len(all) == 0 || !pause(ctx, ebbSample) {
		return
	}
	all = slices.DeleteFunc(all, func(e ebbing) bool {
		now := e.segment.Stats()
		rate := float64(now.Issued-e.before.Issued) / ebbSample.Seconds()
		if health.Lasts(float64(now.Remaining), rate) > time.Until(deadline) {
			return true
		}
		e.dry.Store(true) // before it is: its first refusal must not have it opened anew
		e.segment.Ebb(0)
		return false
	})
	left, still := int64(-1), time.Duration(0)
	for still < ebbStill {
		var now int64
		for _, e := range all {
			now += e.segment.Stats().Remaining
		}
		if now == 0 {
			return
		}
		if still += ebbInterval; now != left {
			left, still = now, 0
		}
		if !pause(ctx, ebbInterval) {
			return
		}
	}
}

// began notes that a call has some of its numbers. Where the line is used up before a stop
// it is opened anew for the rest all the same: the numbers that the call has would be lost
// with it, and no log would tell of them.
func (l *line) began(n int) {
	if n > 0 && l.dry.Load() {
		l.dry.Store(false)
	}
}

// Leave has Readiness say from now on that the service is not ready, and those of
// foreign systems beside it; they serve on.
func (s *Service) Leave() {
	if s.Monitor.Leave() {
		// It asks the store about each tag, for which a server that is about to leave does not wait.
		s.spawn(func() { s.slacken(s.life) })
	}
	for _, other := range s.opts.Beside {
		other.Leave()
	}
}

// ebbShare is the part of a second's numbers that a tag has in hand once it ebbs.
const ebbShare = 50

// slacken takes only as much at a time of tags that other nodes use, too, as is used at
// once: the service is about to be closed, and serves on meanwhile.
func (eb *ebbs) slacken(ctx context.Context) {
	busy := eb.requested()
	rates := map[*hapax.Segment]float64{}
	for _, l := range busy {
		rates[l.segment] = l.rate.PerSecond()
	}
	for _, e := range eb.shared(ctx, busy) {
		e.segment.Ebb(max(1, int64(rates[e.segment]/ebbShare)))
	}
}

// requested returns the segments that numbers are taken from, the busiest ones first.
func (eb *ebbs) requested() []*line {
	var busy []*line
	for l := range eb.tags.all() {
		if l.segment != nil && l.rate.PerSecond() > 0 && l.segment.Stats().Remaining > 0 {
			busy = append(busy, l)
		}
	}
	slices.SortFunc(busy, func(a, b *line) int { return cmp.Compare(b.rate.PerSecond(), a.rate.PerSecond()) })
	return busy[:min(len(busy), maxEbbing)]
}

// shared keeps those of which others were granted numbers above these.
func (eb *ebbs) shared(ctx context.Context, lines []*line) (all []ebbing) {
	for _, l := range lines {
		t, err := eb.store.Tag(ctx, l.name)
		if err != nil || ctx.Err() != nil {
			return all // without the store nothing goes back, and nothing is known
		}
		if t.Mark > l.segment.Mark() {
			all = append(all, ebbing{l, l.segment.Stats()})
		}
	}
	return all
}

// pause waits, and reports whether the context has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
