package console

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// A chart is of all nodes: their samples are averaged within a point and added up, whatever
// their clocks say, and where nobody knows anything the line is interrupted.
func TestSlots(t *testing.T) {
	now := time.Unix(1_764_000_001, 0) // the point of 1_764_000_000 is not over
	sees := func(off time.Duration, samples ...sample) nodeView {
		return nodeView{Facts: &facts{Samples: samples, Longer: [][]sample{{{At: 1_763_999_976, Rate: 7}}}}, Off: off}
	}
	nodes := []nodeView{
		sees(0, sample{1_763_999_996, 10, 1}, sample{1_763_999_998, 20, 3}, sample{1_763_999_988, 8, 1}, sample{1_764_000_000, 1000, 9}, sample{1, 1000, 9}),
		sees(time.Hour, sample{1_764_003_596, 5, 2}), // its clock is an hour ahead
		{},
	}
	at, rates, took := slots(nodes, 0, now)
	if at.Unix() != 1_763_999_996 || rates[points-1] != 20 || took[points-1] != 3 {
		t.Errorf("the last point is of %d with rate %v and %v ms, want 1763999996, 15 + 5 and 3", at.Unix(), rates[points-1], took[points-1])
	}
	if !math.IsNaN(rates[points-2]) || rates[points-3] != 8 || !math.IsNaN(rates[0]) {
		t.Errorf("before it there are %v and %v, first %v, want a gap, 8 and a gap", rates[points-2], rates[points-3], rates[0])
	}
	if at, rates, _ = slots(nodes, 1, now); at.Unix() != 1_763_999_976 || rates[points-1] != 7 { // the other one's is of an hour before
		t.Errorf("of an hour the last point is of %d with %v, want 1763999976 and 7", at.Unix(), rates[points-1])
	}
}

// A line begins anew after a gap, ends at the right, and stays within its drawing.
func TestPaths(t *testing.T) {
	line, area := paths([]float64{0, 10, math.NaN(), 5}, 10, 300, 102)
	if want := "M0 101h.1L100 1M300 51h.1"; line != want {
		t.Errorf("the line is %q, want %q", line, want)
	}
	if want := "M0 102V101L100 1V102ZM300 102V51V102Z"; area != want {
		t.Errorf("the area is %q, want %q", area, want)
	}
	for v, want := range map[float64]float64{0: 1, 1: 1, 1.5: 2, 2: 2, 30: 50, 99: 100, 740: 1000, maxDrawn: maxDrawn} {
		if got := topOf(v); got != want {
			t.Errorf("the scale of %v ends with %v, want %v", v, got, want)
		}
	}
	if c := newChart("x", []float64{math.NaN(), math.Inf(1), -5}, time.Now(), time.Second); strings.Contains(c.Line, "NaN") || strings.Contains(c.Line, "Inf") {
		t.Errorf("drawn is %q", c.Line)
	}
}

// A history keeps means, and no more of them than a chart shows.
func TestHistory(t *testing.T) {
	var h history
	for i := range int64(4 * (points + 10)) {
		h.take(sample{At: 400 + i, Rate: float64(i % 4), Took: float64(i % 4)}, 4)
	}
	if n := len(h.kept); n != points {
		t.Fatalf("%d samples are kept, want %d", n, points)
	}
	for i, s := range h.kept {
		if s.Rate != 1.5 || s.Took != 3 || i > 0 && s.At != h.kept[i-1].At+4 {
			t.Fatalf("sample %d is %+v, want the mean 1.5 and at most 3 every 4 s", i, s)
		}
	}
}

// A trail has the last ten minutes: what is older is forgotten, and a clock that was set
// begins it anew.
func TestTrail(t *testing.T) {
	var tr trail
	for s := range int64(700) {
		tr.take(float64(s/10), 1000+s)
	}
	all := tr.all()
	if all[trailPoints-1] != 69 || all[0] != 10 || !slices.IsSorted(all) {
		t.Errorf("the rates are %v, want 10 to 69", all)
	}
	tr.take(5, 1000+699+30)
	if all = tr.all(); all[trailPoints-1] != 5 || all[trailPoints-2] != 0 || all[trailPoints-4] != 69 {
		t.Errorf("after 30 s the rates end with %v, want 69, 0, 0, 5", all[trailPoints-4:])
	}
	if tr.take(7, 500); tr.sum() != 7 {
		t.Errorf("after a clock was set back the sum is %v, want 7", tr.sum())
	}
	if got := addTrails(addTrails(nil, []float32{1, 2, 3}), slices.Repeat([]float32{1}, 2*trailPoints)); len(got) != trailPoints || got[trailPoints-1] != 4 || got[0] != 1 {
		t.Errorf("the sum is %v", got)
	}
}

// Only so many tags have a trail: those that issue most.
func TestTrailsOfManyTags(t *testing.T) {
	w := &watcher{trails: map[string]*trail{}}
	rates := map[string]float64{}
	for i := range maxTrails {
		rates["slow"+strings.Repeat("x", i)] = 1
	}
	w.trailLocked(rates, 1000)
	rates["fast"], rates["slowest"] = 1000, 0.1
	w.trailLocked(rates, 1002)
	if len(w.trails) != maxTrails || w.trails["fast"] == nil || w.trails["slowest"] != nil {
		t.Errorf("%d trails; fast has one: %v, slowest: %v", len(w.trails), w.trails["fast"] != nil, w.trails["slowest"] != nil)
	}
	w.trailLocked(nil, 1002+2*trailPoints*trailEvery)
	if len(w.trails) != 0 {
		t.Errorf("%d trails of tags that nobody uses any more", len(w.trails))
	}
}

// What is issued is in the charts of the overview and of the tag, in the sparklines, and
// in the points as JSON, and what was issued by a pool in those of its tags.
func TestCharts(t *testing.T) {
	s := newStand(t, nil, nil)
	for _, tag := range []string{"orders", "snowflake"} {
		for range 60 {
			if _, err := s.svc.Next(t.Context(), tag); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := s.watcher
	for _, at := range []int64{-4, -8, -12} { // as if the looks had been then
		w.mu.Lock()
		for i, r := range ranges {
			w.past[i].kept = append([]sample{{At: (time.Now().Unix() + at) / r.every * r.every, Rate: 60, Took: 2}}, w.past[i].kept...)
		}
		w.trailLocked(map[string]float64{"orders": 30, poolTrail("default"): 30}, time.Now().Unix())
		w.mu.Unlock()
	}
	for _, path := range []string{"", "?range=1h", "?range=24h"} {
		_, _, text := s.get(t, Prefix+path)
		wants(t, "the overview", text, "at most 60", `aria-label="Over ten minutes: now`)
		if strings.Index(text, `class="chart"`) > strings.Index(text, "<table") {
			t.Errorf("%q: the charts are below a table", path)
		}
	}
	for _, path := range []string{"tag?name=orders", "tag?name=snowflake"} {
		_, _, text := s.get(t, Prefix+path)
		wants(t, path, text, `aria-label="Numbers a second: now `, `class="line" d="M0 `)
	}
	if _, _, text := s.get(t, Prefix+"tags"); strings.Count(text, `class="spark"`) != 2 {
		t.Errorf("%d sparklines of two tags", strings.Count(text, `class="spark"`))
	}
	status, _, text := s.get(t, Prefix+"series.json?range=10m")
	var got struct {
		T          []int64
		Rate, Took []float64
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK || len(got.T) < 2 || len(got.Rate) != len(got.T) || len(got.Took) != len(got.T) || slices.Max(got.Rate) != 60 {
		t.Errorf("%d, %v: %s", status, err, text)
	}
}
