package main

import (
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
)

// The program, run twice on one store, goes on with higher numbers: on a file of its
// own, and on a store that it shares.
func TestRun(t *testing.T) {
	testRun(t, place{path: filepath.Join(t.TempDir(), "embedded.db")})
}

func TestRunShared(t *testing.T) {
	testRun(t, place{redis: testservers.Redis(t).URL, data: filepath.Join(t.TempDir(), "data")})
}

func testRun(t *testing.T, where place) {
	last := map[string]int64{}
	for range 2 {
		var out bytes.Buffer
		if err := run(t.Context(), &out, where, 3); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 6 {
			t.Fatalf("got %q, want 3 orders and 3 events", lines)
		}
		for _, line := range lines {
			name, number, _ := strings.Cut(line, " ")
			id, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if id <= last[name] {
				t.Errorf("%s %d comes after %d", name, id, last[name])
			}
			last[name] = id
		}
	}
}
