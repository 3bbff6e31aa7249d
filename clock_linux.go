package hapax

import (
	"syscall"
	"time"
	"unsafe"
)

// The clocks of clock_gettime(2) that differ by the time spent asleep.
const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// Asleep returns how long the machine has been asleep since it booted.
func (SystemClock) Asleep() time.Duration {
	var mono, boot syscall.Timespec
	// The monotonic clock first: a pause between the two can then look like sleep, and never hide one.
	if !readClock(clockMonotonic, &mono) || !readClock(clockBoottime, &boot) {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}

func readClock(clock uintptr, ts *syscall.Timespec) bool {
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(ts)), 0)
	return errno == 0
}
