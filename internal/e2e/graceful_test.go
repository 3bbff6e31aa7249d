package e2e

import (
	"testing"

	"github.com/hapax-id/hapax"
)

// A server that is told to stop hands back what it did not issue.
func TestGracefulRestartsLeaveNoGap(t *testing.T) {
	t.Parallel()
	dir, want := t.TempDir(), hapax.ID(1)
	for range 5 {
		s := serve(t, dir, nil)
		for _, id := range mustTake(t, s, "orders", 17) {
			if id != want {
				t.Fatalf("got %d, want %d", id, want)
			}
			want++
		}
		if code := s.stop(); code != 0 {
			t.Fatalf("the exit code is %d: %s", code, s.logged())
		}
	}
}
