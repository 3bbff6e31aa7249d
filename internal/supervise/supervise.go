// Package supervise runs a command that may live only as long as a worker ID is
// granted: a foreign number generator, which reads the clock itself and knows nothing
// of grants.
//
// Two processes hold the deadline. The supervisor starts the command, extends the
// lease, hands signals on, and ends the command in time when it cannot be extended. The
// watchdog, a process of its own, only knows the deadline and the command's session: it
// kills when the deadline is reached, or when the supervisor is gone.
//
//	running:  the deadline moves with each extension
//	stopping: SIGTERM was sent, since no more time comes; the deadline stays where it is
//	killed:   SIGKILL was sent, at the deadline or since the clock was set back
//	ended:    the command is gone; what it started and left behind is ended too
//
// The deadline is kept by a clock that goes on while the machine sleeps. Where the
// kernel offers it, the command dies with the supervisor, and what it left behind
// becomes the supervisor's child. See Limits for the systems that lack some of this.
package supervise

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
)

// A Held is the worker ID while it is held; *hapax.HeldWorker is one.
type Held interface {
	Remaining() time.Duration
	Lost() <-chan struct{}
	Err() error
}

// Options say what is run and how it is stopped.
type Options struct {
	Path string   // the executable
	Args []string // with the name that it is called by
	Env  []string

	Margin  time.Duration // how long before the time granted is over SIGKILL is sent
	Grace   time.Duration // for processes that the command left behind
	Survive bool          // a clock that is set back is told of, and does not end the command

	Signals  <-chan os.Signal // to be handed on
	Extended <-chan struct{}  // tells that the lease was extended
	Watchdog []string         // arguments of this executable to have it call Watch
	Stage    []string         // the same for Begin
	Clock    hapax.Clock      // for tests; default the system's
	Tell     func(string)     // what the user should know
}

// A Cause is why the command ended.
type Cause int

// The causes.
const (
	Exited     Cause = iota // by itself
	NotStarted              // it never ran
	Lost                    // the lease was not extended
	ClockSet                // the wall clock was set back
	LeftBehind              // by itself, but what it had started ran on
)

// A Result tells how the command ended.
type Result struct {
	Cause  Cause
	Status int   // of the command, as shells have it: 128 and the signal's number if it was killed
	Err    error // why it was not started, or the lease was not extended

	// Gone tells that nothing that the command started is known to be left.
	Gone bool
}

// stepSlack is how far the wall clock may be from where it should be until it counts
// as set; reading two clocks takes a moment between them.
const stepSlack = time.Millisecond

// leftBehindPoll is how often to look whether what was told to end has ended.
const leftBehindPoll = 10 * time.Millisecond

// A run is one command with its deadline.
type run struct {
	Options

	held  Held
	cmd   *command
	dog   *watchdog
	dogs  chan *watchdog // a new one, or nil
	alarm *alarm
	clock stepClock

	cause Cause
	err   error
}

// Run runs the command to its end. It is called once in a process, which has no other
// children.
func Run(held Held, opts Options) Result {
	defer keepThread()() // the one whose death the command hears of
	r := &run{Options: opts, held: held, dogs: make(chan *watchdog, 1)}
	if err := r.start(); err != nil {
		if r.dog != nil {
			r.dog.dismiss()
		}
		return Result{Cause: NotStarted, Err: err, Gone: true}
	}
	defer r.alarm.stop()
	status := r.wait()
	gone := r.cleanUp()
	if r.dog != nil && r.dog.dismiss() { // it was the one who killed
		r.cause = Lost
	}
	if r.cause == Lost && r.err == nil {
		if r.err = held.Err(); r.err == nil {
			r.err = errors.New("the time granted was over before the supervisor could have it extended")
		}
	}
	return Result{Cause: r.cause, Status: status, Err: r.err, Gone: gone}
}

func (r *run) start() (err error) {
	if err = adoptOrphans(); err != nil {
		return err
	}
	if r.alarm, err = newAlarm(); err != nil {
		return err
	}
	if r.clock, err = newStepClock(r.Clock); err != nil {
		return err
	}
	// The watchdog is there before the command, so that no moment of the command goes unwatched.
	if r.dog, err = startWatchdog(r.Watchdog, nobody, r.deadline()); err != nil {
		return err
	}
	if r.cmd, err = startCommand(r.Stage, r.Path, r.Args, r.Env); err != nil {
		return err
	}
	d := r.deadline()
	r.alarm.set(d)
	if !r.dog.guard(r.cmd.pid, d) {
		err = errors.New("the watchdog does not listen")
	}
	select { // nothing is started for somebody who wants it to end
	case sig := <-r.Signals:
		err = InterruptedError{sig}
	case <-r.held.Lost():
		err = r.held.Err()
	default:
	}
	if err == nil {
		err = r.cmd.letGo()
	}
	if err != nil {
		r.cmd.kill()
	}
	return err
}

// An InterruptedError says that a signal came before the command was started.
type InterruptedError struct{ Signal os.Signal }

func (e InterruptedError) Error() string {
	return fmt.Sprintf("%v before the command was started", e.Signal)
}

// Status is what a command that the signal ends leaves.
func (e InterruptedError) Status() int { return statusOf(e.Signal) }

func statusOf(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return 1
}

// deadline returns when SIGKILL is due, by the clock of now.
func (r *run) deadline() time.Duration {
	boot := now() // first: what comes between counts as used
	return boot + r.held.Remaining() - r.Margin
}

func (r *run) moveDeadline() {
	d := r.deadline()
	r.alarm.set(d)
	if r.dog != nil && !r.dog.guard(r.cmd.pid, d) {
		r.replaceWatchdog()
	}
}

// wait runs the command to its end and returns its status.
func (r *run) wait() int {
	lost, extended := r.held.Lost(), r.Extended
	for {
		var bark <-chan struct{}
		if r.dog != nil {
			bark = r.dog.ended
		}
		select {
		case status := <-r.cmd.ended:
			return status
		case sig := <-r.Signals:
			r.cmd.signal(sig)
		case <-extended:
			r.moveDeadline()
		case <-lost:
			lost, extended = nil, nil // the deadline stays
			r.cause, r.err = Lost, r.held.Err()
			r.Tell(fmt.Sprintf("the worker ID is about to be lost, and the command is told to stop: %s", hapax.Message(r.err)))
			r.cmd.terminate()
		case <-r.alarm.c:
			if r.cause == Exited { // a command that is stopping already keeps the first cause
				r.cause = Lost
			}
			r.cmd.kill()
		case <-r.clock.steps():
			r.clockWasSet()
		case <-bark:
			r.replaceWatchdog()
		case dog := <-r.dogs:
			// It was started with the deadline of then: extensions may have come since.
			r.dog = dog
			r.moveDeadlineAgain(extended == nil)
		}
	}
}

// moveDeadlineAgain tells a new watchdog the deadline. Once the command was told to
// stop, only the alarm of the supervisor's stays where it was: the new watchdog has the
// end of the grant.
func (r *run) moveDeadlineAgain(stopping bool) {
	switch {
	case r.dog == nil:
		r.cause, r.err = Lost, errors.New("there is no watchdog, and none can be started")
		r.cmd.terminate()
	case stopping:
		r.dog.guard(r.cmd.pid, r.deadline())
	default:
		r.moveDeadline()
	}
}

// replaceWatchdog starts a new one after the old one was killed, or does not read what
// it is told. Until it is there the supervisor holds the deadline alone.
func (r *run) replaceWatchdog() {
	old := r.dog
	r.dog = nil
	leader, deadline := r.cmd.pid, r.deadline()
	go func() { // ends before the process does, or with it
		if old.dismiss() {
			r.dogs <- nil // it killed the command, whose end is on its way
			return
		}
		dog, err := startWatchdog(r.Watchdog, leader, deadline)
		if err != nil {
			dog = nil
		}
		r.dogs <- dog
	}()
}

// clockWasSet decides what a step of the wall clock means. A step forward is harmless
// as far as the grant reaches; after one back, most generators repeat themselves.
func (r *run) clockWasSet() {
	step := r.clock.step().Round(stepSlack)
	if step == 0 {
		return
	}
	switch {
	case step < 0 && !r.Survive:
		r.cause, r.err = ClockSet, fmt.Errorf("%w: by %v", hapax.ErrClockRollback, -step)
		r.cmd.kill()
	case step < 0:
		r.Tell(fmt.Sprintf("the wall clock was set back by %v; a generator that does not look out for that may repeat numbers", -step))
	default:
		r.Tell(fmt.Sprintf("the wall clock was set forward by %v", step))
	}
	if r.cause == Exited {
		r.moveDeadline()
	}
}

// cleanUp ends what the command left behind, and reports whether nothing is left.
func (r *run) cleanUp() bool {
	left := r.cmd.left()
	if len(left) == 0 {
		return true
	}
	if r.cause == Exited {
		r.cause = LeftBehind
	}
	r.Tell(fmt.Sprintf("the command ended and left processes behind (%d), which are told to stop", len(left)))
	r.cmd.terminateLeft()
	over := now() + r.Grace
	for len(r.cmd.left()) > 0 {
		select {
		case <-r.alarm.c:
			// The time granted is over, and with it the grace.
			over = 0
		case <-time.After(leftBehindPoll):
		}
		if now() >= over {
			return r.cmd.killLeft()
		}
	}
	return true
}
