package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
)

// Two holders are wrapped generators that have one worker ID after the other: the second
// waits for it while the first one meets trouble.
type holders struct {
	t       *testing.T
	twin    bool
	server  *serving
	data    string // the server's directory
	clock   string // file with the offset of both clocks
	first   *holder
	second  *holder
	seconds []*holder // those before the second that were late
}

// A holder is one wrapper with its generator.
type holder struct {
	*wrapper
	dir string // gets the numbers; no other process has it in its environment
}

// holderGrant is what wrappers ask for. Servers add three seconds before they give the
// worker ID away, so that nobody is too late who only waits for the processor.
const holderGrant = 12 * time.Second

func newHolders(t *testing.T, twin bool) *holders {
	t.Helper()
	h := &holders{t: t, twin: twin, data: t.TempDir(), clock: filepath.Join(t.TempDir(), "clock")}
	h.set("0s")
	h.serve("127.0.0.1:0")
	return h
}

func (h *holders) serve(at string) {
	h.t.Helper()
	h.server = serve(h.t, h.data, nil, "--http", at, "--pools", fmt.Sprintf("{default: {workers: 0, grant: %v, max_grant: %[1]v, lease: 3s}}", holderGrant))
}

// set sets the clock.
func (h *holders) set(offset string) {
	h.t.Helper()
	if err := os.WriteFile(h.clock+".new", []byte(offset), 0o600); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(h.clock+".new", h.clock); err != nil {
		h.t.Fatal(err)
	}
}

// start starts a wrapper whose generator runs until it is told to stop.
func (h *holders) start() *holder {
	h.t.Helper()
	w := &holder{wrapper: &wrapper{t: h.t, ended: make(chan struct{})}, dir: h.t.TempDir()}
	g := generator{Dir: w.dir, Clock: h.clock, For: time.Hour, Nested: true}
	if h.twin {
		g.Twin = &idOnly{Server: h.server.url, IDs: 1, Grant: holderGrant}
	}
	w.cmd = wrappedGenerator(g, h.server.url, "0", "10m")
	w.cmd.Stderr, w.cmd.WaitDelay = w.wrapper, time.Second
	if err := w.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		_ = w.cmd.Wait() // the status is in ProcessState
		close(w.ended)
	}()
	h.t.Cleanup(func() {
		for _, pid := range w.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		w.wrapper.signal(syscall.SIGKILL)
		<-w.ended
	})
	return w
}

// wrappedGenerator is hapax worker exec around a generator, or its twin.
func wrappedGenerator(g generator, server, workers, wait string) *exec.Cmd {
	env, err := g.env()
	if err != nil {
		panic(err) // it is made of texts and numbers
	}
	cmd := command(context.Background(), g.Dir, []string{env, "HAPAX_TEST_CLOCK_OFFSET=@" + g.Clock, "GOMAXPROCS=1"},
		"worker", "exec", "--server", server, "--workers", workers, "--wait", wait,
		"--grant", holderGrant.String(), "--grace", "800ms", "--ahead", "100ms", "--max-skew", "5s", "--", self())
	if g.Twin != nil {
		cmd.Path, cmd.Args = self(), []string{self()}
	}
	return cmd
}

// processes returns all that live of a wrapper.
func (w *holder) processes() (all []int) {
	for pid := range eachProcess() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && strings.Contains(string(env), generatorVariable+"=") && strings.Contains(string(env), w.dir) {
			all = append(all, pid)
		}
	}
	return all
}

func (w *holder) numbers() []hapax.ID {
	w.t.Helper()
	ids, err := numbersIn(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return ids
}

// issues waits until the generator has made some more numbers, and reports false if its wrapper was late.
func (w *holder) issues() bool {
	w.t.Helper()
	had := len(w.numbers())
	patience.Until(w.t, "the generator makes numbers", func() bool { return len(w.numbers()) > had+10 || w.late() }, w.server())
	return len(w.numbers()) > had+10
}

// late reports whether a wrapper has ended because no more time was granted to it, as one does that gets
// no share of the processor.
func (w *holder) late() bool {
	select {
	case <-w.ended:
		return w.cmd.ProcessState.ExitCode() == 114
	default:
		return false
	}
}

// server is what the wrapper says, for patience.
func (w *holder) server() fmt.Stringer { return stringer(w.said) }

type stringer func() string

func (s stringer) String() string { return s() }

// parts returns the watchdog and the command of a wrapper; there is none of the twin, nor of one that
// was late.
func (w *holder) parts() (dog, command int, lives bool) {
	w.t.Helper()
	patience.Until(w.t, "there is a watchdog and a command", func() bool {
		if w.late() {
			return true
		}
		dogs, commands := wrapped(eachProcess(), w.cmd.Process.Pid)
		all := eachProcess()
		commands = slices.DeleteFunc(commands, func(pid int) bool { return all[pid] != w.cmd.Process.Pid })
		if len(commands) != 1 || len(dogs) != 1 {
			return false
		}
		dog, command, lives = dogs[0], commands[0], true
		return true
	}, w.server())
	return dog, command, lives
}

// over lets everything of a wrapper go on that was frozen, and waits until nothing is left.
func (w *holder) over() {
	w.t.Helper()
	patience.Until(w.t, "nothing is left of the wrapper", func() bool {
		left := w.processes()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return len(left) == 0
	}, w.server())
	<-w.ended
}

// holderTroubles are what happens to the first holder while the second waits. None of them
// waits for its end.
var holderTroubles = []struct {
	name  string
	twin  bool // finds a wrapper that keeps the worker ID and not the time
	cause func(h *holders)
}{
	{"supervisor killed", true, func(h *holders) { h.first.signal(syscall.SIGKILL) }},
	{"supervisor frozen", true, func(h *holders) { h.first.signal(syscall.SIGSTOP) }},
	{"watchdog killed", false, func(h *holders) {
		if dog, _, lives := h.first.parts(); lives {
			_ = syscall.Kill(dog, syscall.SIGKILL)
			gone(h.t, "the watchdog", dog)
		}
		h.first.signal(syscall.SIGTERM)
	}},
	{"watchdog frozen", false, func(h *holders) {
		if dog, _, lives := h.first.parts(); lives {
			_ = syscall.Kill(dog, syscall.SIGSTOP)
			h.first.issues()
		}
		h.first.signal(syscall.SIGTERM)
	}},
	{"command killed", false, func(h *holders) {
		if _, command, lives := h.first.parts(); lives {
			_ = syscall.Kill(command, syscall.SIGKILL)
		}
	}},
	{"command frozen, supervisor killed", false, func(h *holders) {
		if _, command, lives := h.first.parts(); lives {
			_ = syscall.Kill(command, syscall.SIGSTOP)
		}
		h.first.signal(syscall.SIGKILL)
	}},
	{"servers away", false, func(h *holders) {
		at := strings.TrimPrefix(h.server.url, "http://")
		h.server.kill()
		h.first.end(114) // it was stopped in time
		h.serve(at)
	}},
	{"servers frozen", false, func(h *holders) {
		_ = h.server.cmd.Process.Signal(syscall.SIGSTOP)
		h.first.end(114)
		_ = h.server.cmd.Process.Signal(syscall.SIGCONT)
	}},
	{"the clock set back between them", false, func(h *holders) { h.between("-900ms") }},
}

// between sets the clock when the first one has ended, and then has the second start.
func (h *holders) between(offset string) {
	h.second.signal(syscall.SIGTERM) // another one comes instead
	h.second.over()
	h.first.signal(syscall.SIGTERM)
	if h.twin { // which hands nothing on
		for _, pid := range h.first.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	h.first.over()
	h.set(offset)
	h.second = h.start()
}

// A naive generator in hapax worker exec meets trouble, and another one waits for its
// worker ID: it has it in the end, and all its numbers lie above those of the first.
func TestWrappedGenerator(t *testing.T) {
	t.Parallel()
	for _, trouble := range holderTroubles {
		t.Run(trouble.name, func(t *testing.T) {
			t.Parallel()
			h := newHolders(t, false)
			if h.meet(trouble.cause); !h.apart() {
				t.Error("the second one makes numbers that lie below those of the first")
			}
			h.first.over()
			h.second.signal(syscall.SIGTERM)
			h.second.over()
			if !h.apart() {
				t.Error("in the end the second one has made numbers that lie below those of the first")
			}
		})
	}
}

// The same finds a wrapper that keeps the worker ID and not the time.
func TestWrapperThatKeepsOnlyTheID(t *testing.T) {
	t.Parallel()
	for _, trouble := range holderTroubles {
		if !trouble.twin {
			continue
		}
		t.Run(trouble.name, func(t *testing.T) {
			t.Parallel()
			h := newHolders(t, true)
			h.meet(trouble.cause)
			patience.Until(t, "the second one makes numbers that lie below those of the first", func() bool { return !h.apart() })
		})
	}
	t.Run("the clock set back between them", func(t *testing.T) {
		t.Parallel()
		h := newHolders(t, true)
		h.meet(func(h *holders) { h.between("-1h") })
		if h.apart() {
			t.Error("with its clock an hour slow the second one makes no number that lies below those of the first")
		}
	})
}

// meet has the first one make numbers, the second one wait, and the trouble happen; it
// returns when the second one makes numbers.
func (h *holders) meet(trouble func(*holders)) {
	h.t.Helper()
	for h.first = h.start(); !h.first.issues(); h.first = h.start() {
		h.t.Log("no time was granted to the first one; another one comes")
	}
	h.second = h.start()
	trouble(h)
	for !h.second.issues() {
		h.t.Log("no time was granted to the second one; another one comes")
		h.seconds = append(h.seconds, h.second)
		h.second = h.start()
	}
}

// apart reports whether all numbers of the second lie above all of the first.
func (h *holders) apart() bool {
	h.t.Helper()
	// The second one's first: what the first one makes later is to count.
	numbers := h.second.numbers()
	for _, s := range h.seconds {
		numbers = append(numbers, s.numbers()...)
	}
	return slices.Max(h.first.numbers()) < slices.Min(numbers)
}
