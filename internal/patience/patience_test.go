package patience

import (
	"testing"
	"time"
)

func TestScale(t *testing.T) {
	for text, want := range map[string]float64{"": 1, "4": 4, "0.5": 0.5} {
		if got := mustScale(text); got != want {
			t.Errorf("%q is %v; want %v", text, got, want)
		}
	}
	for _, text := range []string{"0", "-1", "x", "NaN", "1001", "4x"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is taken", text)
				}
			}()
			mustScale(text)
		}()
	}
	defer func(old float64) { scale = old }(scale)
	scale = 2.5
	if got := Scale(2 * time.Second); got != 5*time.Second {
		t.Errorf("2 s become %v; want 5 s", got)
	}
}
