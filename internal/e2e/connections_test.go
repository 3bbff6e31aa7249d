package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
)

// A line is a client's connection that takes one number after the other.
type line struct {
	net.Conn
	replies *bufio.Reader
	take    func(*line) (hapax.ID, error)
	ids     []hapax.ID
}

// takeRESP takes a number over the Redis protocol.
func takeRESP(l *line) (hapax.ID, error) {
	if _, err := io.WriteString(l, "INCR orders\r\n"); err != nil {
		return 0, err
	}
	reply, err := l.replies.ReadString('\n')
	if err != nil {
		return 0, err
	}
	digits, ok := strings.CutPrefix(strings.TrimSpace(reply), ":")
	if !ok {
		return 0, fmt.Errorf("the reply is %q", reply)
	}
	id, err := strconv.ParseInt(digits, 10, 64)
	return hapax.ID(id), err
}

// takeHTTP takes a number over HTTP, on a connection that is kept.
func takeHTTP(l *line) (id hapax.ID, err error) {
	if _, err := io.WriteString(l, "GET /v1/tags/orders/next HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(l.replies, nil)
	if err != nil {
		return 0, err
	}
	body, err := answer(resp)
	if err != nil {
		return 0, err
	}
	return id, json.Unmarshal(body, &id)
}

// next takes one more number.
func (l *line) next() error {
	id, err := l.take(l)
	if err != nil {
		return fmt.Errorf("from %s, after %d numbers: %w", l.LocalAddr(), len(l.ids), err)
	}
	l.ids = append(l.ids, id)
	return nil
}

// open opens n connections and takes a number over each. They come from
// several addresses of loopback, one of which might run out of ports.
func open(t *testing.T, address string, n int, take func(*line) (hapax.ID, error)) []*line {
	t.Helper()
	lines := make([]*line, n)
	for i := range lines {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%4))}}
		c, err := from.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatalf("connection %d of %d: %v", i, n, err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(5 * patience.Long)); err != nil {
			t.Fatal(err)
		}
		lines[i] = &line{Conn: c, replies: bufio.NewReaderSize(c, 512), take: take}
		if err := lines[i].next(); err != nil {
			t.Fatalf("connection %d of %d: %v", i, n, err)
		}
	}
	return lines
}

// resident returns how many bytes of memory the server holds, its buffers in the
// kernel not included.
func (s *serving) resident() int64 { return s.status("VmRSS:") }

// status returns a size that the system tells of the server, in bytes.
func (s *serving) status(name string) int64 {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), name)
	var kB int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kB); err != nil {
		s.t.Fatalf("%v in %s", err, status)
	}
	return kB << 10
}

// Thousands of connections that were used and then wait take little memory, do
// not get in the way of busy ones, and still serve afterwards. Both ends need a
// descriptor for each; Go raises the limit to the hard one by itself.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	manyConnections(t, 1000, 100, 20)
}

func TestManyConnectionsSoak(t *testing.T) {
	patience.Soak(t, "eleven thousand connections")
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	// The server shares what it may open among its listeners.
	idle := min(10_000, int(files.Max)*4/10)
	t.Logf("%d idle connections, of %d files that a process may open", idle, files.Max)
	manyConnections(t, idle, 1000, 200)
}

func manyConnections(t *testing.T, idle, busy, each int) {
	t.Helper()
	const most = 64 << 10 // bytes for one idle connection, several times what it takes
	s := serve(t, t.TempDir(), nil)
	resp, web := s.respAddress(), strings.TrimPrefix(s.url, "http://")
	// What the server allocates once is not counted.
	waiting := append(open(t, resp, 10, takeRESP), open(t, web, 10, takeHTTP)...)

	for _, kind := range []struct {
		name    string
		address string
		n       int
		take    func(*line) (hapax.ID, error)
	}{
		{"Redis", resp, idle * 9 / 10, takeRESP},
		{"HTTP", web, idle / 10, takeHTTP},
	} {
		before := s.resident()
		waiting = append(waiting, open(t, kind.address, kind.n, kind.take)...)
		after := s.resident()
		one := (after - before) / int64(kind.n)
		t.Logf("%d idle %s connections: %d bytes each, %.1f MiB in all (%.1f MiB before)",
			kind.n, kind.name, one, float64(after)/(1<<20), float64(before)/(1<<20))
		if one > most {
			t.Errorf("an idle %s connection takes %d bytes, more than %d", kind.name, one, most)
		}
	}

	working := append(open(t, resp, busy*9/10, takeRESP), open(t, web, busy/10, takeHTTP)...)
	var wg sync.WaitGroup
	for _, l := range working {
		wg.Go(func() {
			for range each {
				if err := l.next(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("with %d busy connections as well: %.1f MiB in all", busy, float64(s.resident())/(1<<20))

	for _, l := range waiting {
		if err := l.next(); err != nil {
			t.Errorf("a connection that was idle: %v", err)
		}
	}
	var ids []hapax.ID
	for _, l := range slices.Concat(waiting, working) {
		ids = append(ids, l.ids...)
	}
	taken := len(ids)
	slices.Sort(ids)
	if distinct := len(slices.Compact(ids)); distinct != taken {
		t.Errorf("%d numbers, %d distinct", taken, distinct)
	}
	t.Logf("%d numbers over %d connections", taken, len(waiting)+len(working))
}
