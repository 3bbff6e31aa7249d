package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hapax-id/hapax/internal/patience"
)

// leaderless makes the test binary a process whose first thread ends, while another one lives.
const leaderless = "HAPAX_TEST_LEADERLESS"

func init() {
	if os.Getenv(leaderless) == "" {
		return
	}
	runtime.GOMAXPROCS(4) // one is lost with the thread
	lives := make(chan struct{})
	go func() {
		close(lives)
		_, _ = unix.Read(0, make([]byte, 1)) // until the test ends
		os.Exit(0)
	}()
	<-lives
	syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
}

// A process whose first thread has ended is shown as a zombie, and lives as long as another thread does.
func TestProcessWithoutItsFirstThread(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), leaderless+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // it was killed
	defer stdin.Close()
	pid := cmd.Process.Pid
	patience.Until(t, "its first thread ends", func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return strings.Contains(string(text), ") Z ")
	})
	left := func() int {
		return len(living(func(p proc, all map[int]proc) bool { return p.pid == pid && p.below(os.Getpid(), all) }))
	}
	if left() != 1 {
		t.Error("it is not left, though its other threads live")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "it is not left once it has ended, though nobody has waited for it", func() bool { return left() == 0 })
}
