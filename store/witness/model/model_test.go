package model

import (
	"flag"
	"testing"
	"time"
)

var (
	flagBudget = flag.String("budget", "", "")
	flagOff    = flag.String("off", "", "")
	flagSecs   = flag.Int("secs", 20, "")
	flagSeed   = flag.Uint64("seed", 1, "")
	flagWalk   = flag.Bool("walk", false, "")
	flagLive   = flag.Bool("live", false, "")
	flagSplit  = flag.Bool("split", false, "")
	flagN      = flag.Int("n", 2, "")
	flagLines  = flag.Int("lines", 1, "")
	flagMost   = flag.Int("most", 3000000, "")
	flagDepth  = flag.Int("depth", 60, "")
)

func TestTry(t *testing.T) {
	m := Model{Split: *flagSplit, Lines: *flagLines}
	for r := range nRules {
		if r.String() == *flagOff {
			m = m.Without(r)
		}
	}
	b := Budgets(*flagBudget)
	began := time.Now()
	var r Result
	if *flagWalk {
		r = m.Walk(m.Initial(*flagN), b, 1<<30, *flagSeed, *flagDepth, *flagLive, func() bool { return time.Since(began) > time.Duration(*flagSecs)*time.Second })
	} else {
		r = m.Search(m.Initial(*flagN), b, *flagMost, *flagLive)
	}
	t.Logf("states %d steps %d walks %d (%d bad) judged %d complete %v %.1fs", r.States, r.Steps, r.Walks, r.Count, r.Judged, r.Complete, time.Since(began).Seconds())
	if r.Found != nil {
		t.Errorf("%v", r.Found)
		_, _, end := m.replay(func() State {
			s := m.Initial(*flagN)
			for i := range s.B {
				s.B[i] = 99
			}
			return s
		}(), r.Found.Steps)
		if bad, steps := m.fair(end); bad != "" {
			t.Log(Trace{Steps: steps[:min(40, len(steps))]})
		}
	}
}
