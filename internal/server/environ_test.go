package server

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestUnknownVariables(t *testing.T) {
	environ := []string{"PATH=/bin", "HAPAX_HTTPS=x", "HAPAX_CONFIG=y", "HAPAX_SERVICE_HOST=10.0.0.1", "HAPAX_TEST_CLOCK_OFFSET=1s"}
	for _, s := range Settings() {
		environ = append(environ, s.Env()+"=x")
	}
	want := []string{"HAPAX_HTTPS (did you mean HAPAX_HTTP?)", "HAPAX_SERVICE_HOST"}
	if got := unknownVariables(environ); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The clock of a server that was not built for tests cannot be made wrong.
func TestNoWrongClock(t *testing.T) {
	t.Setenv("HAPAX_TEST_CLOCK_OFFSET", "-1h")
	if clock, err := testClock(); clock != nil || err != nil {
		t.Errorf("%v, %v", clock, err)
	}
}

func TestDurationsInTheLog(t *testing.T) {
	for d, want := range map[time.Duration]string{
		2_531_317:               "2.531ms",
		time.Minute:             "1m",
		12_345_678_901:          "12.346s",
		-300 * time.Microsecond: "-300µs",
	} {
		var out bytes.Buffer
		newLogger(Config{LogFormat: "json"}, &out, slog.LevelInfo).Info("x", slog.Duration("took", d))
		if !strings.Contains(out.String(), `"took":"`+want+`"`) {
			t.Errorf("%d is logged as %s", d, out.String())
		}
	}
}
