package model

import (
	"testing"
	"time"
)

func TestTwinsTry(t *testing.T) {
	b := Budgets(*flagBudget)
	for r := range nRules {
		if *flagOff != "" && r.String() != *flagOff {
			continue
		}
		m := Model{Split: *flagSplit || r == Confirm, Lines: *flagLines}
		m = m.Without(r)
		began := time.Now()
		res := m.Walk(m.Initial(*flagN), b, 1<<30, *flagSeed, *flagDepth, *flagLive, func() bool { return time.Since(began) > time.Duration(*flagSecs)*time.Second })
		n := 0
		bad := "-"
		if res.Found != nil {
			n, bad = len(res.Found.Steps), res.Found.Bad
		}
		t.Logf("%-16s %d of %d walks, shortest %d: %s", r, res.Count, res.Walks, n, bad)
	}
}
