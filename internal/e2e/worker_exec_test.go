package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

// A wrapper is a running hapax worker exec or hold.
type wrapper struct {
	t      *testing.T
	cmd    *exec.Cmd
	mu     sync.Mutex // guards stderr
	stderr bytes.Buffer
	ended  chan struct{}
}

// Write implements io.Writer for standard error.
func (w *wrapper) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stderr.Write(p)
}

func (w *wrapper) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stderr.String()
}

// Time is granted for so long that nobody loses a worker ID who waits for the processor.
var longTime = []string{"--grant", "10m", "--grace", "1s", "--ahead", "10ms"}

// shortTime are flags under which a worker ID is lost soon after its holder can ask no more.
var shortTime = []string{"--pool", "brief", "--grant", "12s"}

// wrap starts hapax worker with longTime and arguments, on a server.
func wrap(t *testing.T, server, dir string, env []string, args ...string) *wrapper {
	t.Helper()
	w := &wrapper{t: t, ended: make(chan struct{})}
	args = slices.Concat([]string{"worker", args[0]}, longTime, args[1:])
	w.cmd = command(context.Background(), dir, append([]string{"HAPAX_SERVER=" + server}, env...), args...)
	w.cmd.Stderr, w.cmd.WaitDelay = w, time.Second
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.cmd.Wait() // the status is in ProcessState
		close(w.ended)
	}()
	t.Cleanup(func() {
		w.signal(syscall.SIGCONT)
		w.signal(syscall.SIGKILL)
		<-w.ended
	})
	return w
}

func (w *wrapper) signal(sig syscall.Signal) { _ = w.cmd.Process.Signal(sig) }

// end waits for the end and wants the exit code.
func (w *wrapper) end(status int) {
	w.t.Helper()
	patience.Closed(w.t, "the wrapper's end", w.ended, stringer(w.said))
	if got := w.cmd.ProcessState.ExitCode(); got != status {
		w.t.Errorf("exit code %d, want %d: %s", got, status, w.said())
	}
}

// readWithin waits for a file that is not empty and returns its text.
func readWithin(t *testing.T, path string) (text string) {
	t.Helper()
	patience.Until(t, path+" is written", func() bool {
		data, err := os.ReadFile(path)
		text = strings.TrimSpace(string(data))
		return err == nil && text != ""
	})
	return text
}

func pidIn(t *testing.T, path string) int {
	t.Helper()
	pid, err := strconv.Atoi(readWithin(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// gone waits until a process has ended.
func gone(t *testing.T, what string, pid int) {
	t.Helper()
	patience.Until(t, what+" has ended", func() bool { _, lives := eachProcess()[pid]; return !lives })
}

func workerServer(t *testing.T) *serving {
	t.Helper()
	return serve(t, t.TempDir(), nil, "--pools", "{default: {grant: 10m, max_grant: 10m, lease: 1s}, brief: {grant: 12s, max_grant: 12s, lease: 1s}, few: {workers: 0-1}}")
}

// What is handed over is handed over as it is: arguments, environment, exit codes.
func TestWorkerExecRunsTheCommandItself(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	exec := func(status int, args ...string) string {
		t.Helper()
		w := wrap(t, s.url, dir, []string{"W=old"}, append([]string{"exec"}, args...)...)
		w.end(status)
		return w.said()
	}
	exec(0, "--", "sh", "-c", `echo $PPID > parent; printf '%s|' "$@" > args`, "sh", "a b", "$HOME", "*", "--pool")
	if got := readWithin(t, filepath.Join(dir, "args")); got != "a b|$HOME|*|--pool|" {
		t.Errorf("the arguments came as %q", got)
	}
	exec(0, "--workers", "100-100", "--env", "W={worker}", "--env", "DC={worker/32}", "--env", "M=m{worker%32+1}{{}", "sh", "-c", `echo $HAPAX_WORKER_ID $W $DC $M > env`)
	if got := readWithin(t, filepath.Join(dir, "env")); got != "100 100 3 m5{}" {
		t.Errorf("the environment came as %q", got)
	}
	if said := exec(0, "--pool", "few", "--env", "W={worker%32}", "--", "true"); !strings.Contains(said, "give the same W:") {
		t.Errorf("of a number that other worker IDs have too it says %q", said)
	}
	if said := exec(0, "--workers", "0-31", "--env", "W={worker%32}", "--", "true"); said != "" {
		t.Errorf("of a number that no other worker ID has it says %q", said)
	}
	exec(7, "--", "sh", "-c", "exit 7")
	exec(128+9, "--", "sh", "-c", "kill -9 $$")
}

// A shell between would take the signal for itself, and a command that was never to
// start would be started.
func TestWorkerExecHandsSignalsOn(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	t.Run("at once", func(t *testing.T) {
		dir := t.TempDir()
		w := wrap(t, s.url, dir, nil, "exec", "--", "sh", "-c", `trap 'echo usr1 > usr1' USR1; trap 'echo term > term; exit 3' TERM; echo $$ > pid; while :; do sleep 0.05; done`)
		pid := pidIn(t, filepath.Join(dir, "pid"))
		if parent := eachProcess()[pid]; parent != w.cmd.Process.Pid {
			t.Errorf("the command's parent is %d, want the supervisor, %d", parent, w.cmd.Process.Pid)
		}
		w.signal(syscall.SIGUSR1)
		readWithin(t, filepath.Join(dir, "usr1"))
		w.signal(syscall.SIGTERM)
		w.end(3)
	})
	t.Run("with what the command started", func(t *testing.T) {
		dir := t.TempDir()
		w := wrap(t, s.url, dir, nil, "exec", "--grace", "500ms", "--", "sh", "-c",
			`sh -c 'trap "" TERM; echo $$ > deaf; while :; do sleep 0.05; done' & setsid sh -c 'echo $$ > left; exec sleep 1000' & wait`)
		deaf, left := pidIn(t, filepath.Join(dir, "deaf")), pidIn(t, filepath.Join(dir, "left"))
		w.signal(syscall.SIGTERM)
		w.end(128 + 15)
		for what, pid := range map[string]int{"what ignores SIGTERM": deaf, "what left the session": left} {
			if _, lives := eachProcess()[pid]; lives {
				t.Errorf("%s lives on after the wrapper's end", what)
			}
		}
	})
	t.Run("before there is a command", func(t *testing.T) {
		dir := t.TempDir()
		holders := []*wrapper{wrap(t, s.url, dir, nil, "exec", "--pool", "few", "--workers", "0", "--", "sh", "-c", "echo > held; exec sleep 1000")}
		patience.Until(t, "the only worker ID is held", func() bool { _, err := os.Stat(filepath.Join(dir, "held")); return err == nil })
		w := wrap(t, s.url, dir, nil, "exec", "--pool", "few", "--workers", "0", "--", "sh", "-c", "echo > started")
		patience.Until(t, "it asks the server", func() bool {
			for _, fd := range globbed(fmt.Sprintf("/proc/%d/fd/*", w.cmd.Process.Pid)) {
				if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:") {
					return true
				}
			}
			return false
		})
		w.signal(syscall.SIGTERM)
		w.end(128 + 15)
		holders[0].signal(syscall.SIGTERM)
		holders[0].end(128 + 15)
		if _, err := os.Stat(filepath.Join(dir, "started")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the command was started after the signal: %v", err)
		}
	})
}

func globbed(pattern string) []string {
	paths, _ := filepath.Glob(pattern) // the pattern is well formed
	return paths
}

// tree is a command with a child in its group; both write down who they are.
const tree = `sh -c 'trap "" TERM; echo $$ > child; while :; do sleep 0.05; done' & trap "" TERM; echo $$ > command; while :; do sleep 0.05; done`

func startTree(t *testing.T, s *serving, args ...string) (w *wrapper, command, child int) {
	t.Helper()
	dir := t.TempDir()
	w = wrap(t, s.url, dir, nil, slices.Concat([]string{"exec"}, shortTime, args, []string{"--", "sh", "-c", tree})...)
	return w, pidIn(t, filepath.Join(dir, "command")), pidIn(t, filepath.Join(dir, "child"))
}

// dogOf returns the watchdog of a wrapper.
func dogOf(t *testing.T, w *wrapper) (dog int) {
	t.Helper()
	patience.Until(t, "there is a watchdog", func() bool {
		dogs, _ := wrapped(eachProcess(), w.cmd.Process.Pid)
		if len(dogs) == 1 {
			dog = dogs[0]
		}
		return len(dogs) == 1
	})
	return dog
}

// What the system tells of the timer of a watchdog, which is set to its deadline.
const (
	timerUnset = iota
	timerRuns
	timerOver
)

func timerOf(pid int) int {
	for _, path := range globbed(fmt.Sprintf("/proc/%d/fdinfo/*", pid)) {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "it_value:") {
			continue
		}
		switch {
		case !strings.Contains(string(text), "it_value: (0, 0)"):
			return timerRuns
		case !strings.Contains(string(text), "ticks: 0\n"):
			return timerOver
		}
	}
	return timerUnset
}

// Whatever happens to the supervisor or to the watchdog, nothing outlives the deadline.
func TestWorkerExecLeavesNothing(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	t.Run("supervisor killed", func(t *testing.T) {
		t.Parallel()
		w, command, child := startTree(t, s)
		w.signal(syscall.SIGKILL)
		gone(t, "the command", command)
		gone(t, "its child", child)
	})
	t.Run("supervisor frozen", func(t *testing.T) {
		t.Parallel()
		w, command, child := startTree(t, s)
		w.signal(syscall.SIGSTOP)
		gone(t, "the command", command)
		gone(t, "its child", child)
		w.signal(syscall.SIGCONT)
		w.end(114)
	})
	t.Run("watchdog killed, then supervisor frozen", func(t *testing.T) {
		t.Parallel()
		w, command, child := startTree(t, s)
		old := dogOf(t, w)
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		gone(t, "the watchdog", old)
		patience.Until(t, "the new watchdog knows what it is for", func() bool { return timerOf(dogOf(t, w)) == timerRuns }, stringer(w.said))
		w.signal(syscall.SIGSTOP)
		gone(t, "the command", command)
		gone(t, "its child", child)
		w.signal(syscall.SIGCONT)
		w.end(114)
	})
	t.Run("watchdog frozen", func(t *testing.T) {
		t.Parallel()
		w, command, child := startTree(t, s)
		dog := dogOf(t, w)
		if err := syscall.Kill(dog, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		patience.Until(t, "what it knows to be granted is over", func() bool { return timerOf(dog) == timerOver }, stringer(w.said))
		if all := eachProcess(); all[command] == 0 || all[child] == 0 {
			t.Error("the command ended, though its time was extended")
		}
		_ = syscall.Kill(dog, syscall.SIGCONT)
		patience.Until(t, "it has read what was granted meanwhile, or has bitten", func() bool {
			_, lives := eachProcess()[command]
			return timerOf(dog) == timerRuns || !lives
		}, stringer(w.said))
		if all := eachProcess(); all[command] == 0 || all[child] == 0 {
			t.Error("a watchdog that was frozen ended the command, though its time was extended")
		}
		w.signal(syscall.SIGKILL)
		gone(t, "the command", command)
		gone(t, "its child", child)
	})
}

// Servers that are away have the command told to stop, and killed before its time is
// over.
func TestWorkerExecWithoutServers(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	polite := wrap(t, s.url, dir, nil, "exec", "--pool", "brief", "--grant", "12s", "--", "sh", "-c",
		`trap 'echo > told; exit 0' TERM; echo > polite; while :; do sleep 0.05; done`)
	readable := func(name string) {
		t.Helper()
		patience.Until(t, name, func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil })
	}
	readable("polite")
	w, command, child := startTree(t, s)
	s.kill()
	readable("told")
	polite.end(114)
	w.end(114)
	for _, pid := range []int{command, child} {
		if _, lives := eachProcess()[pid]; lives {
			t.Error("the command outlived its time")
		}
	}
	if !strings.Contains(w.said(), "cannot be reached") {
		t.Errorf("the reason is not told: %s", w.said())
	}
}

// What cannot be done has a reason and an exit code of its own.
func TestWorkerExecRefuses(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"plain": 0o600, "program": 0o700} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\x7fno program\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	clock := filepath.Join(dir, "clock")
	if err := os.WriteFile(clock, []byte("-1m"), 0o600); err != nil {
		t.Fatal(err)
	}
	started := filepath.Join(dir, "busy")
	busy := wrap(t, s.url, dir, nil, "exec", "--pool", "few", "--workers", "1", "--name", "nightly", "--", "sh", "-c", "echo > busy; exec sleep 1000")
	patience.Until(t, "a worker ID is held", func() bool { _, err := os.Stat(started); return err == nil })
	for _, tt := range []struct {
		name   string
		env    []string
		args   []string
		status int
		says   string
	}{
		{"no command", nil, nil, 125, "missing command"},
		{"unknown command", nil, []string{"--", "no-such-command"}, 127, `"no-such-command"`},
		{"no permission to run it", nil, []string{"--", "./plain"}, 126, "permission denied"},
		{"no program", nil, []string{"--", "./program"}, 126, "exec format error"},
		{"busy pool", nil, []string{"--pool", "few", "--workers", "1", "--wait", "1s", "--", "true"}, 110, "in use"},
		{"outside the generator's range", nil, []string{"--for", "yitter", "--workers", "60-70", "--", "true"}, 125, "0 to 63"},
		{"outside the pool", nil, []string{"--workers", "1000-1024", "--", "true"}, 125, "0 to 1023"},
		{"a range that is none", nil, []string{"--workers", "5-x", "--", "true"}, 125, "LO-HI"},
		{"an unknown generator", nil, []string{"--for", "twitter", "--", "true"}, 125, "yitter"},
		{"a template without the worker ID", nil, []string{"--env", "W=5", "--", "true"}, 125, "{worker}"},
		{"a template that divides by zero", nil, []string{"--env", "W={worker/0}", "--", "true"}, 125, "{worker}"},
		{"an unknown flag", nil, []string{"--shell", "--", "true"}, 125, "--shell"},
		{"a grant that is too short to stop in", nil, []string{"--grant", "2s", "--", "true"}, 125, "grant"},
		{"more grace than the servers grant", nil, []string{"--pool", "brief", "--grant", "1m", "--grace", "11s", "--", "true"}, 125, "grace"},
		{"no server", []string{"HAPAX_SERVER=http://127.0.0.1:1"}, []string{"--wait", "1s", "--", "true"}, 111, "127.0.0.1:1"},
		{"a wrong clock", []string{"HAPAX_TEST_CLOCK_OFFSET=@" + clock}, []string{"--wait", "5s", "--", "true"}, 113, "the local clock and the store's differ too much"},
		{"a command that goes on in the background", nil, []string{"--", "sh", "-c", "setsid sleep 1000 & exit 0"}, 116, "foreground"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := wrap(t, s.url, dir, tt.env, append([]string{"exec"}, tt.args...)...)
			w.end(tt.status)
			if said := w.said(); !strings.Contains(said, tt.says) || !strings.HasPrefix(said, "hapax: ") {
				t.Errorf("it says %q, want something with %q", said, tt.says)
			}
		})
	}
	list := ok(t, dir, "workers", "list", "few", "--server", s.url)
	for _, want := range []string{"held", "name=nightly", "cmd=sh", fmt.Sprint("pid=", busy.cmd.Process.Pid), "host="} {
		if !strings.Contains(list, want) {
			t.Errorf("the list of workers does not tell of %q: %s", want, list)
		}
	}
}

// A token needs the scope for leases, and the pool.
func TestWorkerExecNeedsAToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	issues, issuesHash := newToken(t)
	leases, leasesHash := newToken(t)
	config := filepath.Join(dir, "hapax.yaml")
	text := fmt.Sprintf("tokens: {issues: {hash: '%s', scopes: [issue]}, leases: {hash: '%s', scopes: [lease], pools: [default]}}", issuesHash, leasesHash)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--config", config)
	for _, tt := range []struct {
		name, token, pool string
		status            int
	}{
		{"none", "", "default", 112},
		{"one that only issues", issues, "default", 112},
		{"one for another pool", leases, "other", 112},
		{"the right one", leases, "default", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wrap(t, s.url, dir, []string{"HAPAX_TOKEN=" + tt.token}, "exec", "--pool", tt.pool, "--", "true").end(tt.status)
		})
	}
}

// A clock that is set back while the command runs ends it, or is told of.
func TestWorkerExecOnClockStep(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	for _, tt := range []struct {
		policy, step string
		status       int
		says         string
	}{
		{"kill", "-100ms", 115, "clock went back"},
		{"warn", "-100ms", 0, "set back by 100"},
		{"kill", "100ms", 0, "set forward by 100"},
		{"warn", "11m", 114, "about to be lost"}, // beyond what is granted
	} {
		t.Run(tt.policy+tt.step, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			clock := filepath.Join(dir, "clock")
			if err := os.WriteFile(clock, []byte("0s"), 0o600); err != nil {
				t.Fatal(err)
			}
			w := wrap(t, s.url, dir, []string{"HAPAX_TEST_CLOCK_OFFSET=@" + clock},
				"exec", "--on-clock-step", tt.policy, "--", "sh", "-c", `echo $$ > pid; sleep 2`)
			pidIn(t, filepath.Join(dir, "pid"))
			if err := os.WriteFile(clock, []byte(tt.step), 0o600); err != nil {
				t.Fatal(err)
			}
			w.end(tt.status)
			if !strings.Contains(w.said(), tt.says) {
				t.Errorf("it says %q, want something with %q", w.said(), tt.says)
			}
		})
	}
}

// Hold keeps a file up to date, and takes it away when the worker ID is lost or given
// back.
func TestWorkerHold(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "worker")
	read := func() map[string]string {
		values := map[string]string{}
		for line := range strings.Lines(readWithin(t, file)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			values[name] = value
		}
		return values
	}
	address := freeAddress(t)
	w := wrap(t, s.url, dir, nil, "hold", "--pool", "brief", "--grant", "12s", "--file", file, "--http", address, "--env", "DC={worker/32}", "--workers", "70")
	first := read()
	var told string
	patience.Until(t, "the worker ID is told", func() bool {
		res, err := http.Get("http://" + address + "/worker")
		if err != nil {
			return false
		}
		body, _ := io.ReadAll(res.Body)
		told = string(body)
		return res.Body.Close() == nil
	})
	if told != "70" {
		t.Errorf("it tells %q", told)
	}
	if first["HAPAX_WORKER_ID"] != "70" || first["DC"] != "2" {
		t.Errorf("the file has %v", first)
	}
	until, err := time.Parse(time.RFC3339, first["HAPAX_WORKER_UNTIL"])
	if ms := fmt.Sprint(until.UnixMilli()); err != nil || ms != first["HAPAX_WORKER_UNTIL_MS"] {
		t.Errorf("it may be used until %v, %s ms: %v", until, ms, err)
	}
	patience.Until(t, "more is granted", func() bool { return read()["HAPAX_WORKER_UNTIL_MS"] > first["HAPAX_WORKER_UNTIL_MS"] })
	w.signal(syscall.SIGTERM)
	w.end(0)
	if res, err := http.Get("http://" + address + "/worker"); err == nil {
		t.Errorf("it is told after the end: %d, %v", res.StatusCode, res.Body.Close())
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}

	w = wrap(t, s.url, dir, nil, "hold", "--pool", "brief", "--grant", "12s", "--file", file, "--on-lost", "touch lost")
	read()
	s.kill()
	w.end(114)
	for name, want := range map[string]error{file: fs.ErrNotExist, filepath.Join(dir, "lost"): nil} {
		if _, err := os.Stat(name); !errors.Is(err, want) {
			t.Errorf("%s after the loss: %v, want %v", name, err, want)
		}
	}
}
