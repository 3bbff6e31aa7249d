package audit

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

const (
	secondsPerDay = 24 * 60 * 60
	maxWorkers    = 1 << 17 // that are counted apart
	denseWorkers  = 1 << 16 // that are found in an array
)

// A tally goes through ascending keys and counts. There is one for each span.
type tally struct {
	show    int
	numbers int64
	first   uint64
	last    uint64

	duplicates Findings
	misfits    Findings
	outside    Findings

	fields  *fields // nil: no layout
	days    map[int64]int64
	today   dayTicks
	slots   slots
	workers []workerTally
	others  int64

	granted *granted // nil: no grants
	byNode  []int64
}

// fields are where a layout keeps time and worker.
type fields struct {
	layout     hapax.Layout
	bits       int
	time       hapax.BitField
	worker     hapax.BitField
	hasWorker  bool
	workerMask uint64
}

func newFields(l hapax.Layout) *fields {
	f := &fields{layout: l}
	for field := range l.Fields() {
		f.bits = max(f.bits, field.Shift+field.Bits)
		switch field.Name {
		case hapax.FieldTime:
			f.time = field
		case l.WorkerField():
			f.worker, f.hasWorker = field, true
			f.workerMask = uint64(field.Max)
		}
	}
	return f
}

// dayTicks are the ticks of a day: those before until, of the day that began with
// from.
type dayTicks struct {
	from, until int64
	numbers     int64
	day         int64
}

// slots gives each worker that occurs the next place in an array.
type slots struct {
	dense  []int32 // 0: none yet, else the place + 1
	sparse map[int64]int32
}

// A workerTally counts a worker's numbers and walks along its grants.
type workerTally struct {
	worker  int64
	numbers int64
	grants  walk
}

// A walk looks ascending values up in stretches.
type walk struct {
	stretches []stretch
	i         int
}

// find returns the stretch that holds v, or nil.
func (w *walk) find(v int64) *stretch {
	if w.i < len(w.stretches) {
		if s := &w.stretches[w.i]; s.lo <= v && v < s.hi {
			return s
		}
	}
	// Fields above the time make a worker's ticks begin anew.
	w.i, _ = slices.BinarySearchFunc(w.stretches, v, func(s stretch, v int64) int {
		if s.hi <= v {
			return -1
		}
		return 1
	})
	if w.i < len(w.stretches) && w.stretches[w.i].lo <= v {
		return &w.stretches[w.i]
	}
	return nil
}

func newTally(show int, l hapax.Layout, g *granted) *tally {
	t := &tally{show: show, granted: g}
	if g != nil {
		t.byNode = make([]int64, len(g.nodes))
	}
	if !l.IsZero() {
		t.fields = newFields(l)
		t.days = map[int64]int64{}
		if l.Workers() <= denseWorkers {
			t.slots.dense = make([]int32, l.Workers())
		} else {
			t.slots.sparse = map[int64]int32{}
		}
	} else {
		t.workers = []workerTally{{worker: -1}}
		if g != nil {
			t.workers[0].grants.stretches = g.workers[-1]
		}
	}
	return t
}

// take counts keys, none of which is below those before it.
func (t *tally) take(keys []uint64) {
	if len(keys) == 0 {
		return
	}
	if t.numbers == 0 {
		t.first = keys[0]
		// Another one, lest the first be taken for a repetition.
		t.last = ^keys[0]
	}
	t.numbers += int64(len(keys))
	last := t.last
	for _, k := range keys {
		if k == last {
			t.duplicates.add(idOf(k), t.show)
		}
		last = k
	}
	t.last = last
	switch {
	case t.fields != nil:
		for _, k := range keys {
			t.decode(k)
		}
	case t.granted != nil:
		for _, k := range keys {
			t.hold(&t.workers[0], int64(idOf(k)), k)
		}
	}
}

// decode counts a number by its fields.
func (t *tally) decode(key uint64) {
	f := t.fields
	id := uint64(idOf(key))
	tick := int64(id >> f.time.Shift & (1<<f.time.Bits - 1))
	if f.bits < 64 && id>>f.bits != 0 || tick > f.time.Max {
		t.misfits.add(idOf(key), t.show)
		return
	}
	if tick < t.today.from || tick >= t.today.until {
		t.turn(tick)
	}
	t.today.numbers++
	worker := int64(0)
	if f.hasWorker {
		worker = int64(id >> f.worker.Shift & f.workerMask)
	}
	w := t.worker(worker)
	if w == nil {
		t.others++
		w = &workerTally{worker: worker}
		if t.granted != nil {
			w.grants.stretches = t.granted.workers[worker]
		}
	}
	w.numbers++
	if t.granted != nil {
		t.hold(w, tick, key)
	}
}

// hold looks a value up among the grants.
func (t *tally) hold(w *workerTally, value int64, key uint64) {
	if s := w.grants.find(value); s != nil {
		t.byNode[s.node]++
	} else {
		t.outside.add(idOf(key), t.show)
	}
}

// turn goes over to the day that a tick lies in.
func (t *tally) turn(tick int64) {
	if t.today.numbers > 0 {
		t.days[t.today.day] += t.today.numbers
	}
	l := t.fields.layout
	unix := l.TimeOf(tick).Unix()
	d := dayTicks{day: unix / secondsPerDay}
	if unix%secondsPerDay < 0 {
		d.day--
	}
	// The first tick of a day is the first that begins in it.
	begin := func(day int64) int64 {
		since := time.Unix(day*secondsPerDay, 0).UnixMilli() - l.Epoch().UnixMilli()
		unit := l.Unit().Milliseconds()
		return max((since+unit-1)/unit, 0)
	}
	d.from, d.until = begin(d.day), max(begin(d.day+1), tick+1)
	t.today = d
}

// worker returns the tally of a worker, or nil where there are too many.
func (t *tally) worker(id int64) *workerTally {
	var slot int32
	if t.slots.dense != nil {
		slot = t.slots.dense[id]
	} else {
		slot = t.slots.sparse[id]
	}
	if slot > 0 {
		return &t.workers[slot-1]
	}
	if len(t.workers) == maxWorkers {
		return nil
	}
	w := workerTally{worker: id}
	if t.granted != nil {
		w.grants.stretches = t.granted.workers[id]
	}
	t.workers = append(t.workers, w)
	if t.slots.dense != nil {
		t.slots.dense[id] = int32(len(t.workers))
	} else {
		t.slots.sparse[id] = int32(len(t.workers))
	}
	return &t.workers[len(t.workers)-1]
}

// fill writes what the tallies of ascending spans counted into the report.
func (r *Report) fill(tallies []*tally, show int) {
	days, workers := map[int64]int64{}, map[int64]int64{}
	var byNode []int64
	for _, t := range tallies {
		if t.numbers == 0 {
			continue
		}
		r.Numbers += t.numbers
		if r.Min == nil {
			r.Min = new(idOf(t.first))
		}
		r.Max = new(idOf(t.last))
		r.Duplicates.join(t.duplicates, show)
		if t.granted != nil {
			r.Outside.join(t.outside, show)
			if byNode == nil {
				byNode = make([]int64, len(t.byNode))
			}
			for i, n := range t.byNode {
				byNode[i] += n
			}
		}
		if t.fields == nil {
			continue
		}
		r.Misfits.join(t.misfits, show)
		r.Others += t.others
		t.days[t.today.day] += t.today.numbers
		for day, n := range t.days {
			days[day] += n
		}
		for _, w := range t.workers {
			if !t.fields.hasWorker {
				break
			}
			workers[w.worker] += w.numbers
		}
	}
	r.Distinct = r.Numbers - r.Duplicates.Times
	// So far the first of each was not counted.
	r.Duplicates.Times += r.Duplicates.Numbers
	for i := range r.Duplicates.List {
		r.Duplicates.List[i].Times++
	}
	for _, day := range slices.Sorted(maps.Keys(days)) {
		if days[day] > 0 {
			r.Days = append(r.Days, DayCount{dayText(day), days[day]})
		}
	}
	for _, worker := range slices.Sorted(maps.Keys(workers)) {
		r.Workers = append(r.Workers, WorkerCount{worker, workers[worker]})
	}
	for i, n := range byNode {
		if n > 0 {
			r.Nodes = append(r.Nodes, NodeCount{tallies[0].granted.nodes[i], n})
		}
	}
	slices.SortFunc(r.Nodes, func(a, b NodeCount) int { return cmp.Compare(a.Node, b.Node) })
}
