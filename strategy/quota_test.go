package strategy

import (
	"testing"
	"time"
)

// The clock decides which window counts: a step back into the one before gives
// nothing twice, and one that was far ahead refuses nobody once it is right.
func TestQuotaFollowsTheClock(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	q := &quota{limit: 10, per: time.Minute, used: map[string]int64{}}
	for _, step := range []struct {
		at   time.Duration
		n    int64
		want bool
	}{
		{0, 10, true},
		{59 * time.Second, 1, false},
		{time.Minute, 10, true},
		{59 * time.Second, 1, false}, // back into the window before
		{61 * time.Second, 1, false},
		{24 * time.Hour, 10, true}, // the clock is wrong
		{24 * time.Hour, 1, false},
		{2 * time.Minute, 10, true}, // and right again
		{2 * time.Minute, 1, false},
	} {
		if err := q.take("orders", step.n, noon.Add(step.at)); (err == nil) != step.want {
			t.Errorf("%d at %v: %v", step.n, step.at, err)
		}
	}
}
