package e2e

import (
	"strings"
	"testing"
)

// The health command tells by its exit code whether the server of a directory, or one
// that is named, is ready; no token is needed, and none is shown.
func TestHealth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, nil, "--data", dir, "--tokens", "{a: {hash: \"sha256:"+strings.Repeat("a", 64)+"\"}}")
	ok(t, dir, "health", "--data", dir)
	ok(t, dir, "health", "--alive", "--server", s.url)
	if code := s.stop(); code != 0 {
		t.Errorf("the server ended with %d: %s", code, s.logged())
	}
	for _, args := range [][]string{{"health", "--server", s.url}, {"health", "--data", dir}} {
		if r := run(t, dir, args...); r.code != 1 || !strings.HasPrefix(r.err, "hapax: ") {
			t.Errorf("hapax %q of a server that has ended: exit code %d, %s", args, r.code, r.err)
		}
	}
	if r := run(t, dir, "health", "--server", "nowhere"); r.code == 0 {
		t.Error("a server without an address is healthy")
	}
}
