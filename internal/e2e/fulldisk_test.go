package e2e

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A server whose disk is full stops in good order and says what became of the numbers in
// its hand; one that is started then goes on by itself once there is room.
func TestFullDiskAtStopAndStart(t *testing.T) {
	t.Parallel()
	testservers.Require(t, []string{"prlimit"})
	store, dir := testservers.Redis(t), t.TempDir()
	flags := []string{"--store", store.URL, "--heartbeat", "300ms", "--max-wait", "300ms"}
	limit := func(s *serving, bytes string) {
		t.Helper()
		if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(s.cmd.Process.Pid), "--fsize="+bytes+":").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	s := serve(t, dir, nil, flags...)
	if id := takeSoon(t, s, "orders", 1)[0]; id != 1 {
		t.Errorf("the first number is %d", id)
	}
	limit(s, "10")
	for tag := range 100 { // until the witness has to be written
		if _, err := take(patient, s.url, "tag-"+strconv.Itoa(tag), 1); refused(err) == hapax.ErrWitnessFailed.Code() {
			break
		}
	}
	s.await(string(hapax.ErrWitnessFailed.Code()))
	if code := s.stop(); code != 0 {
		t.Errorf("the stop's exit code is %d: %s", code, s.logged())
	}
	lines := strings.Split(strings.TrimSpace(s.logged()), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, `"msg":"stopped"`) || !strings.Contains(last, `"numbers_handed_back":`) || !strings.Contains(last, `"numbers_lost":`) {
		t.Errorf("the last line is %s", last)
	}

	cmd := command(context.Background(), dir, nil, append([]string{"serve", "--http", "127.0.0.1:0", "--log-format", "json"}, flags...)...)
	cmd.Args = append([]string{"prlimit", "--fsize=10:", cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Err = exec.LookPath("prlimit")
	full := start(t, cmd)
	full.await(string(hapax.ErrWitnessFailed.Code()))
	if _, err := take(patient, full.url, "orders", 1); err == nil {
		t.Error("numbers come that the witness does not know")
	}
	if err := full.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("it has ended: %v: %s", err, full.logged())
	}
	limit(full, "unlimited")
	if id := takeSoon(t, full, "orders", 1, hapax.ErrWitnessFailed.Code())[0]; id != 2 {
		t.Errorf("it goes on with %d; want 2", id)
	}
	if code := full.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, full.logged())
	}
}
