package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

// respAddress returns where a server speaks the Redis protocol, as its log tells.
func (s *serving) respAddress() string {
	s.t.Helper()
	for line := range strings.Lines(s.logged()) {
		var told struct{ Msg, RESP string }
		if json.Unmarshal([]byte(line), &told) == nil && told.Msg == "serving" {
			return told.RESP
		}
	}
	s.t.Fatalf("the log does not tell: %s", s.logged())
	return ""
}

func dialRESP(t *testing.T, address string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience.Long)); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// The Redis protocol issues from the same tags as HTTP, durably, and ends with the
// server.
func TestServeRESP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var last int64
	for range 2 {
		s := serve(t, dir, nil)
		c, replies := dialRESP(t, s.respAddress())
		for range 3 {
			if _, err := io.WriteString(c, "INCR orders\r\n"); err != nil {
				t.Fatal(err)
			}
			var id int64
			if _, err := fmt.Fscanf(replies, ":%d\r\n", &id); err != nil || id <= last {
				t.Fatalf("after %d came %d, %v", last, id, err)
			}
			last = id
		}
		if id := int64(mustTake(t, s, "orders", 1)[0]); id != last+1 {
			t.Errorf("over HTTP came %d after %d", id, last)
		}
		last++
		if code := s.stop(); code != 0 {
			t.Errorf("exit code %d: %s", code, s.logged())
		}
		if _, err := replies.ReadByte(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
	}
}

func TestServeWithoutRESP(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil, "--resp", "")
	if address := s.respAddress(); address != "" {
		t.Errorf("it listens on %s", address)
	}
	mustTake(t, s, "orders", 1)
}

func TestRESPAddress(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	for _, tt := range []struct {
		address string
		code    int
		want    string
	}{
		{taken, 1, "hapax: the address " + taken + " is in use by another process; stop it, or choose another address with --resp"},
		{"nowhere", 2, `hapax: invalid resp "nowhere": want an address of this machine as HOST:PORT, such as 127.0.0.1:6380`},
		{"0.0.0.0:0", 2, `hapax: invalid resp "0.0.0.0:0": want an address on loopback, such as 127.0.0.1:6380, because nobody is asked for credentials; tokens or --allow-unauthenticated lift this`},
	} {
		r := run(t, t.TempDir(), "serve", "--http", "127.0.0.1:0", "--resp", tt.address)
		if r.code != tt.code || strings.TrimSpace(r.err) != tt.want {
			t.Errorf("%s: exit code %d, %s", tt.address, r.code, r.err)
		}
	}
}
