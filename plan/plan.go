// Package plan computes what a layout of snowflake numbers can carry, and finds
// layouts: for a rate, a number of nodes and a lifetime, and layouts whose numbers
// provably lie outside those in use already.
//
// A layout's numbers rise with the time in them. All that it can issue from a
// moment on therefore lies between the number with that moment and zeros, and the
// one with its last tick and every other field at its highest: its Span. Two
// spans that do not overlap are the proof that no number repeats.
package plan

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/hapax-id/hapax"
)

// ClockMargin is how far behind a clock may be for a proof to hold.
const ClockMargin = 24 * time.Hour

const (
	day  = 24 * time.Hour
	year = 365.2425 * 86400 // in seconds

	// kept is how long a node that crashed keeps its worker ID.
	kept = hapax.DefaultMaxGrant + hapax.DefaultLease

	intBits = 63 // of a positive int64
	jsBits  = 53 // of an integer that JavaScript's numbers hold
)

// Defaults of Wishes.
const (
	DefaultRate  = 1000
	DefaultNodes = 10
	DefaultYears = 20
)

// Wishes tell what a deployment needs. Zero fields have their default.
type Wishes struct {
	Rate   float64   // numbers a second at the peak, on all nodes together; default 1,000
	Nodes  int64     // nodes that issue at the same time; default 10
	Starts float64   // starts of a node a day, on all nodes together
	Years  float64   // how long the layout has to last; default 20
	JSSafe bool      // numbers stay below 2^53, where JavaScript is exact
	Now    time.Time // when issuing begins; default now
}

// WithDefaults returns the wishes with every unset field filled in, or an error
// that names the first field that is out of range.
func (w Wishes) WithDefaults() (Wishes, error) {
	if w.Now.IsZero() {
		w.Now = time.Now()
	}
	for _, f := range []struct {
		name     string
		value    *float64
		standard float64
		least    float64
		most     float64
	}{
		{"rate", &w.Rate, DefaultRate, 1e-6, 1e12},
		{"starts", &w.Starts, 0, 0, 1e9},
		{"years", &w.Years, DefaultYears, 1e-3, 5000},
	} {
		if *f.value == 0 {
			*f.value = f.standard
		}
		if !(*f.value >= f.least && *f.value <= f.most) {
			return w, &hapax.ValueError{Field: f.name, Value: *f.value, Allowed: fmt.Sprintf("%g to %g", f.least, f.most), Err: hapax.ErrInvalidArgument}
		}
	}
	if w.Nodes == 0 {
		w.Nodes = DefaultNodes
	}
	if w.Nodes < 1 || w.Nodes > 1<<40 {
		return w, &hapax.ValueError{Field: "nodes", Value: w.Nodes, Allowed: fmt.Sprintf("1 to %d", int64(1<<40)), Err: hapax.ErrInvalidArgument}
	}
	return w, nil
}

// Workers returns how many worker IDs are needed: one for each node, and those
// that nodes which crashed keep for a while, at worst one a start.
func (w Wishes) Workers() int64 {
	return w.Nodes + int64(math.Ceil(w.Starts*kept.Seconds()/day.Seconds()))
}

// A Load is what wishes ask of a layout.
type Load struct {
	PerWorker   float64       // numbers a second that a worker can issue
	InAll       float64       // numbers a second that all worker IDs together can issue
	PerNode     float64       // numbers a second that a node has to issue
	Workers     int64         // worker IDs there are
	Needed      int64         // worker IDs that are needed
	Starts      float64       // starts a day that the worker IDs beyond the nodes' allow, if each follows a crash
	Ends        time.Time     // when the layout's time ends
	Years       float64       // until then
	Disposable  float64       // years that the worker IDs last if every start uses one up; 0: no starts
	StoreWrites float64       // writes a second in the store, by all nodes
	Values      Span          // what the layout issues from now on, with the ClockMargin
	From        time.Time     // the moment from which Values hold
	Lacks       []string      // why the layout cannot carry the wishes; empty: it can
	Extension   time.Duration // how often a node asks the store for more time
}

// Carry tells how a layout carries the wishes. Constant fields are taken as 0.
// ErrTimeExhausted if the layout's time is over.
func Carry(l hapax.Layout, w Wishes) (Load, error) {
	w, err := w.WithDefaults()
	if err != nil {
		return Load{}, err
	}
	load := Load{
		PerWorker: l.PerSecond(), InAll: l.PerSecond() * float64(l.Workers()), PerNode: w.Rate / float64(w.Nodes),
		Workers: l.Workers(), Needed: w.Workers(), Ends: l.Ends(), Years: seconds(w.Now, l.Ends()) / year,
		From: w.Now.Add(-ClockMargin), Extension: hapax.DefaultMaxGrant * 2 / 3,
	}
	load.Starts = float64(max(0, l.Workers()-w.Nodes)) * day.Seconds() / kept.Seconds()
	// Half-way through a grant that reaches a third of MaxGrant on, the next one is
	// asked for, up to MaxGrant from then.
	load.StoreWrites = float64(w.Nodes)/load.Extension.Seconds() + 2*w.Starts/day.Seconds()
	if w.Starts > 0 {
		load.Disposable = float64(l.Workers()) / w.Starts * day.Seconds() / year
	}
	if load.Values, err = Values(l, load.From); err != nil {
		return load, err
	}
	for _, lack := range []struct {
		is   bool
		text string
	}{
		{load.PerNode > load.PerWorker, fmt.Sprintf("a node has to issue %.6g numbers a second, and a worker can issue %.6g", load.PerNode, load.PerWorker)},
		{load.Needed > load.Workers, fmt.Sprintf("%d worker IDs are needed, and there are %d", load.Needed, load.Workers)},
		{load.Years < w.Years, fmt.Sprintf("its time ends in %.2f years, and it is to last %g", load.Years, w.Years)},
		{w.JSSafe && load.Values.Max >= 1<<jsBits, "its numbers reach 2^53, beyond which JavaScript is not exact"},
	} {
		if lack.is {
			load.Lacks = append(load.Lacks, lack.text)
		}
	}
	return load, nil
}

// seconds returns how long it is from a to b, which may be too long for a
// time.Duration.
func seconds(a, b time.Time) float64 { return float64(b.UnixMilli()-a.UnixMilli()) / 1000 }

// A Span is the numbers from Min to Max, both included.
type Span struct{ Min, Max hapax.ID }

// Overlaps reports whether a number is in both spans.
func (s Span) Overlaps(o Span) bool { return s.Min <= o.Max && o.Min <= s.Max }

// Values returns the span of all that a layout can issue from a moment until its
// time ends, with its constant fields 0. ErrTimeExhausted if that is over.
func Values(l hapax.Layout, from time.Time) (Span, error) {
	tick, err := firstTick(l, from)
	if err != nil {
		return Span{}, err
	}
	return Span{ofTick(l, tick).Min, ofTick(l, l.EndTick()-1).Max}, nil
}

func firstTick(l hapax.Layout, from time.Time) (int64, error) {
	if from.Before(l.Epoch()) {
		from = l.Epoch()
	}
	return l.TickOf(from)
}

// ofTick returns the span of the numbers of one tick.
func ofTick(l hapax.Layout, tick int64) Span {
	var low, high hapax.Fields
	for f := range l.Fields() {
		least, most := int64(0), int64(0)
		switch f.Name {
		case hapax.FieldTime:
			least, most = tick, tick
		case hapax.FieldSequence, l.WorkerField():
			most = f.Max
		}
		low, high = append(low, hapax.Field{Name: f.Name, Value: least}), append(high, hapax.Field{Name: f.Name, Value: most})
	}
	lo, err := l.Compose(low)
	if err != nil {
		panic(err) // every field is there and in its range
	}
	hi, err := l.Compose(high)
	if err != nil {
		panic(err)
	}
	return Span{lo, hi}
}

// Collisions returns when a layout, from a moment on, issues numbers among those
// that are in use: from the first instant until just before the second. It is
// false if it never does.
func Collisions(l hapax.Layout, from time.Time, used Span) (first, until time.Time, ok bool) {
	lo, err := firstTick(l, from)
	if err != nil {
		return first, until, false
	}
	end := l.EndTick()
	// Both ends of a tick's span rise with the tick.
	begin := search(lo, end, func(tick int64) bool { return ofTick(l, tick).Max >= used.Min })
	over := search(lo, end, func(tick int64) bool { return ofTick(l, tick).Min > used.Max })
	if begin >= over {
		return first, until, false
	}
	return l.TimeOf(begin), l.TimeOf(over), true
}

// search returns the first tick of [lo, hi) for which f, which stays true once it
// is, is true; hi if there is none.
func search(lo, hi int64, f func(int64) bool) int64 {
	for lo < hi {
		if mid := lo + (hi-lo)/2; f(mid) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// bitsFor returns how many bits hold n values.
func bitsFor(n int64) int { return bits.Len64(uint64(n - 1)) }
