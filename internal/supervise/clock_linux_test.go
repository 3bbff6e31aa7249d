package supervise

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hapax-id/hapax/internal/patience"
)

// The kernel tells of each time that the clock is set. Here it is set to its own time,
// which moves it by no more than the call takes.
func TestKernelTellsThatTheClockWasSet(t *testing.T) {
	c, err := newStepClock(nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			t.Fatal(err)
		}
		err := unix.ClockSettime(unix.CLOCK_REALTIME, &now)
		if errors.Is(err, unix.EPERM) {
			t.Skip("this account may not set the clock")
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.steps():
		case <-time.After(patience.Long):
			t.Fatalf("nothing was told the %d. time", n+1)
		}
		if step := c.step(); step.Abs() > time.Second {
			t.Errorf("the clock moved by %v", step)
		}
	}
}
