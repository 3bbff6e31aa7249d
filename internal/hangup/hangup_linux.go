package hangup

import (
	"syscall"
	"unsafe"
)

// The events of poll(2) that tell of an end.
const (
	pollErr   = 0x8
	pollHup   = 0x10
	pollRdHup = 0x2000
)

type pollFD struct {
	fd              int32
	events, revents int16
}

// hasLeft reports whether the other end of a socket has closed it or will send nothing
// more. It does not wait, and reads nothing.
func hasLeft(raw syscall.RawConn) bool {
	gone := false
	err := raw.Control(func(fd uintptr) {
		p := pollFD{fd: int32(fd), events: pollRdHup}
		var now syscall.Timespec
		// Raw, past the scheduler: with no time to wait, it returns at once.
		n, _, _ := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		gone = n == 1 && p.revents&(pollErr|pollHup|pollRdHup) != 0
	})
	return gone || err != nil // closed here
}
