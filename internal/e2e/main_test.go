package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
)

// binary is the real command, which the tests run.
var binary string

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(memberVariable); ok {
		if err := runMember(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if text, ok := os.LookupEnv(generatorVariable); ok {
		if err := runGenerator(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stdout, "skipped: every test needs real servers, and -short leaves those out")
		return
	}
	// What the tests compile is linked without tables for debuggers, which take half of the time.
	if err := os.Setenv("GOFLAGS", strings.TrimSpace(os.Getenv("GOFLAGS")+" -ldflags=-w")); err != nil {
		panic(err) // the name is valid
	}
	if err := flag.Set("test.parallel", strconv.Itoa(max(sideBySide, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err) // the flag exists
	}
	os.Exit(runTests(m))
}

// sideBySide is how many tests run at the same time: they wait for processes most of
// the time.
const sideBySide = 12

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "hapax-cmd-")
	if err == nil {
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "hapax")
		var out []byte
		if out, err = exec.Command("go", "build", "-tags", "hapaxtest", "-ldflags", "-s -w", "-o", binary, "../../cmd/hapax").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// result is what a finished command left.
type result struct {
	out, err string
	code     int
}

// command returns the binary with arguments, to be run in dir with nothing of
// hapax in its environment but what is given and a free port for RESP.
func command(ctx context.Context, dir string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HAPAX_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, "HAPAX_RESP=127.0.0.1:0", "HAPAX_LAME_DUCK=0s"), env...) // a free port, and no wait
	return cmd
}

// run runs a command to its end. A stack trace or a second line of error fails
// the test.
func run(t *testing.T, dir string, args ...string) result {
	t.Helper()
	return runWith(t, dir, "", nil, args...)
}

func runWith(t *testing.T, dir, in string, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	cmd := command(ctx, dir, env, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("hapax %q: %v", args, err)
	}
	r := result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	if strings.Contains(r.err, "goroutine ") || strings.Contains(r.err, "panic") {
		t.Fatalf("hapax %q: a stack trace: %s", args, r.err)
	}
	return r
}

// ok returns what a command printed that must succeed.
func ok(t *testing.T, dir string, args ...string) string {
	t.Helper()
	r := run(t, dir, args...)
	if r.code != 0 || r.err != "" {
		t.Fatalf("hapax %q: exit code %d, %s", args, r.code, r.err)
	}
	return r.out
}

// A serving process is a server that the test started.
type serving struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	logs sync.WaitGroup // the reader of its log
	over atomic.Bool    // the log has ended

	mu  sync.Mutex // guards log
	log bytes.Buffer
}

// serve starts a server on a free port in dir, and waits until it serves.
func serve(t *testing.T, dir string, env []string, args ...string) *serving {
	t.Helper()
	return start(t, command(context.Background(), dir, env, append([]string{"serve", "--http", "127.0.0.1:0", "--log-format", "json"}, args...)...))
}

// start is serve for a command that was made already.
func start(t *testing.T, cmd *exec.Cmd) *serving {
	t.Helper()
	s := &serving{t: t, cmd: cmd}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := make(chan string, 1)
	s.logs.Go(func() { s.read(stderr, started) })
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			s.kill()
		}
	})
	s.url = patience.Receive(t, "the server's start", started, s)
	return s
}

// read collects the log and reports the address that it tells, or that it ended.
func (s *serving) read(stderr io.Reader, started chan<- string) {
	defer close(started)
	defer s.over.Store(true)
	told := false
	lines := bufio.NewScanner(stderr)
	for lines.Buffer(nil, 16<<20); lines.Scan(); {
		s.mu.Lock()
		s.log.Write(append(lines.Bytes(), '\n'))
		s.mu.Unlock()
		var line struct{ Msg, HTTP string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" && !told {
			started <- line.HTTP
			told = true
		}
	}
}

// hasEnded reports whether the server has closed its log.
func (s *serving) hasEnded() bool { return s.over.Load() }

// resp returns the address of the Redis protocol, as the log tells it.
func (s *serving) resp() string {
	s.t.Helper()
	for line := range strings.Lines(s.logged()) {
		var e struct{ Msg, Resp string }
		if json.Unmarshal([]byte(line), &e) == nil && e.Msg == "serving" {
			return e.Resp
		}
	}
	s.t.Fatal("the log tells no address of the Redis protocol")
	return ""
}

func (s *serving) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// String is the log, for patience.
func (s *serving) String() string { return s.logged() }

// kill ends the server as a power loss does.
func (s *serving) kill() { s.end(syscall.SIGKILL) }

// stop asks the server to stop and returns its exit code.
func (s *serving) stop() int {
	s.end(syscall.SIGTERM)
	return s.cmd.ProcessState.ExitCode()
}

func (s *serving) end(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
	s.logs.Wait()
	_ = s.cmd.Wait() // the exit code is in ProcessState
}

// await waits until the log tells of something.
func (s *serving) await(text string) {
	s.t.Helper()
	patience.Until(s.t, fmt.Sprintf("the log tells of %q", text), func() bool { return strings.Contains(s.logged(), text) }, s)
}
