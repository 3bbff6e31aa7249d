package host

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Server is a process of its own that a benchmark started.
type Server struct {
	cmd *exec.Cmd

	HTTP string // the host and port where it speaks HTTP
	RESP string // the port where it speaks the Redis protocol
}

// Start runs a program until Stop, also when ctx has ended by then.
func Start(ctx context.Context, name string, args ...string) (*Server, error) {
	s := &Server{cmd: exec.CommandContext(context.WithoutCancel(ctx), name, args...)}
	return s, s.cmd.Start()
}

// Stop interrupts the process and waits for its end.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(os.Interrupt) // it may have ended
	_ = s.cmd.Wait()
}

// FreePort returns a port of loopback that nobody listens on.
func FreePort(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// Await waits until somebody listens at an address.
func Await(ctx context.Context, address string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

// StartHapax builds the command and runs it on the embedded store. It is called in
// the module of the benchmarks.
func StartHapax(ctx context.Context, dir string, flags ...string) (*Server, error) {
	bin := filepath.Join(dir, "hapax")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/hapax")
	build.Dir = ".."
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	flags = append([]string{"serve", "--data", filepath.Join(dir, "data"), "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--log-format", "json"}, flags...)
	s := &Server{cmd: exec.CommandContext(context.WithoutCancel(ctx), bin, flags...)}
	log, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	var text strings.Builder
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var line struct{ Msg, HTTP, RESP string }
		text.WriteString(lines.Text() + "\n")
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Msg != "serving" {
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, log) }() // ends with the process
		_, s.HTTP, _ = strings.Cut(line.HTTP, "://")
		_, s.RESP, err = net.SplitHostPort(line.RESP)
		return s, err
	}
	s.Stop()
	return nil, errors.New("hapax does not start: " + text.String())
}

// CPUTime returns the processor time that the server has used, as Linux tells it.
func (s *Server) CPUTime() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // 100 ticks a second everywhere
}
