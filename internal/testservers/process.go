// Package testservers starts the real servers that the stores are tested
// against: each on loopback, on a free port, over a fresh directory, ended with
// the test. A Server can be killed, stopped, paused and started again on the
// same data; a Proxy in front of it breaks the network at chosen moments.
//
//	           Kill, Stop             Pause
//	stopped <------------- running ----------> paused
//	        -------------> (ready) <----------
//	             Start                Resume
//
// A test that does not control its server, and keeps to names of its own there, takes
// a shared one, which is there already.
//
// With -short, tests that need a server are skipped. A test that finds its server
// missing is skipped, unless CI=true or HAPAX_TEST_REQUIRE=1 is set: then it fails. A variable such as
// HAPAX_TEST_MYSQL_URL points a test at a server that exists already; that one
// cannot be controlled, and a test that tries to is skipped.
package testservers

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

const (
	pollEvery     = 20 * time.Millisecond
	startAttempts = 3       // with another port each time: a free port may be taken meanwhile
	logTail       = 8 << 10 // bytes of the server's log that are printed when it fails
)

// A spec tells how one kind of server is started.
type spec struct {
	name string // for messages
	bin  string
	user string // the account to run under when the tests run as root; empty: root
	dir  string // the data directory, from newDir
	stop syscall.Signal
	// args returns the command line without the binary.
	args func(port int) []string
	// url returns what clients connect to.
	url func(addr string) string
	// ready reports whether the server at addr can be used; it is asked repeatedly.
	ready func(ctx context.Context, addr string) error
}

// A Server is one running server. Its control methods report failures to the
// test and may be called from any goroutine, one at a time.
type Server struct {
	URL  string // as a store's Open takes it
	Addr string // host:port; empty for a server that exists already
	Dir  string // the data directory; empty for a server that exists already

	t      testing.TB
	spec   spec
	port   int
	shared bool // others use it, too

	mu   sync.Mutex // guards cmd and done
	cmd  *exec.Cmd  // nil: not running
	done chan error // holds the exit of cmd once it has ended
}

// External returns the server that the environment variable names, or nil.
func External(t testing.TB, variable string) *Server {
	if url := os.Getenv(variable); url != "" {
		return &Server{URL: url, t: t}
	}
	return nil
}

// Require returns the path of the first of the binaries that exists, looked for
// in PATH and in the given extra directories, which may be glob patterns.
// Without one the test is skipped, or fails where servers are required.
func Require(t testing.TB, names []string, dirs ...string) string {
	t.Helper()
	skipIfShort(t)
	if !supported {
		Missing(t, "servers for tests run on Linux only")
	}
	for _, name := range names {
		for _, dir := range dirs {
			found, _ := filepath.Glob(filepath.Join(dir, name))
			if len(found) > 0 {
				return found[len(found)-1]
			}
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, strings.Join(names, " or ")+" is not installed")
	return ""
}

// skipIfShort skips a test that needs another program, with -short.
func skipIfShort(t testing.TB) {
	t.Helper()
	if _, ok := t.(*keeper); !ok && testing.Short() {
		t.Skip("needs a real server or another program, and -short leaves those out")
	}
}

// Missing ends a test that lacks what it needs: as a failure where servers are
// required, and as a skip elsewhere.
func Missing(t testing.TB, why string) {
	t.Helper()
	if k, ok := t.(*keeper); ok {
		k.missing(why)
	}
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci || os.Getenv("HAPAX_TEST_REQUIRE") == "1" {
		t.Fatalf("%s, and HAPAX_TEST_REQUIRE or CI asks for it", why)
	}
	t.Skip(why)
}

// room returns where servers keep their data: in memory, where a kill loses nothing that a
// server has written, as on a disk, and a sync costs nothing; but only where there is much
// room, and TMPDIR does not name a place. A loss of power is simulated elsewhere.
func room() string {
	if os.Getenv("TMPDIR") == "" && freeBytes(memoryDir) >= memoryLeast {
		return memoryDir
	}
	return ""
}

const (
	memoryDir   = "/dev/shm"
	memoryLeast = 4 << 30 // dozens of servers at a time, of up to 100 MB each
)

// newDir makes a directory for a server's data that is removed with the test.
// It is not below t.TempDir, which other accounts cannot enter and whose names
// are too long for sockets.
func newDir(t testing.TB, name, user string) string {
	t.Helper()
	dir, err := os.MkdirTemp(room(), "hapax-"+name+"-")
	if err == nil {
		err = own(dir, user)
	}
	if err == nil {
		err = leave(dir)
	}
	if err != nil {
		t.Fatalf("%s: data directory: %v", name, err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("%s: %v", name, err)
		}
	})
	return dir
}

// run executes a helper program, such as initdb, to its end.
func run(t testing.TB, user, dir, bin string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = dir
	attr, err := processAttr(user)
	if err != nil {
		t.Fatalf("%s: %v", bin, err)
	}
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", bin, err, out)
	}
}

// start starts a server and waits until it is ready; the test's end ends it.
func start(t testing.TB, c spec) *Server {
	t.Helper()
	s := &Server{Dir: c.dir, t: t, spec: c}
	t.Cleanup(s.kill)
	t.Cleanup(s.tellOfItsEnd)
	var err error
	for range startAttempts {
		s.port = FreePort(t)
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
		s.URL = c.url(s.Addr)
		if err = s.launch(); err == nil {
			return s
		}
	}
	t.Fatalf("%s: %v\n%s", c.name, err, s.Log())
	return nil
}

// FreePort returns a TCP port on loopback that is free now. It lies below the
// range from which systems number outgoing connections, and no other test gets
// it before this one ends, so that it also stays free while its server is down.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		if port := 15000 + rand.IntN(17000); reserve(t, port) {
			return port
		}
	}
	t.Fatal("no free port found on loopback")
	return 0
}

// reserve reports whether the TCP port is free, and if so keeps every other test from it
// until t ends. What keeps it is the UDP port of the same number, which no server here
// uses: tests run in many processes, and one that crashes must release its ports.
func reserve(t testing.TB, port int) bool {
	t.Helper()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	var c net.ListenConfig
	reservation, err := c.ListenPacket(t.Context(), "udp", addr)
	if err != nil {
		return false
	}
	l, err := c.Listen(t.Context(), "tcp", addr)
	if err != nil {
		_ = reservation.Close()
		return false
	}
	t.Cleanup(func() { _ = reservation.Close() })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}

// Kill ends the server and its children at once with SIGKILL, as a crash would.
func (s *Server) Kill() {
	s.t.Helper()
	s.MustControl()
	s.kill()
}

// Stop asks the server to shut down in good order and waits until it did.
func (s *Server) Stop() {
	s.t.Helper()
	s.MustControl()
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	if err := cmd.Process.Signal(s.spec.stop); err != nil {
		s.t.Errorf("%s: stop: %v", s.spec.name, err)
	}
	select {
	case err := <-done:
		done <- err
	case <-time.After(patience.Long):
		s.t.Errorf("%s: still running %v after it was asked to stop\n%s", s.spec.name, patience.Long, s.Log())
	}
	s.kill()
}

// Start starts the server again on the same data and port, and waits until it
// is ready. It does nothing while the server runs.
func (s *Server) Start() {
	s.t.Helper()
	s.MustControl()
	s.mu.Lock()
	running := s.cmd != nil
	s.mu.Unlock()
	if running {
		return
	}
	if err := s.launch(); err != nil {
		s.t.Errorf("%s: start again: %v\n%s", s.spec.name, err, s.Log())
	}
}

// Pause stops the server and its children with SIGSTOP: connections stay open
// and nothing answers. It returns when every thread has stopped.
func (s *Server) Pause() {
	s.t.Helper()
	deadline := time.Now().Add(patience.Long)
	for _, pid := range s.signalAll(syscallStop) {
		for !stopped(pid) {
			if time.Now().After(deadline) {
				s.t.Fatalf("%s: process %d does not stop", s.spec.name, pid)
			}
			patience.Again()
		}
	}
}

// Resume lets a paused server go on.
func (s *Server) Resume() {
	s.t.Helper()
	s.signalAll(syscallCont)
}

// Log returns the end of the server's output.
func (s *Server) Log() string {
	f, err := os.Open(s.logPath())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > logTail {
		_, _ = f.Seek(-logTail, io.SeekEnd)
	}
	out, err := io.ReadAll(io.LimitReader(f, logTail))
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func (s *Server) logPath() string { return filepath.Join(s.Dir, "hapax-test.log") }

// MustControl skips a test that wants to control a server that is not its own.
// The control methods call it; a test calls it first if it has other goroutines
// by the time it uses them.
func (s *Server) MustControl() {
	s.t.Helper()
	if s.shared {
		s.t.Fatalf("a shared server is not to be controlled: start one for this test")
	}
	if s.spec.bin == "" {
		s.t.Skip("needs a server of its own, and an existing one was given")
	}
}

// MustProxy skips a test that wants a Proxy before a server whose address is not known:
// an existing one, which may be a cluster, or speak TLS.
func (s *Server) MustProxy() {
	s.t.Helper()
	if s.Addr == "" {
		s.t.Skip("needs a server whose address is known, and an existing one was given")
	}
}

// signalAll sends a signal to the server and its children, and returns them.
func (s *Server) signalAll(sig syscall.Signal) []int {
	s.t.Helper()
	s.MustControl()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Errorf("%s: not running", s.spec.name)
		return nil
	}
	pids := tree(s.cmd.Process.Pid)
	for _, pid := range pids {
		if err := signal(pid, sig); err != nil {
			s.t.Errorf("%s: signal %v to process %d: %v", s.spec.name, sig, pid, err)
		}
	}
	return pids
}

// launch starts the process and waits until it is ready; if it is not, the
// process is ended.
func (s *Server) launch() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	attr, err := processAttr(s.spec.user)
	if err != nil {
		return err
	}
	cmd := exec.Command(s.spec.bin, s.spec.args(s.port)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = s.Dir, log, log, attr
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // kill waits for it
	s.mu.Lock()
	s.cmd, s.done = cmd, done
	s.mu.Unlock()
	if err := s.awaitReady(done); err != nil {
		s.kill()
		return err
	}
	return nil
}

func (s *Server) awaitReady(done chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := s.spec.ready(ctx, s.Addr)
		if err == nil {
			return nil
		}
		select {
		case exit := <-done:
			done <- exit
			return fmt.Errorf("ended before it was ready: %v", exit)
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", patience.Long, err)
		case <-tick.C:
		}
	}
}

// tellOfItsEnd logs why a server ended that nobody stopped, for a test that failed.
func (s *Server) tellOfItsEnd() {
	s.mu.Lock()
	done := s.done
	s.mu.Unlock()
	if !s.t.Failed() || done == nil {
		return
	}
	select {
	case exit := <-done:
		done <- exit
		s.t.Logf("%s at %s ended by itself: %v\n%s", s.spec.name, s.Addr, exit, s.Log())
	default:
	}
}

// kill ends the process with its children and waits until they are gone.
func (s *Server) kill() {
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.cmd, s.done = nil, nil
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	// A stopped parent starts no more children while they are counted.
	_ = cmd.Process.Signal(syscallStop) // it may have ended already
	pids := tree(cmd.Process.Pid)
	for _, pid := range pids {
		if err := signal(pid, syscall.SIGKILL); err != nil {
			s.t.Errorf("%s: kill process %d: %v", s.spec.name, pid, err)
		}
	}
	<-done
	deadline := time.Now().Add(patience.Long)
	for _, pid := range pids {
		for alive(pid) && time.Now().Before(deadline) {
			patience.Again()
		}
	}
}

// dialed is the readiness test of servers that listen only when they are ready.
func dialed(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}
