package plan

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/hapax-id/hapax"
)

// units are the lengths of a tick that are proposed, the best first: short ticks
// keep numbers close to the clock.
var units = []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// Propose returns a layout that carries the wishes, with an epoch just past.
// ErrInvalidArgument if 63 bits, or the 53 of JavaScript, cannot.
func Propose(w Wishes) (hapax.Layout, error) {
	w, err := w.WithDefaults()
	if err != nil {
		return hapax.Layout{}, err
	}
	if l, ok := w.fit(w.width(), recently); ok {
		return l, nil
	}
	return hapax.Layout{}, w.tooMuch(w.width(), "")
}

// Disjoint returns a layout that carries the wishes and whose numbers, as long as
// no clock is more than [ClockMargin] behind and until its time ends, all lie
// outside of those in use: above them if there is room, so that new numbers are
// higher than old ones, or else below. ErrInvalidArgument if neither fits.
func Disjoint(w Wishes, used Span) (hapax.Layout, error) {
	w, err := w.WithDefaults()
	if err != nil {
		return hapax.Layout{}, err
	}
	if used.Min > used.Max {
		return hapax.Layout{}, &hapax.ValueError{Field: "min", Value: used.Min, Allowed: fmt.Sprintf("up to max, which is %d", used.Max), Err: hapax.ErrInvalidArgument}
	}
	below := 0 // the widest numbers that are all lower
	if used.Min > 0 {
		below = min(w.width(), bits.Len64(uint64(used.Min))-1)
	}
	l, ok := w.fit(w.width(), func(width, timeBits int) int64 {
		if used.Max < 0 {
			return 0
		}
		return int64(used.Max)>>(width-timeBits) + 1
	})
	if !ok {
		l, ok = w.fit(below, recently)
	}
	if !ok {
		return l, w.tooMuch(below, fmt.Sprintf(" (numbers below %d have no more, and above %d there is no room either)", used.Min, used.Max))
	}
	values, err := Values(l, w.Now.Add(-ClockMargin))
	if err == nil && values.Overlaps(used) {
		err = fmt.Errorf("%w: the layout %s issues %d to %d, which are not outside of %d to %d", hapax.ErrInternal, l, values.Min, values.Max, used.Min, used.Max)
	}
	return l, err
}

// recently puts the epoch just past.
func recently(int, int) int64 { return 0 }

// width returns how many bits a number may have.
func (w Wishes) width() int {
	if w.JSSafe {
		return jsBits
	}
	return intBits
}

// fit returns the layout of that width with the shortest tick, and with the bits that are
// left over given to sequence and worker. The tick in which issuing begins, for
// a width and its share of time bits, is what begin says.
func (w Wishes) fit(width int, begin func(width, timeBits int) int64) (hapax.Layout, bool) {
	for _, unit := range units {
		worker, sequence := w.least(unit)
		for timeBits := 1; timeBits <= width-worker-sequence; timeBits++ {
			first := begin(width, timeBits)
			last := first + w.ticks(unit)
			if first < 0 || timeBits > 62 || last > 1<<timeBits {
				continue
			}
			spare := width - timeBits - worker - sequence
			sequence := min(sequence+(spare+1)/2, 62-timeBits)
			if l, ok := w.layout(timeBits, width-timeBits-sequence, sequence, unit, first); ok {
				return l, true
			}
		}
	}
	return hapax.Layout{}, false
}

// least returns the fewest bits of worker and sequence that carry the wishes.
func (w Wishes) least(unit time.Duration) (worker, sequence int) {
	perTick := math.Ceil(w.Rate / float64(w.Nodes) * unit.Seconds())
	return max(1, bitsFor(w.Workers())), max(1, bitsFor(int64(perTick)))
}

// ticks returns how many ticks the wishes need, and two days more: for the clock
// that is behind, and for an epoch at midnight.
func (w Wishes) ticks(unit time.Duration) int64 {
	return int64(math.Ceil((w.Years*year + 2*day.Seconds()) / unit.Seconds()))
}

// layout returns the layout in which tick first is a day or two ago.
func (w Wishes) layout(timeBits, workerBits, sequenceBits int, unit time.Duration, first int64) (hapax.Layout, bool) {
	start := w.Now.Add(-ClockMargin).UTC().Truncate(unit)
	if first == 0 {
		start = start.Truncate(day)
	}
	back := first * unit.Milliseconds()
	if first > 0 && back/first != unit.Milliseconds() {
		return hapax.Layout{}, false
	}
	epoch := start.UnixMilli() - back
	if workerBits < 1 || epoch > start.UnixMilli() {
		return hapax.Layout{}, false
	}
	l, err := hapax.ParseLayout(fmt.Sprintf("time:%d,worker:%d,sequence:%d,unit=%s,epoch=%dms", timeBits, workerBits, sequenceBits, unit, epoch))
	return l, err == nil // else the epoch lies before the year 1
}

// tooMuch tells which bits are lacking, and why there are no more.
func (w Wishes) tooMuch(width int, why string) error {
	unit := units[len(units)-1]
	worker, sequence := w.least(unit)
	timeBits := bitsFor(w.ticks(unit))
	return &hapax.ValueError{
		Field: "the width of the numbers", Value: timeBits + worker + sequence,
		Allowed: fmt.Sprintf("%d bits%s, and these wishes need %d for the time in seconds, %d for the worker and %d for the sequence; wish for fewer years, nodes or numbers a second",
			width, why, timeBits, worker, sequence),
		Err: hapax.ErrInvalidArgument,
	}
}
