package health

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/watch"
)

// forever is how long what nobody uses lasts.
const forever = time.Duration(math.MaxInt64)

// rateWindow is over how long the present rate of a line is smoothed.
const rateWindow = 30 * time.Second

// A Rate is how fast numbers of a line are taken. It is derived from the line's count
// once in a while, so that issuing counts nothing.
type Rate struct {
	bits atomic.Uint64 // of a float64; this and the next are written by look, and read by all
	idle atomic.Bool   // nothing was taken since the look before

	Looked time.Time // when the last look was, or the line was opened; the fields from here on are look's alone
	issued int64     // at that look
	known  bool      // there was a look before
}

// look takes the count at a moment.
func (r *Rate) look(issued int64, now time.Time) {
	took := now.Sub(r.Looked).Seconds()
	if took <= 0 {
		return
	}
	if !r.known { // a few numbers in the first moments of a line are no rate
		took = max(took, LookEvery.Seconds())
	}
	of, before := float64(issued-r.issued)/took, r.PerSecond()
	if r.known {
		of = before + (of-before)*(1-math.Exp(-took/rateWindow.Seconds()))
	}
	if of < 1e-6 {
		of = 0 // smoothing never gets there by itself
	}
	r.bits.Store(math.Float64bits(of))
	r.idle.Store(issued == r.issued)
	r.issued, r.Looked, r.known = issued, now, true
}

// PerSecond returns the rate as of the last look.
func (r *Rate) PerSecond() float64 { return math.Float64frombits(r.bits.Load()) }

// Lasts returns how long so many numbers last at a rate a second.
func Lasts(numbers, perSecond float64) time.Duration {
	switch {
	case numbers <= 0:
		return 0
	// Half of it is far from the end of a Duration, where rounding would turn it negative.
	case perSecond <= 0 || numbers/perSecond > forever.Seconds()/2:
		return forever
	}
	return time.Duration(numbers / perSecond * float64(time.Second))
}

// inSeconds returns a duration for a metric; forever is infinite.
func inSeconds(d time.Duration) float64 {
	if d == forever {
		return math.Inf(1)
	}
	return d.Seconds()
}

// A budget is an api.Budget with the metrics' view of it.
type budget struct {
	api.Budget

	lasts    time.Duration
	labelled bool
}

func newBudget(kind, name string, lasts time.Duration, labelled bool) budget {
	return budget{api.Budget{Kind: kind, Name: name, Seconds: lasts.Seconds()}, lasts, labelled}
}

// budgets yields the budget of every tag and pool in use. One that gives no numbers away
// lasts forever, unless it has none while the store is away.
func (m *Monitor) budgets() iter.Seq[budget] {
	return func(yield func(budget) bool) {
		away := Trouble(m.opts.Store) != nil
		for t := range m.opts.Source.Tags() {
			if !t.IsSegment {
				continue
			}
			in := forever
			if left := t.Stats.Remaining; left > 0 || away || !t.Rate.idle.Load() {
				in = Lasts(float64(left), t.Rate.PerSecond())
			}
			if !yield(newBudget(api.KindTag, t.Name, in, t.Labelled)) {
				return
			}
		}
		for _, p := range m.opts.Source.Pools() {
			if !yield(newBudget(api.KindPool, p.Name, p.Stats.Remaining+p.Spare, p.Labelled)) {
				return
			}
		}
	}
}

// least returns the budget that ends first, nil if none does.
func least(all iter.Seq[budget]) *budget {
	first := budget{lasts: forever}
	for b := range all {
		// Of equals always the same one, lest its alarm be cleared and raised at every look.
		if b.lasts < first.lasts || b.lasts == first.lasts && b.lasts < forever && b.Name < first.Name {
			first = b
		}
	}
	if first.lasts == forever {
		return nil
	}
	return &first
}

// What a forecast is about.
const (
	endsLine    = "line"    // the numbers of a tag
	endsReader  = "reader"  // the numbers of a tag that its narrowest reader keeps
	endsLayout  = "layout"  // the time of a pool's layout
	endsWorkers = "workers" // the worker IDs that nobody uses
	endsStarts  = "starts"  // the worker IDs of a pool where each start uses one up
)

// Ending says what a forecast is about, in words.
func Ending(what string) string {
	switch what {
	case endsLine:
		return "the numbers"
	case endsReader:
		return "the numbers that its narrowest reader keeps"
	case endsLayout:
		return "the time of the layout"
	case endsWorkers:
		return "the free worker IDs"
	case endsStarts:
		return "the worker IDs that starts use up"
	}
	return what
}

// A forecast is an api.Forecast with the metrics' view of it.
type forecast struct {
	api.Forecast

	in       time.Duration
	labelled bool
}

// shownAhead is how near an end must be for Readiness to tell of it.
const shownAhead = 365 * 24 * time.Hour

// maxShown bounds how many forecasts Readiness tells.
const maxShown = 20

// forecasts tells when what cannot be refilled ends.
func (m *Monitor) forecasts(tell func(forecast)) {
	now := m.opts.Now()
	ends := func(what string, line watch.Line, labelled bool, in time.Duration) {
		f := forecast{api.Forecast{What: what, Kind: line.Kind, Name: line.Name}, in, labelled}
		if in < forever {
			f.Ends = now.Add(in)
		}
		tell(f)
	}
	for t := range m.opts.Source.Tags() {
		line, bits := watch.Tag(t.Name), m.opts.Tags[t.Name].ReaderBits
		switch {
		case t.IsSegment:
			if t.Last == 0 {
				continue
			}
			advance := t.Rate.PerSecond() * float64(max(1, t.Delta))
			ends(endsLine, line, t.Labelled, Lasts(float64(hapax.MaxMark-int64(t.Last)), advance))
			if bits > 0 {
				ends(endsReader, line, t.Labelled, Lasts(float64(int64(1)<<bits-1-int64(t.Last)), advance))
			}
		case t.Pool != "" && bits > 0:
			if at, ok := outgrows(m.opts.Source.Layout(t.Pool), m.opts.Pools[t.Pool].Fields, bits); ok {
				ends(endsReader, line, true, max(0, at.Sub(now)))
			}
		}
	}
	open := m.opts.Source.Pools()
	for name := range m.opts.Pools { // its time passes before anybody uses it
		if isOpen(open, name) {
			continue
		}
		if layout := m.opts.Source.Layout(name); !layout.IsZero() {
			ends(endsLayout, watch.Pool(name), true, max(0, layout.TimeOf(layout.EndTick()).Sub(now)))
		}
	}
	for _, p := range open {
		line := watch.Pool(p.Name)
		ends(endsLayout, line, p.Labelled, max(0, p.Stats.Ends.Sub(now)))
		if use := p.Use; use != nil {
			in := forever
			if use.taken > 0 { // that none is free while no more are taken is no end
				in = Lasts(float64(use.free), use.taken)
			}
			ends(endsWorkers, line, p.Labelled, in)
			if p.Starts != nil {
				ends(endsStarts, line, p.Labelled, Lasts(float64(*p.Starts), use.started))
			}
		}
	}
}

func isOpen(open []Pool, name string) bool {
	return slices.ContainsFunc(open, func(p Pool) bool { return p.Name == name })
}

// near returns up to so many forecasts that end within so long, the nearest end first.
func (m *Monitor) near(within time.Duration, most int) []forecast {
	var first []forecast
	m.forecasts(func(f forecast) {
		if f.in >= within {
			return
		}
		// Tags in use may be many: only the nearest ends are kept, in order.
		i, _ := slices.BinarySearchFunc(first, f, func(a, b forecast) int {
			return cmp.Or(cmp.Compare(a.in, b.in), cmp.Compare(a.What, b.What), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
		})
		if i < most {
			first = slices.Insert(first, i, f)
			first = first[:min(len(first), most)]
		}
	})
	return first
}

// An outlook is how long numbers can be issued, as of a moment.
type outlook struct {
	at        time.Time
	budget    *api.Budget
	forecasts []api.Forecast
}

// outlookAge is how old the outlook that Readiness tells may be: one looks at every line in
// use, and whoever reaches the server may ask for it.
const outlookAge = time.Second

// outlooks keeps the last outlook.
type outlooks struct {
	last    atomic.Pointer[outlook]
	looking atomic.Bool // somebody makes the next one; others get the last
}

// outlook returns how long numbers can be issued, as of a second ago at most.
func (m *Monitor) outlook() *outlook {
	last := m.outlooks.last.Load()
	// Without a last one each makes its own, since there is nothing to tell meanwhile.
	if last != nil && (time.Since(last.at) < outlookAge || !m.outlooks.looking.CompareAndSwap(false, true)) {
		return last
	}
	defer m.outlooks.looking.Store(false)
	next := &outlook{at: time.Now()}
	if b := least(m.budgets()); b != nil {
		next.budget = &b.Budget
	}
	for _, f := range m.near(shownAhead, maxShown) {
		next.forecasts = append(next.forecasts, f.Forecast)
	}
	m.outlooks.last.Store(next)
	return next
}

// outgrows returns from when on the numbers of a layout have more than so many bits;
// false if its time ends before.
func outgrows(layout hapax.Layout, constants map[string]int64, bits int) (time.Time, bool) {
	if layout.IsZero() {
		return time.Time{}, false
	}
	// The fields above the time are constants; those below it fill what the time leaves.
	var above int64
	for f := range layout.Fields() {
		if f.Name == hapax.FieldTime {
			tick := int64(0)
			if above >= 0 && above < int64(1)<<bits { // a version in the sign bit makes it negative
				tick = (int64(1)<<bits - above) >> f.Shift
			}
			return layout.TimeOf(tick), tick < layout.EndTick()
		}
		above += constants[f.Name] << f.Shift
	}
	return time.Time{}, false
}
