package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hapax-id/hapax"
)

// The program, run twice on one store, goes on with the next numbers. An older copy of the file
// in its place issues nothing.
func TestRun(t *testing.T) {
	path, data := filepath.Join(t.TempDir(), "hapax.sqlite"), filepath.Join(t.TempDir(), "data")
	var old []byte
	for _, want := range []string{"order 1\norder 2\norder 3\n", "order 4\norder 5\norder 6\n"} {
		var out bytes.Buffer
		if err := run(t.Context(), &out, path, data, 3); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Fatalf("got %q, want %q", out.String(), want)
		}
		if old == nil {
			var err error
			if old, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
	}

	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), &out, path, data, 1); !errors.Is(err, hapax.ErrStoreRolledBack) || out.Len() > 0 {
		t.Errorf("an older copy issues %q, error %v; want ErrStoreRolledBack", out.String(), err)
	}
}
