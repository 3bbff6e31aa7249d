package hangup

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	theirs, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ours, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close(); _ = theirs.Close() })
	return ours, theirs
}

func TestClientLeaves(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	for name, leave := range map[string]func(net.Conn){
		"closed": func(nc net.Conn) { _ = nc.Close() },
		"half":   func(nc net.Conn) { _ = nc.(*net.TCPConn).CloseWrite() },
		"reset":  func(nc net.Conn) { _ = nc.(*net.TCPConn).SetLinger(0); _ = nc.Close() },
		"with something unread": func(nc net.Conn) {
			_, _ = nc.Write([]byte("INCR x\r\n"))
			_ = nc.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := pair(t)
			c := NewContext(t.Context(), ours)
			ctx, cancel := context.WithTimeout(c, patience.Long)
			defer cancel()
			select {
			case <-ctx.Done():
				t.Fatal("it ended before the client left")
			case <-time.After(3 * lookEvery):
			}
			leave(theirs)
			<-ctx.Done()
			if err := ctx.Err(); !errors.Is(err, context.Canceled) || !c.HasLeft() || c.Err() == nil {
				t.Errorf("%v, left %t", err, c.HasLeft())
			}
			c.Rest()
		})
	}
}

func TestRest(t *testing.T) {
	ours, theirs := pair(t)
	parent, stop := context.WithCancel(t.Context())
	defer stop()
	c := NewContext(parent, ours)
	c.Rest() // nobody waits
	done := c.Done()
	c.Rest()
	select {
	case <-done:
		t.Fatal("a rest was taken for an end")
	default:
	}
	if c.Err() != nil || c.HasLeft() {
		t.Fatal("a rest was taken for an end")
	}
	_ = theirs.Close()
	patience.Slow(3 * lookEvery)
	if c.HasLeft() {
		t.Fatal("it looks out while nobody waits")
	}
	stop()
	<-c.Done()
	if c.Err() == nil {
		t.Error("it outlasts its parent")
	}
}

// TestRestBesideAnEnd has a context below end at the same time as the look-out. That of
// the standard library panics where a parent's Done is closed and its Err is nil.
func TestRestBesideAnEnd(t *testing.T) {
	ours, _ := pair(t)
	c := NewContext(t.Context(), ours)
	for range 20_000 {
		_, cancel := context.WithCancel(c)
		cancel()
		c.Rest()
	}
}

// A connection that is no socket has a context that ends with its parent.
func TestNoSocket(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	parent, stop := context.WithCancel(t.Context())
	c := NewContext(parent, a)
	stop()
	<-c.Done()
	c.Rest()
}
