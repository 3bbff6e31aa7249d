package console

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The size of drawings, in units of their own: they are stretched to the room there is.
const (
	chartWidth, chartHeight = 600, 120
	sparkWidth, sparkHeight = 90, 22
)

// maxDrawn bounds what is drawn: a node may say anything.
const maxDrawn = 1e15

// A chart is a line over time, drawn here.
type chart struct {
	Title, Says string
	Line, Area  string // paths
	Top         float64
	Times       []string // below it, from left to right
}

// A spark is a chart of the size of a word.
type spark struct{ Line, Says string }

// newChart draws values of which NaN are not known, the newest of which is of at.
func newChart(title string, values []float64, at time.Time, every time.Duration) chart {
	most, last := 0.0, math.NaN()
	for i, v := range values {
		if !math.IsNaN(v) {
			values[i] = min(max(v, 0), maxDrawn)
			most, last = max(most, values[i]), values[i]
		}
	}
	c := chart{Title: title, Top: topOf(most)}
	c.Says = "nothing is known yet"
	if !math.IsNaN(last) {
		c.Says = "now " + rate(last) + ", at most " + rate(most)
	}
	c.Line, c.Area = paths(values, c.Top, chartWidth, chartHeight)
	began := at.Add(-time.Duration(len(values)-1) * every)
	for _, t := range []time.Time{began, began.Add(at.Sub(began) / 2), at} {
		c.Times = append(c.Times, t.UTC().Format("15:04"))
	}
	return c
}

// trailChart draws the rates of a tag, the newest of which is of now; none are zeros.
func trailChart(rates []float32, now time.Time) chart {
	values := make([]float64, trailPoints)
	for i, r := range rates[max(0, len(rates)-trailPoints):] {
		values[trailPoints-min(len(rates), trailPoints)+i] = float64(r)
	}
	return newChart("Numbers a second", values, now, trailEvery*time.Second)
}

// newSpark draws the rates of a tag; nil for one of which none are known.
func newSpark(rates []float32) *spark {
	if len(rates) == 0 {
		return nil
	}
	values, most := make([]float64, len(rates)), 0.0
	for i, r := range rates {
		values[i] = min(max(float64(r), 0), maxDrawn)
		most = max(most, values[i])
	}
	line, _ := paths(values, max(most, 1e-9), sparkWidth, sparkHeight)
	return &spark{line, "Over ten minutes: now " + rate(values[len(values)-1]) + " a second, at most " + rate(most)}
}

// topOf returns the round number at or above a value that a scale ends with.
func topOf(v float64) float64 {
	if v <= 1 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, by := range []float64{1, 2, 5} {
		if v <= by*unit {
			return by * unit
		}
	}
	return 10 * unit
}

// paths returns the line through values from 0 to top, interrupted where they are NaN, and
// what lies below it.
func paths(values []float64, top float64, width, height int) (line, area string) {
	var l, a strings.Builder
	x := func(i int) string { return place(float64(i) * float64(width) / float64(max(len(values)-1, 1))) }
	drawing := false
	for i, v := range values {
		if math.IsNaN(v) {
			if drawing {
				fmt.Fprintf(&a, "V%dZ", height)
			}
			drawing = false
			continue
		}
		y := place(1 + float64(height-2)*(1-v/top)) // the line's own width is not cut off
		if drawing {
			fmt.Fprintf(&l, "L%s %s", x(i), y)
			fmt.Fprintf(&a, "L%s %s", x(i), y)
		} else {
			fmt.Fprintf(&l, "M%s %sh.1", x(i), y) // a single point shows, too
			fmt.Fprintf(&a, "M%s %dV%s", x(i), height, y)
		}
		drawing = true
	}
	if drawing {
		fmt.Fprintf(&a, "V%dZ", height)
	}
	return l.String(), a.String()
}

// place writes a place in a drawing.
func place(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// slots adds up the nodes' samples of a range. The last one is of the time that is
// returned; NaN stand where no node says anything.
func slots(nodes []nodeView, chosen int, now time.Time) (at time.Time, rates, took []float64) {
	every := ranges[chosen].every
	newest := now.Unix() - now.Unix()%every
	if now.Unix()-newest < 2*int64(lookEvery/time.Second) {
		newest -= every // some nodes may not have looked in it yet
	}
	rates, took = make([]float64, points), make([]float64, points)
	for i := range rates {
		rates[i], took[i] = math.NaN(), math.NaN()
	}
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		var own [points]struct{ rate, took, in float64 }
		for _, s := range n.Facts.past(chosen) {
			t := s.At + int64(math.Round(-n.Off.Seconds())) // in our own time
			i := int64(points-1) - (newest-(t-t%every))/every
			// A node may say anything.
			if t < 0 || i < 0 || i >= points {
				continue
			}
			// A node whose clock was set back has two samples of one time: their mean counts.
			o := &own[i]
			o.in++
			o.rate += (s.Rate - o.rate) / o.in
			o.took = max(o.took, s.Took)
		}
		for i, o := range own {
			if o.in == 0 {
				continue
			}
			if math.IsNaN(rates[i]) {
				rates[i], took[i] = 0, 0
			}
			rates[i] += o.rate
			took[i] = max(took[i], o.took)
		}
	}
	return time.Unix(newest, 0), rates, took
}

// past returns a node's samples of a range.
func (f *facts) past(chosen int) []sample {
	switch {
	case chosen == 0:
		return f.Samples
	case chosen <= len(f.Longer):
		return f.Longer[chosen-1]
	}
	return nil
}

// series answers with the points of the charts.
func (c *Console) series(v *visit) error {
	nodes, _ := c.nodes(v.Context())
	chosen := rangeOf(v.URL.Query().Get("range"))
	newest, rates, took := slots(nodes, chosen, time.Now())
	at, known := []int64{}, [2][]float64{{}, {}}
	for i := range rates {
		if !math.IsNaN(rates[i]) {
			at = append(at, newest.Unix()-int64(points-1-i)*ranges[chosen].every)
			known[0], known[1] = append(known[0], min(max(rates[i], 0), maxDrawn)), append(known[1], min(max(took[i], 0), maxDrawn))
		}
	}
	v.w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(v.w).Encode(map[string]any{"t": at, "rate": known[0], "took": known[1]})
}
