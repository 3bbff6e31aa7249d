package cli

import "testing"

func TestYears(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0 seconds", 69.73: "69 years 8 months", 1: "1 year", 2.8e-05: "14 minutes 43 seconds", 1. / 365.25: "1 day",
		0.5: "6 months", 1e6: "1000000 years", 1.0 / 365.25 / 24: "1 hour",
	} {
		if got := years(v); got != want {
			t.Errorf("%v years are %q, want %q", v, got, want)
		}
	}
}
