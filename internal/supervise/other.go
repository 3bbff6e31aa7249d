//go:build !linux

package supervise

import (
	"os"
	"os/exec"
	"time"

	"github.com/hapax-id/hapax"
)

// Limits says what this system cannot promise.
const Limits = `On this system there is no watchdog process: a supervisor that is killed or frozen
leaves the command running past its time. What the command leaves behind when it
ends is not found, and a set clock is noticed within 20 ms. On Linux
all of this is better.`

const poll = 20 * time.Millisecond

var started = time.Now()

// now returns the time since the start, by the wall clock or the other one, whichever
// went further: one of them goes on while the machine sleeps.
func now() time.Duration {
	t := time.Now()
	return max(t.Sub(started), t.Round(0).Sub(started.Round(0)))
}

func keepThread() (release func()) { return func() {} }

func adoptOrphans() error { return nil }

// A command is the process that was started, with a process group where there are any.
type command struct {
	pid   int
	cmd   *exec.Cmd
	ended chan int
}

func startCommand(_ []string, path string, args, env []string) (*command, error) {
	cmd := &exec.Cmd{Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: ownGroup()}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &command{pid: cmd.Process.Pid, cmd: cmd, ended: make(chan int, 1)}
	go func() { // ends with the command
		_ = cmd.Wait() // the status is in ProcessState
		c.ended <- shellStatus(cmd.ProcessState)
	}()
	return c, nil
}

func (c *command) letGo() error { return nil }

// Begin is what other systems run before the command.
func Begin([]string) int { return 1 }

func (c *command) signal(sig os.Signal) { _ = c.cmd.Process.Signal(sig) }
func (c *command) left() []int          { return nil }
func (c *command) terminateLeft()       {}
func (c *command) killLeft() bool       { return true }

// nobody is the leader of no session.
const nobody = 0

// A watchdog is a second process that holds the deadline, of which there is none here.
type watchdog struct{ ended chan struct{} }

func startWatchdog([]string, int, time.Duration) (*watchdog, error) { return &watchdog{}, nil }
func (*watchdog) guard(int, time.Duration) bool                     { return true }
func (*watchdog) dismiss() bool                                     { return false }

// Watch is the watchdog, which other systems have.
func Watch() int { return 1 }

// An alarm tells when a moment by the clock of now has come.
type alarm struct {
	c     chan struct{}
	moved chan time.Duration
	over  chan struct{}
}

func newAlarm() (*alarm, error) {
	a := &alarm{make(chan struct{}, 1), make(chan time.Duration), make(chan struct{})}
	go func() { // ends with stop
		at := time.Duration(1<<63 - 1)
		for tick := time.NewTicker(poll); ; {
			select {
			case <-a.over:
				tick.Stop()
				return
			case at = <-a.moved:
			case <-tick.C:
			}
			if now() >= at {
				select {
				case a.c <- struct{}{}:
				default:
				}
			}
		}
	}()
	return a, nil
}

func (a *alarm) set(at time.Duration) { a.moved <- at }
func (a *alarm) stop()                { close(a.over) }

// A stepClock notices that the wall clock was set.
type stepClock struct {
	c     chan struct{}
	clock hapax.Clock
	last  *time.Duration
}

func newStepClock(test hapax.Clock) (stepClock, error) {
	if test == nil {
		test = hapax.SystemClock{}
	}
	s := stepClock{make(chan struct{}, 1), test, new(time.Duration)}
	*s.last = s.drift()
	go func() { // lives as long as the process
		for seen := s.drift(); ; time.Sleep(poll) {
			if d := s.drift(); (d - seen).Abs() >= stepSlack {
				seen = d
				select {
				case s.c <- struct{}{}:
				default:
				}
			}
		}
	}()
	return s, nil
}

func (s stepClock) drift() time.Duration {
	wall, mono := s.clock.Now()
	return time.Duration(wall.UnixNano()) - mono
}

func (s stepClock) steps() <-chan struct{} { return s.c }

func (s stepClock) step() time.Duration {
	d := s.drift()
	step := d - *s.last
	*s.last = d
	return step
}
