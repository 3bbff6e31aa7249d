package main

import (
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestRun runs the program twice on one store: the numbers go on rising.
func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "embedded.db")
	last := map[string]int64{}
	for range 2 {
		var out bytes.Buffer
		if err := run(t.Context(), &out, path, 3); err != nil {
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
