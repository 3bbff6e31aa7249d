//go:build unix

package server

import (
	"math"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// failWhenTooLong has a write beyond the process's limit on the size of files fail, as
// one to a full disk does, in place of ending the process.
func failWhenTooLong() { signal.Ignore(syscall.SIGXFSZ) }

// endTogether has a command ended with everything that it started.
func endTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// maxFiles returns how many files the process may have open.
func maxFiles() (int, bool) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0, false
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)), true //nolint:unconvert // signed on some systems
}

// mayWrite returns why a directory could not be written, as far as that shows beforehand.
func mayWrite(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }
