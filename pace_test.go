package hapax_test

import (
	"math"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
)

func TestNextStep(t *testing.T) {
	const aim = 20 * time.Minute
	bounds := hapax.Tag{MinStep: 50, MaxStep: 1000}
	for name, tt := range map[string]struct {
		tag    hapax.Tag
		step   int64
		lasted time.Duration
		want   int64
	}{
		"sooner":           {bounds, 100, aim - 1, 200},
		"at once":          {bounds, 100, 0, 200},
		"just as aimed at": {bounds, 100, aim, 100},
		"at the end of it": {bounds, 100, 2 * aim, 100},
		"later":            {bounds, 100, 2*aim + 1, 50},
		"an odd step":      {bounds, 101, 3 * aim, 50},
		"no more":          {bounds, 600, 0, 1000},
		"no less":          {bounds, 60, 3 * aim, 50},
		"a lower maximum":  {bounds, 5000, aim, 1000},
		"a higher minimum": {bounds, 5, aim, 50},
		"one number":       {hapax.Tag{}, 1, 3 * aim, 1},
		"no bounds":        {hapax.Tag{}, 100, 0, 200},
		"no maximum":       {hapax.Tag{MinStep: 1}, hapax.MaxStep - 1, 0, hapax.MaxStep},
		"an absurd step":   {bounds, math.MaxInt64, aim, 1000},
	} {
		if got := tt.tag.NextStep(tt.step, tt.lasted, aim); got != tt.want {
			t.Errorf("%s: after %d numbers for %v: %d, want %d", name, tt.step, tt.lasted, got, tt.want)
		}
	}
}
