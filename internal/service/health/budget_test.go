package health

import (
	"math"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

// The first look at a line may come right after it was opened.
func TestFirstRate(t *testing.T) {
	opened := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := Rate{Looked: opened}
	r.look(6, opened.Add(10*time.Millisecond))
	if got := r.PerSecond(); got != 3 {
		t.Errorf("six numbers in the first moments are a rate of %v a second; want 3", got)
	}
	r.look(9, opened.Add(1010*time.Millisecond))
	if got := r.PerSecond(); math.Abs(got-3) > 1e-9 {
		t.Errorf("three numbers in the next second make it %v; want 3", got)
	}
}

// A layout's numbers outgrow a reader when their time does.
func TestOutgrows(t *testing.T) {
	for _, c := range []struct {
		spec      string
		constants map[string]int64
		bits      int
		tick      int64 // -1: never
	}{
		{"time:41,worker:10,sequence:12", nil, 53, 1 << 31},
		{"time:31,worker:10,sequence:12", nil, 53, -1},
		{"type:2,time:31,worker:10,sequence:12", map[string]int64{"type": 0}, 53, -1},
		{"type:2,time:31,worker:8,sequence:12", map[string]int64{"type": 1}, 52, 1 << 31},
		{"type:2,time:31,worker:10,sequence:12", map[string]int64{"type": 2}, 53, 0},
	} {
		layout, err := hapax.ParseLayout(c.spec + ",unit=1ms,epoch=2020-01-01T00:00:00Z")
		if err != nil {
			t.Fatal(err)
		}
		at, ok := outgrows(layout, c.constants, c.bits)
		want := layout.TimeOf(c.tick)
		if ok != (c.tick >= 0 && c.tick < layout.EndTick()) || ok && !at.Equal(want) {
			t.Errorf("%s %v with %d bits: %v, %v; want tick %d, %v", c.spec, c.constants, c.bits, at, ok, c.tick, want)
		}
	}
}

// Worker IDs that get fewer end, and so do those that each start uses up.
func TestWorkersEnd(t *testing.T) {
	counts, now := Counts(nil), time.Date(2026, 1, 8, 0, 0, 0, 0, time.UTC)
	statuses := make([]api.WorkerStatus, 14)
	for i := range statuses {
		statuses[i] = api.WorkerStatus{ID: int64(i), Until: now.Add(-7 * 24 * time.Hour).Add(time.Duration(i+1) * 12 * time.Hour)}
	}
	var use *Use
	free, elapsed, started := int64(100), time.Duration(0), 0.0
	count := func(after time.Duration, fewer int64) time.Duration {
		free, elapsed = free-fewer, elapsed+after
		use = counts.Used(statuses, free, now.Add(elapsed), elapsed)
		return Lasts(float64(use.free), use.taken).Round(time.Minute)
	}
	for _, step := range []struct {
		what  string
		after time.Duration
		fewer int64
		want  time.Duration
	}{
		{"the first count", 0, 0, forever},
		{"a fleet that has started", 10 * time.Minute, 20, forever},
		{"the next count", 10 * time.Minute, 0, forever},
		{"a node more", 10 * time.Minute, 1, forever},
		{"a third time", 10 * time.Minute, 1, 78 * 40 / 22 * time.Minute},
		{"within a count", 5 * time.Minute, 3, 75 * 45 / 25 * time.Minute},
		{"some are free again", 5 * time.Minute, -25, forever},
		{"a day without", 25 * time.Hour, 0, forever},
	} {
		got := count(step.after, step.fewer)
		if started == 0 {
			started = use.started
		}
		if apart := (got - step.want).Abs(); apart > 3*time.Minute {
			t.Errorf("%s: they last %v, want %v", step.what, got, step.want)
		}
	}
	for range 200 {
		count(10*time.Minute, 0)
	}
	if n := len(counts); n > 145 {
		t.Errorf("%d counts are kept", n)
	}
	var big Counts
	for i := range int64(10) { // a node an hour, of a thousand
		use = big.Used(nil, 1000-i, now, time.Duration(i)*time.Hour)
	}
	if use.taken != 0 {
		t.Errorf("few of many are a rate: %+v", use)
	}
	if got := Lasts(90, started).Hours() / 24; got < 40 || got > 50 { // two a day
		t.Errorf("90 starts last %v days", got)
	}
}
