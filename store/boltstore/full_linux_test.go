package boltstore

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hapax-id/hapax"
)

// TestNoRoom: when the file cannot grow, what does not fit is refused with a
// clear error, and everything goes on once there is room. It runs in a process
// of its own, since the limit holds for all files of a process.
func TestNoRoom(t *testing.T) {
	const variable = "HAPAX_TEST_NO_ROOM"
	if os.Getenv(variable) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestNoRoom$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestNoRoom") {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	s, path := newStore(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(info.Size()), Max: was.Max}); err != nil {
		t.Fatal(err)
	}

	created := 0
	for ; err == nil && created < 10_000; created++ {
		name := fmt.Sprintf("%d %s", created, strings.Repeat("x", 100))
		_, err = s.CreateTag(t.Context(), hapax.Tag{Name: name}, hapax.CreateExplicit)
	}
	wantError(t, err, hapax.ErrStoreUnavailable, path, "file too large")

	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for want := range int64(3) {
		if a, err := s.Allocate(t.Context(), "t", 1, ""); err != nil || a.Grant.Lo != want+1 {
			t.Errorf("with room again: %v, error %v; want %d", a.Grant, err, want+1)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	tags, err := mustOpen(t, path).Tags(t.Context(), "", 20_000)
	if err != nil || len(tags) != created {
		t.Errorf("there are %d tags, error %v; want %d", len(tags), err, created)
	}
}
