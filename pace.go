package hapax

import (
	"cmp"
	"time"
)

// stepAim is for how long a segment is to last at least, and half of how long at most.
const stepAim = 15 * time.Minute

// NextStep returns how many numbers to ask for after step of them that lasted so long: twice as
// many if that is below aim, half as many if it is above twice the aim, between the tag's MinStep
// and MaxStep. It is the rule of a [Segment], for those who keep a cursor of their own.
func (t Tag) NextStep(step int64, lasted, aim time.Duration) int64 {
	switch {
	case lasted < aim:
		step *= 2
	case lasted > 2*aim:
		step /= 2
	}
	return max(min(step, cmp.Or(t.MaxStep, MaxStep)), t.MinStep, 1)
}

// stepPace adapts the step to the rate of use.
type stepPace struct {
	step    int64 // what the next fetch asks for
	own     int64 // the tag's own step, as last seen
	fetches int
	last    time.Duration // when the last fetch began
}

// ask returns how many numbers to ask for: 0, the tag's own step, until it has
// changed.
func (p *stepPace) ask() int64 {
	if p.step == p.own {
		return 0
	}
	return p.step
}

// taken learns from a grant that was asked for at began and took so long, while
// size numbers lasted so long before callers had to wait (0: they had not). It
// reports whether the step changed.
//
// The time between two fetches is that of a segment. Where callers had to wait, doubling would let
// them wait again and again: the step goes at once to the use of four fetches at
// that rate, though to no more than 16 times what ran dry.
func (p *stepPace) taken(tag Tag, began, took time.Duration, size int64, lasted time.Duration) bool {
	before, since := p.step, began-p.last
	p.fetches++
	p.last = began
	step := p.step
	if p.own != tag.Step { // the first fetch, or edited in the store
		step, p.own = tag.Step, tag.Step
	}
	switch {
	case lasted > 0:
		step, since = max(step, int64(float64(size)*min(16, 4*float64(took)/float64(lasted)))), stepAim
	// The second comes when a tenth of the first is used: their distance says nothing of a whole segment.
	case p.fetches <= 2:
		since = stepAim
	}
	p.step = tag.NextStep(step, since, stepAim)
	return p.step != before && before != 0
}
