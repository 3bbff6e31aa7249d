package supervise

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hapax-id/hapax"
)

// now returns the time since the machine was started, asleep or not: the same for all
// processes.
func now() time.Duration { return read(unix.CLOCK_BOOTTIME) }

func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic(err) // every Linux that Go runs on has it
	}
	return time.Duration(ts.Nano())
}

// timerfd returns a timer of the kernel's as a file. Reads of it wait.
func timerfd(clock int) (*os.File, error) {
	fd, err := unix.TimerfdCreate(clock, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return os.NewFile(uintptr(fd), "timerfd"), nil
}

// arm sets when the timer of a file is due.
func arm(f *os.File, at time.Duration, flags int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		at = max(at, 1) // 0 would switch it off
		failed = unix.TimerfdSettime(int(fd), flags|unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}, nil)
	})
	return errors.Join(err, os.NewSyscallError("timerfd_settime", failed))
}

// An alarm fires at a moment by the clock of now.
type alarm struct {
	c    chan struct{}
	file *os.File
}

func newAlarm() (*alarm, error) {
	f, err := timerfd(unix.CLOCK_BOOTTIME)
	if err != nil {
		return nil, err
	}
	a := &alarm{make(chan struct{}, 1), f}
	go func() { // ends with stop
		buf := make([]byte, 8)
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
			select {
			case a.c <- struct{}{}:
			default:
			}
		}
	}()
	return a, nil
}

// set moves the moment. What was told of an earlier one and not heard is forgotten.
func (a *alarm) set(at time.Duration) {
	select {
	case <-a.c:
	default:
	}
	if err := arm(a.file, at, 0); err != nil { // cannot be: the file is a timer
		a.c <- struct{}{}
	}
}

func (a *alarm) stop() { _ = a.file.Close() }

// A stepClock notices that the wall clock was set.
type stepClock struct {
	c     chan struct{}
	drift func() time.Duration // wall clock less the other one
	last  *time.Duration
}

// newStepClock returns one for the system's clock, which the kernel tells of, or for
// that of a test, which is looked at often.
func newStepClock(test hapax.Clock) (stepClock, error) {
	s := stepClock{c: make(chan struct{}, 1), last: new(time.Duration)}
	tell := func() {
		select {
		case s.c <- struct{}{}:
		default:
		}
	}
	if test != nil {
		s.drift = func() time.Duration {
			wall, mono := test.Now()
			return time.Duration(wall.UnixNano()) - mono
		}
		*s.last = s.drift()
		go func() { // lives as long as the process
			for seen := s.drift(); ; time.Sleep(testPoll) {
				if d := s.drift(); (d - seen).Abs() >= stepSlack {
					seen = d
					tell()
				}
			}
		}()
		return s, nil
	}
	s.drift = func() time.Duration { return read(unix.CLOCK_REALTIME) - now() }
	f, err := timerfd(unix.CLOCK_REALTIME)
	if err != nil {
		return s, err
	}
	const never = 1<<62 - 1 // about the year 2116
	if err := arm(f, never, unix.TFD_TIMER_CANCEL_ON_SET); err != nil {
		return s, err
	}
	*s.last = s.drift()
	go func() { // lives as long as the process
		for buf := make([]byte, 8); ; {
			_, err := f.Read(buf)
			if err != nil && !errors.Is(err, unix.ECANCELED) {
				return
			}
			if err := arm(f, never, unix.TFD_TIMER_CANCEL_ON_SET); err != nil {
				return
			}
			tell()
		}
	}()
	return s, nil
}

// testPoll is how often a test's clock is looked at.
const testPoll = 5 * time.Millisecond

// steps returns the channel that receives each time that the wall clock is set.
func (s stepClock) steps() <-chan struct{} { return s.c }

// step returns by how much the wall clock was set since the last call.
func (s stepClock) step() time.Duration {
	d := s.drift()
	step := d - *s.last
	*s.last = d
	return step
}
