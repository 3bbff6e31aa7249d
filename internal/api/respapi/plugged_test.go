package respapi

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/strategy"
)

// TestQuotaInAPipeline has a quota let pass what it has left of a run of INCRs, although
// the server takes their numbers at once.
func TestQuotaInAPipeline(t *testing.T) {
	r := strategy.NewRegistry(strategy.Options{Logger: slog.New(slog.DiscardHandler)})
	quota, err := strategy.Quota("limit", strategy.ByTag, 10, 10_000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Use(quota); err != nil {
		t.Fatal(err)
	}
	srv := newTestServer(t, testConfig{service: service.Options{Strategies: r}})
	c := srv.dial(t)
	c.send(strings.Repeat(frame("INCR", "orders"), 16))
	for n := 1; n <= 16; n++ {
		got, want := c.line(), fmt.Sprintf(":%d", n)
		if n > 10 {
			want = `-REJECTED rejected: plugin "limit" refused: the quota of "orders" is 10 numbers per 10000h; come back at `
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("the answer to INCR %d is %q, want %q", n, got, want)
		}
	}
}
