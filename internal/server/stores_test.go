package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// What a driver warns of is counted each time, and logged once: a node opens its store for
// calls, for heartbeats and whenever it was lost.
func TestWarningsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	o := newOpener(DefaultConfig(), slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		o.warn("not_durable", "appendonly is no")
	}
	o.warn("not_durable", "appendfsync is no")
	if n := strings.Count(log.String(), "not_durable"); n != 2 || o.warned.snapshot()["not_durable"] != 4 {
		t.Errorf("%d lines and %d warnings; want 2 and 4:\n%s", n, o.warned.snapshot()["not_durable"], log.String())
	}
}
