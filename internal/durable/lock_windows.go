package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// noFollow does nothing: the system has no such flag.
const noFollow = 0

func lock(f *os.File) error {
	const all = ^uint32(0)
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, all, all, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return os.NewSyscallError("LockFileEx", err)
}
