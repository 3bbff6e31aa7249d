package plan

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 8_000_000, time.UTC)

func mustLayout(t testing.TB, text string) hapax.Layout {
	t.Helper()
	l, err := hapax.ParseLayout(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// anyID draws a number that the layout can issue from a moment until its end.
func anyID(t *rapid.T, l hapax.Layout, from time.Time) hapax.ID {
	first, err := l.TickOf(from)
	if err != nil {
		t.Fatal(err)
	}
	var fields hapax.Fields
	for f := range l.Fields() {
		v := rapid.Int64Range(0, f.Max)
		switch f.Name {
		case hapax.FieldTime:
			v = rapid.Int64Range(first, l.EndTick()-1)
		case hapax.FieldSequence, l.WorkerField():
		default:
			v = rapid.Just(int64(0))
		}
		fields = append(fields, hapax.Field{Name: f.Name, Value: v.Draw(t, f.Name)})
	}
	id, err := l.Compose(fields)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Every number that a built-in layout can issue lies in its span, and both ends
// of the span are such numbers.
func TestValuesHoldAllNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := hapax.ParseLayout(rapid.SampledFrom(hapax.Layouts()).Draw(t, "layout"))
		if err != nil {
			t.Fatal(err)
		}
		from := l.Epoch().Add(time.Duration(rapid.Int64Range(0, int64(8*365*day)).Draw(t, "from")))
		span, err := Values(l, from)
		if err != nil {
			t.Fatal(err)
		}
		if id := anyID(t, l, from); id < span.Min || id > span.Max {
			t.Errorf("%d lies outside of %v", id, span)
		}
		tick, _ := l.TickOf(from)
		lowest, errLow := l.Parse(span.Min)
		highest, errHigh := l.Parse(span.Max)
		if first, _ := lowest.Get(hapax.FieldTime); errLow != nil || first != tick {
			t.Errorf("the span begins with tick %d, error %v; want %d", first, errLow, tick)
		}
		if last, _ := highest.Get(hapax.FieldTime); errHigh != nil || last != l.EndTick()-1 {
			t.Errorf("the span ends with tick %d, error %v; want %d", last, errHigh, l.EndTick()-1)
		}
	})
}

func drawWishes(t *rapid.T) Wishes {
	return Wishes{
		Rate:   math.Exp(rapid.Float64Range(0, 16).Draw(t, "ln rate")),
		Nodes:  rapid.Int64Range(1, 2000).Draw(t, "nodes"),
		Starts: rapid.Float64Range(0, 5000).Draw(t, "starts"),
		Years:  rapid.Float64Range(0.5, 80).Draw(t, "years"),
		JSSafe: rapid.Bool().Draw(t, "js"),
		Now:    now.Add(time.Duration(rapid.Int64Range(0, int64(3*365*day)).Draw(t, "now"))),
	}
}

// A layout that is proposed carries the wishes.
func TestProposeCarries(t *testing.T) {
	proposed := 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWishes(t)
		l, err := Propose(w)
		if err != nil {
			if !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Errorf("error is %v", err)
			}
			return
		}
		proposed++
		if load, err := Carry(l, w); err != nil || len(load.Lacks) > 0 {
			t.Errorf("%s: %v, error %v", l, load.Lacks, err)
		}
	})
	if proposed == 0 {
		t.Error("nothing was ever proposed")
	}
}

// Whatever is in use, no number that a proposed layout can issue from now until
// its end is among it, and the layout carries the wishes.
func TestDisjointIsDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWishes(t)
		number := func(label string) int64 { // as likely to be short as long
			n := rapid.Int64Range(0, math.MaxInt64).Draw(t, label) >> rapid.IntRange(0, 62).Draw(t, "bits")
			return n * rapid.SampledFrom([]int64{1, 1, 1, -1}).Draw(t, "sign")
		}
		a, b := number("a"), number("b")
		if rapid.Bool().Draw(t, "up to the end") {
			b = math.MaxInt64 - b>>40
		}
		used := Span{hapax.ID(min(a, b)), hapax.ID(max(a, b))}
		l, err := Disjoint(w, used)
		if err != nil {
			if !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Errorf("error is %v", err)
			}
			return
		}
		from := w.Now.Add(-ClockMargin)
		for range 10 {
			id := anyID(t, l, from)
			if id >= used.Min && id <= used.Max {
				t.Fatalf("%s can issue %d, which is among %v", l, id, used)
			}
		}
		if _, _, ok := Collisions(l, from, used); ok {
			t.Errorf("%s collides with %v", l, used)
		}
		if load, err := Carry(l, w); err != nil || len(load.Lacks) > 0 {
			t.Errorf("%s: %v, error %v", l, load.Lacks, err)
		}
	})
}

// Room is found on either side of the numbers in use.
func TestDisjointOnEitherSide(t *testing.T) {
	w := Wishes{Rate: 1000, Nodes: 100, Years: 10, Now: now}
	for _, used := range []Span{{0, 1 << 40}, {1 << 61, math.MaxInt64}} {
		l, err := Disjoint(w, used)
		if err != nil {
			t.Errorf("%v in use: %v", used, err)
			continue
		}
		if first, last, ok := Collisions(l, now.Add(-ClockMargin), used); ok {
			t.Errorf("%v in use: %s collides from %v to %v", used, l, first, last)
		}
	}
}

// Collisions finds the instants at which numbers are among those in use, as
// going through the ticks does.
func TestCollisions(t *testing.T) {
	small := mustLayout(t, "a:1,time:7,worker:2,sequence:3,unit=1h,epoch=2026-01-01T00:00:00Z")
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64Range(-10, 1<<12).Draw(t, "a"), rapid.Int64Range(-10, 1<<12+10).Draw(t, "b")
		used := Span{hapax.ID(min(a, b)), hapax.ID(max(a, b))}
		start := rapid.Int64Range(0, 127).Draw(t, "start")
		var ticks []int64
		for tick := start; tick < small.EndTick(); tick++ {
			if ofTick(small, tick).Overlaps(used) {
				ticks = append(ticks, tick)
			}
		}
		first, until, ok := Collisions(small, small.TimeOf(start), used)
		switch {
		case ok != (len(ticks) > 0):
			t.Errorf("collisions: %v; the ticks are %v", ok, ticks)
		case ok && (!first.Equal(small.TimeOf(ticks[0])) || !until.Equal(small.TimeOf(ticks[len(ticks)-1]+1))):
			t.Errorf("collisions from %v until %v; the ticks are %v", first, until, ticks)
		}
	})
}

// A uid-generator deployment of 2019 whose 28 time bits ran out.
func TestWayOutOfUIDGenerator(t *testing.T) {
	old := mustLayout(t, hapax.LayoutUIDGenerator28)
	if want := time.Date(2024, 11, 20, 13, 24, 16, 0, time.UTC); !old.Ends().Equal(want) {
		t.Fatalf("its time ends at %v, want %v", old.Ends(), want)
	}
	used, err := Values(old, time.Date(2019, 6, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2024, 11, 21, 0, 0, 0, 0, time.UTC)

	copied := mustLayout(t, "time:30,worker:22,sequence:11,unit=1s,epoch=2021-01-20T00:00:00+08:00")
	first, until, ok := Collisions(copied, at, used)
	if !ok || until.Before(at.AddDate(1, 0, 0)) {
		t.Errorf("the layout that is widely copied collides from %v until %v, %v", first, until, ok)
	}
	load, err := Carry(copied, Wishes{Now: at})
	if err != nil || !load.Values.Overlaps(used) {
		t.Errorf("its span is %v, error %v; want one that overlaps %v", load.Values, err, used)
	}

	w := Wishes{Rate: 100_000, Nodes: 100, Starts: 1000, Years: 30, Now: at}
	l, err := Disjoint(w, used)
	if err != nil {
		t.Fatal(err)
	}
	span, err := Values(l, at.Add(-ClockMargin))
	if err != nil || span.Max >= used.Min || span.Min < 0 {
		t.Errorf("%s issues %v, error %v; want all below %d", l, span, err, used.Min)
	}
	if _, err := Values(old, at); !errors.Is(err, hapax.ErrTimeExhausted) {
		t.Errorf("the old layout goes on: %v", err)
	}
}

func TestProposals(t *testing.T) {
	for name, c := range map[string]struct {
		wishes Wishes
		check  func(l hapax.Layout) bool
	}{
		"defaults":            {Wishes{}, func(l hapax.Layout) bool { return l.Unit() == time.Millisecond }},
		"JavaScript":          {Wishes{JSSafe: true}, func(l hapax.Layout) bool { s, err := Values(l, now); return err == nil && s.Max < 1<<53 }},
		"JavaScript, crowded": {Wishes{JSSafe: true, Nodes: 2000, Years: 100}, func(l hapax.Layout) bool { return l.Unit() > time.Millisecond }},
		"one node":            {Wishes{Nodes: 1, Rate: 1e6, Years: 100}, func(l hapax.Layout) bool { return l.PerSecond() >= 1e6 }},
	} {
		c.wishes.Now = now
		if l, err := Propose(c.wishes); err != nil || !c.check(l) {
			t.Errorf("%s: %s, error %v", name, l, err)
		}
	}
	for name, w := range map[string]Wishes{
		"too much":        {JSSafe: true, Nodes: 1 << 30, Rate: 1e10, Years: 100},
		"negative rate":   {Rate: -1},
		"no number":       {Rate: math.NaN()},
		"infinite":        {Starts: math.Inf(1)},
		"too many years":  {Years: 1e6},
		"negative nodes":  {Nodes: -1},
		"too many nodes":  {Nodes: 1 << 50},
		"negative starts": {Starts: -1},
	} {
		if l, err := Propose(w); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %s, error %v", name, l, err)
		}
	}
	if l, err := Disjoint(Wishes{Now: now}, Span{0, math.MaxInt64}); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "no room either") {
		t.Errorf("with everything in use: %s, error %v", l, err)
	}
	if l, err := Disjoint(Wishes{Now: now}, Span{2, 1}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("with an empty span: %s, error %v", l, err)
	}
}

func TestCarryTellsWhatLacks(t *testing.T) {
	load, err := Carry(mustLayout(t, hapax.LayoutUIDGenerator29), Wishes{Rate: 1e6, Nodes: 10, Starts: 10_000, Years: 20, JSSafe: true, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if len(load.Lacks) != 3 { // rate, years, JavaScript; there are workers enough
		t.Errorf("it lacks %q", load.Lacks)
	}
	if want := 2097152 / 10_000.0 / 365.2425; math.Abs(load.Disposable-want) > 1e-9 {
		t.Errorf("one worker ID a start lasts %v years, want %v", load.Disposable, want)
	}
	if load.Needed != 10+39 { // 10,000 starts × 330 s / day
		t.Errorf("%d worker IDs are needed", load.Needed)
	}
	if want := (2097152 - 10) * 86400 / 330.0; math.Abs(load.Starts-want) > 1e-3 {
		t.Errorf("it carries %v starts a day, want %v", load.Starts, want)
	}
	if load, err = Carry(mustLayout(t, hapax.LayoutJSSafe53), Wishes{Nodes: 9, Now: now}); err != nil || len(load.Lacks) != 1 || !strings.Contains(load.Lacks[0], "9 worker IDs") {
		t.Errorf("it lacks %q, error %v", load.Lacks, err)
	}
}

// The writes that are foretold are those that an issuer makes.
func TestStoreWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // virtual time begins before the layout's epoch
		store := storetest.NewFaults(memstore.New())
		s, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{KeepWarm: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		time.Sleep(time.Hour) // until grants have grown
		before := store.Calls("ExtendWorker")
		const hours = 48
		time.Sleep(hours * time.Hour)
		load, err := Carry(mustLayout(t, hapax.LayoutLeaf), Wishes{Nodes: 1})
		if err != nil {
			t.Fatal(err)
		}
		got := float64(store.Calls("ExtendWorker")-before) / hours / 3600
		if got < 0.7*load.StoreWrites || got > 1.05*load.StoreWrites {
			t.Errorf("there were %v writes a second, foretold were %v", got, load.StoreWrites)
		}
	})
}
