package service

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

// A rate is how fast numbers of a line are taken. It is derived from the line's count
// once in a while, so that issuing counts nothing.
type rate struct {
	perSecond atomic.Uint64 // the bits of a float64; this and the next are written by look, and read by all
	idle      atomic.Bool   // nothing was taken since the look before

	issued int64     // at the last look; the fields from here on are look's alone
	looked time.Time // when that was, or when the line was opened
	known  bool      // there was a look before
}

// look takes the count at a moment.
func (r *rate) look(issued int64, now time.Time) {
	took := now.Sub(r.looked).Seconds()
	if took <= 0 {
		return
	}
	if !r.known { // a few numbers in the first moments of a line are no rate
		took = max(took, lookEvery.Seconds())
	}
	of, before := float64(issued-r.issued)/took, r.now()
	if r.known {
		of = before + (of-before)*(1-math.Exp(-took/rateWindow.Seconds()))
	}
	if of < 1e-6 {
		of = 0 // smoothing never gets there by itself
	}
	r.perSecond.Store(math.Float64bits(of))
	r.idle.Store(issued == r.issued)
	r.issued, r.looked, r.known = issued, now, true
}

// now returns the rate as of the last look, in numbers a second.
func (r *rate) now() float64 { return math.Float64frombits(r.perSecond.Load()) }

// lasts returns how long so many numbers last at a rate a second.
func lasts(numbers, perSecond float64) time.Duration {
	switch {
	case numbers <= 0:
		return 0
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

// A sparer has granted time that it has not handed to the issuer yet.
type sparer interface{ Spare() time.Duration }

// budgets yields the budget of every tag and pool in use. One that gives no numbers away
// lasts forever, unless it has none while the store is away.
func (hl *health) budgets() iter.Seq[budget] {
	return func(yield func(budget) bool) {
		away := hl.trouble() != nil
		for l := range hl.tags.all() {
			if l.segment == nil {
				continue
			}
			in := forever
			if left := l.segment.Stats().Remaining; left > 0 || away || !l.rate.idle.Load() {
				in = lasts(float64(left), l.rate.now())
			}
			if !yield(newBudget(api.KindTag, l.name, in, l.labelled)) {
				return
			}
		}
		for _, p := range hl.openPools() {
			in := p.issuer.Load().Stats().Remaining
			if keeper, ok := p.workers.(sparer); ok {
				in += keeper.Spare()
			}
			if !yield(newBudget(api.KindPool, p.name, in, p.labelled)) {
				return
			}
		}
	}
}

// least returns the budget that ends first, nil if none does.
func least(all iter.Seq[budget]) *budget {
	first := budget{lasts: forever}
	for b := range all {
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
func (hl *health) forecasts(tell func(forecast)) {
	now := hl.now()
	ends := func(what string, line watch.Line, labelled bool, in time.Duration) {
		f := forecast{api.Forecast{What: what, Kind: line.Kind, Name: line.Name}, in, labelled}
		if in < forever {
			f.Ends = now.Add(in)
		}
		tell(f)
	}
	for l := range hl.tags.all() {
		line, bits := watch.Tag(l.name), hl.opts.Tags[l.name].ReaderBits
		switch {
		case l.segment != nil:
			last, ok := l.segment.Last()
			if !ok {
				continue
			}
			advance := l.rate.now() * float64(max(1, l.delta))
			ends(endsLine, line, l.labelled, lasts(float64(hapax.MaxMark-int64(last)), advance))
			if bits > 0 {
				ends(endsReader, line, l.labelled, lasts(float64(int64(1)<<bits-1-int64(last)), advance))
			}
		case l.pool != "" && bits > 0:
			if at, ok := outgrows(hl.layoutKnown(l.pool), hl.opts.Pools[l.pool].Fields, bits); ok {
				ends(endsReader, line, true, max(0, at.Sub(now)))
			}
		}
	}
	open := hl.openPools()
	for name := range hl.opts.Pools { // its time passes before anybody uses it
		if slices.ContainsFunc(open, func(p *pool) bool { return p.name == name }) {
			continue
		}
		if layout := hl.layoutKnown(name); !layout.IsZero() {
			ends(endsLayout, watch.Pool(name), true, max(0, layout.TimeOf(layout.EndTick()).Sub(now)))
		}
	}
	for _, p := range open {
		line := watch.Pool(p.name)
		ends(endsLayout, line, p.labelled, max(0, p.issuer.Load().Stats().Ends.Sub(now)))
		if use := p.use.Load(); use != nil {
			in := forever
			if use.taken > 0 { // that none is free while no more are taken is no end
				in = lasts(float64(use.free), use.taken)
			}
			ends(endsWorkers, line, p.labelled, in)
			if choice := p.choice.Load(); choice != nil && choice.Counted {
				ends(endsStarts, line, p.labelled, lasts(float64(choice.Left), use.started))
			}
		}
	}
}

// near returns up to so many forecasts that end within so long, the nearest end first.
func (hl *health) near(within time.Duration, most int) []forecast {
	var first []forecast
	hl.forecasts(func(f forecast) {
		if f.in >= within {
			return
		}
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
func (hl *health) outlook() *outlook {
	last := hl.outlooks.last.Load()
	if last != nil && (time.Since(last.at) < outlookAge || !hl.outlooks.looking.CompareAndSwap(false, true)) {
		return last
	}
	defer hl.outlooks.looking.Store(false)
	next := &outlook{at: time.Now()}
	if b := least(hl.budgets()); b != nil {
		next.budget = &b.Budget
	}
	for _, f := range hl.near(shownAhead, maxShown) {
		next.forecasts = append(next.forecasts, f.Forecast)
	}
	hl.outlooks.last.Store(next)
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

// workerUse is how a pool's worker IDs are used up.
type workerUse struct {
	free    int64   // worker IDs that nobody uses
	taken   float64 // how many fewer they get in a second
	started float64 // how many were used for the first or another time in a second
}

const (
	// useWindow is over how long the starts of a pool are counted.
	useWindow = 7 * 24 * time.Hour

	// The free worker IDs are counted every takenEvery, over takenWindow. Nodes take some
	// whenever a fleet is started or grows: only where the free ones got fewer in
	// takenTimes of these counts, and by at least one of takenShare, is that a rate.
	takenEvery  = 10 * time.Minute
	takenWindow = 24 * time.Hour
	takenTimes  = 3
	takenShare  = 24
)

// freeCount is how many worker IDs of a pool nobody used at a time.
type freeCount struct {
	at   time.Duration // of the clock that only goes forward
	free int64
}

// used notes how many worker IDs of the pool are in which state, as of now and of a clock
// that only goes forward.
func (p *pool) used(statuses []api.WorkerStatus, free int64, now time.Time, elapsed time.Duration) {
	use := workerUse{free: free, taken: p.taken(freeCount{elapsed, free})}
	oldest := now.Add(-time.Hour)
	for _, st := range statuses {
		if last := st.Until; last.After(now.Add(-useWindow)) {
			use.started++
			if last.Before(oldest) {
				oldest = last
			}
		}
	}
	use.started /= now.Sub(oldest).Seconds()
	p.use.Store(&use)
}

// taken returns how many fewer worker IDs are free with each second.
func (p *pool) taken(last freeCount) float64 {
	if n := len(p.counts); n == 0 || last.at-p.counts[n-1].at >= takenEvery {
		p.counts = append(p.counts, last)
	}
	for last.at-p.counts[0].at > takenWindow {
		p.counts = p.counts[1:]
	}
	times := 0
	for i, c := range p.counts[1:] {
		if c.free < p.counts[i].free {
			times++
		}
	}
	first := p.counts[0]
	gone := first.free - last.free
	if times < takenTimes || gone*takenShare < last.free {
		return 0
	}
	return float64(gone) / (last.at - first.at).Seconds()
}
