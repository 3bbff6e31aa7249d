//go:build unix

package cli

import (
	"os"
	"syscall"
)

// handedOn are the signals that a command gets as well.
var handedOn = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}

// endsCommands reports whether a signal ends a process that does nothing about it.
func endsCommands(sig os.Signal) bool { return sig != syscall.SIGWINCH }

// ending are the signals that end hold.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
