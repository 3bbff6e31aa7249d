package redismongo

import (
	"testing"
	"time"

	"github.com/hapax-id/hapax"
)

// The step that Redis has goes on by the rule of a hapax.Segment.
func TestNextStep(t *testing.T) {
	known := hapax.Tag{Step: 100, MinStep: 50, MaxStep: 1000}
	extending := Options{Threshold: 20, OnStoreLoss: Extend, Reserve: 400}
	for name, tt := range map[string]struct {
		def  hapax.Tag
		opts Options
		step int64
		age  time.Duration
		want int64
	}{
		"no segment yet":                   {step: 0, want: 0},
		"no segment yet, with a reserve":   {step: 0, opts: extending, want: 500},
		"sooner than 20 minutes":           {def: known, step: 100, age: 20*time.Minute - 1, want: 200},
		"after 20 minutes":                 {def: known, step: 100, age: 20 * time.Minute, want: 100},
		"after 40 minutes":                 {def: known, step: 100, age: 40 * time.Minute, want: 100},
		"later":                            {def: known, step: 100, age: 40*time.Minute + 1, want: 50},
		"of an unknown age":                {def: known, step: 100, age: -time.Millisecond, want: 100},
		"no more than the maximum":         {def: known, step: 900, want: 1000},
		"more, for the reserve":            {def: known, opts: extending, step: 100, want: 500},
		"bounds unknown":                   {step: 250, want: 250},
		"bounds unknown, and old":          {step: 250, age: time.Hour, want: 250},
		"bounds unknown, and absurd":       {step: 1 << 60, want: hapax.DefaultMaxStep},
		"bounds unknown, with the reserve": {opts: extending, step: 250, want: 500},
	} {
		i := &Issuer{opts: tt.opts, def: tt.def}
		if got := i.nextStep(tt.step, tt.age); got != tt.want {
			t.Errorf("%s: after %d numbers of age %v: %d, want %d", name, tt.step, tt.age, got, tt.want)
		}
	}
}
