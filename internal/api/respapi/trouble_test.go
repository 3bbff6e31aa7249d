package respapi

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/storetest"
)

// byHand leaves ticks to the test, after three of which the server loses patience.Long
// with half a frame. It hardly waits for a client to take an error.
func byHand(p *pace) {
	p.tick, p.half, p.write, p.close, p.quiet = time.Hour, 3, math.MaxInt64, 50*time.Millisecond, 5*time.Millisecond
}

func TestHostileFrames(t *testing.T) {
	srv := newTestServer(t, testConfig{pace: byHand})
	for _, tt := range []struct{ name, in, want string }{
		{"huge length", "*2\r\n$9223372036854775800\r\n", "-ERR Protocol error: invalid bulk length\r\n"},
		{"length without an array", "$9223372036854775800\r\n", "-ERR Protocol error: expected '*' before '$'\r\n"},
		{"huge count", "*2000000000\r\n", "-ERR Protocol error: invalid multibulk length\r\n"},
		{"deep nesting", strings.Repeat("*1\r\n", 100_000), "-ERR Protocol error: expected '$', got '*'\r\n"},
		{"endless line", strings.Repeat("x", 10*MaxFrame), "-ERR Protocol error: too big inline request\r\n"},
		{"endless zeros", strings.Repeat("\x00", 10*MaxFrame), "-ERR Protocol error: too big inline request\r\n"},
		{"negative length", "*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"},
		{"CR without LF", "*1\r$4\r\nPING\r\n", "-ERR Protocol error: invalid multibulk length\r\n"},
		{"after good commands", frame("PING") + frame("PING") + "*x\r\n" + frame("PING"), "+PONG\r\n+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n"},
		{"open quotes", "ECHO \"\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := srv.dial(t)
			// The server may hang up before it has everything.
			_, _ = io.WriteString(c, tt.in)
			if got := c.expectEnd(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestHTTPIsClosed(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	body := frame("INCR", "stolen") + "INCR stolen\r\n"
	for _, in := range []string{
		"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + body,
		"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + body,
		"PUT /x HTTP/1.1\r\n\r\n" + body,
		"host: 127.0.0.1\r\n" + body,
		frame("POST", "x") + body,
		frame("Host:", "x") + body,
	} {
		c := srv.dial(t)
		_, _ = io.WriteString(c, in)
		if got := c.expectEnd(); got != "" {
			t.Errorf("%.20q is answered with %q", in, got)
		}
	}
	srv.dial(t).do("GET stolen", "$-1\r\n")
}

func TestQuit(t *testing.T) {
	srv := newTestServer(t, testConfig{pace: byHand})
	c := srv.dial(t)
	c.send(frame("QUIT") + frame("INCR", "orders"))
	if got := c.expectEnd(); got != "+OK\r\n" {
		t.Errorf("got %q", got)
	}
	srv.dial(t).do("INCR orders", ":1\r\n")
}

// A client that sends and closes its half gets its replies, and the end.
func TestHalfClosed(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	c := srv.dial(t)
	c.send(frame("PING"))
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := c.expectEnd(); got != "+PONG\r\n" {
		t.Errorf("got %q", got)
	}
}

// What such a client would have to wait for is not answered: it counts as gone, as one that has left.
func TestHalfClosedWaits(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	srv := newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}})
	reached, _ := holdTag(t, srv.store)
	c := srv.dial(t)
	c.send(frame("INCR", "slow"))
	<-reached
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := c.expectEnd(); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestStandingStill(t *testing.T) {
	idle := func(p *pace) { byHand(p); p.idle = 3 }
	const slow = "-ERR Protocol error: the rest of a command did not come in time\r\n"
	for _, tt := range []struct {
		name    string
		pace    func(*pace)
		send    string
		replies string
		ends    bool
		last    string // what comes before the end
	}{
		{"half a frame", byHand, "*2\r\n$4\r\nINCR\r\n", "", true, slow},
		{"half a line", byHand, "INCR", "", true, slow},
		{"half a frame after a whole one", byHand, frame("PING") + "*1", "+PONG\r\n", true, slow},
		{"half a frame, by the server's clock", func(p *pace) { byHand(p); p.tick = time.Millisecond }, "*1", "", true, slow},
		{"idle, with a limit", idle, frame("PING"), "+PONG\r\n", true, ""},
		{"nothing at all, with a limit", idle, "", "", true, ""},
		{"idle, without a limit", byHand, frame("PING"), "+PONG\r\n", false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := newTestServer(t, testConfig{pace: tt.pace})
			c := srv.dial(t)
			c.do("PING", "+PONG\r\n")
			c.send(tt.send)
			c.expect(tt.replies)
			if !tt.ends {
				for range 10 {
					srv.look()
				}
				c.do("PING", "+PONG\r\n")
				return
			}
			patience.Until(t, "the end of the connection", func() bool {
				if srv.pace.tick == time.Hour {
					srv.look()
				}
				return len(srv.connections()) == 0
			})
			if got := c.expectEnd(); got != tt.last {
				t.Errorf("got %q, want %q", got, tt.last)
			}
		})
	}
}

// How long half a frame has been there counts from when it began, whatever comes
// of it since; and a client whose every piece ends in half a frame is not slow, as
// long as others end in it.
func TestHalfFrameClock(t *testing.T) {
	const half = 3 // ticks
	command := frame("PING")
	for _, tt := range []struct {
		name   string
		pieces []string // one each tick
		want   bool     // overdue after the last
	}{
		{"as long as is allowed", strings.Split(command[:half+1], ""), false},
		{"byte by byte, too slowly", strings.Split(command[:half+2], ""), true},
		{"after a whole one", []string{command + "*", "1", "\r", "\n", "$"}, true},
		{"always half of another", append([]string{command[:5]}, slices.Repeat([]string{command[5:9], command[9:] + command[:5]}, 2*half)...), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := newTestServer(t, testConfig{pace: func(p *pace) { p.tick, p.half = time.Hour, half }})
			c := newConn(srv.Server, discardConn{})
			for i, piece := range tt.pieces {
				if i > 0 {
					srv.now.Add(1)
				}
				have := c.lend()
				c.pause(c.received(have + copy(c.b.in[have:], piece)))
				if last := i == len(tt.pieces)-1; c.isOverdue(srv.now.Load()) != (last && tt.want) {
					t.Fatalf("after piece %d of %d: overdue is %t", i+1, len(tt.pieces), !(last && tt.want))
				}
			}
		})
	}
}

// An error arrives, and then the end, also when more was sent than the server
// cared to read: it must not reset the connection.
func TestErrorArrives(t *testing.T) {
	srv := newTestServer(t, testConfig{pace: func(p *pace) { p.close = patience.Long }})
	c := srv.dial(t)
	c.send("*x\r\n" + strings.Repeat("x", maxDiscard/2))
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c.r)
	if want := "-ERR Protocol error: invalid multibulk length\r\n"; string(got) != want || err != nil {
		t.Errorf("got %q (%v), want %q and the end", got, err, want)
	}
}

// A client that does not read is closed, and keeps nobody else from being served.
func TestSlowReader(t *testing.T) {
	srv := newTestServer(t, testConfig{pace: func(p *pace) { byHand(p); p.write = 3 }, service: service.Options{MaxCount: 100_000}})
	slow := srv.dial(t)
	sent := make(chan error, 1)
	go func() {
		for {
			if _, err := io.WriteString(slow, frame("HAPAX.NEXT", "orders", "COUNT", "100000")); err != nil {
				sent <- err
				return
			}
		}
	}()
	other := srv.dial(t)
	for {
		other.do("PING", "+PONG\r\n")
		srv.look()
		select {
		case err := <-sent:
			if isNetTimeout(err) {
				t.Fatal("a client that does not read is still connected")
			}
			return
		default:
			patience.Again()
		}
	}
}

func TestMaxConnections(t *testing.T) {
	srv := newTestServer(t, testConfig{opts: Options{MaxConnections: 3}})
	var conns []*testClient
	for range 3 {
		c := srv.dial(t)
		c.do("PING", "+PONG\r\n")
		conns = append(conns, c)
	}
	if got := srv.dial(t).expectEnd(); got != "-ERR max number of clients reached\r\n" {
		t.Fatalf("the fourth: %q", got)
	}
	conns[0].Close()
	for { // until the server has noticed
		c := srv.dial(t)
		c.send(frame("PING"))
		if c.line() == "+PONG" {
			return
		}
		c.Close()
	}
}

// holdTag has the store stand still for the tag "slow", until release is called.
// The channel tells when it does.
func holdTag(t *testing.T, store *storetest.Faults) (reached <-chan struct{}, release func()) {
	first, end := make(chan struct{}), make(chan struct{})
	var onceReached, onceReleased sync.Once
	store.Inject(func(op storetest.Op) storetest.Fault {
		if op.Line == "slow" {
			onceReached.Do(func() { close(first) })
			<-end
		}
		return storetest.Fault{}
	})
	release = func() { onceReleased.Do(func() { close(end) }) }
	t.Cleanup(release)
	return first, release
}

// A wait for the store holds up only who waits.
func TestSlowStore(t *testing.T) {
	srv := newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}})
	reached, release := holdTag(t, srv.store)
	waiting, others := srv.dial(t), srv.dial(t)
	waiting.send(frame("PING") + frame("INCR", "slow") + frame("PING"))
	<-reached
	for range 10 {
		others.do("PING", "+PONG\r\n")
	}
	others.do("INCR fast", ":1\r\n")
	release()
	waiting.expect("+PONG\r\n:1\r\n+PONG\r\n")
}

// What a store that is away costs: an error for each command, once the wait is
// over, and no more than one wait for a run of them.
func TestStoreDown(t *testing.T) {
	srv := newTestServer(t, testConfig{service: service.Options{
		MaxWait: 500 * time.Millisecond, Tags: map[string]service.TagConfig{"orders": {Step: 5, MaxStep: 5}},
	}})
	c := srv.dial(t)
	c.do("INCR orders", ":1\r\n")
	srv.store.Down()
	unavailable := "-UNAVAILABLE store_unavailable: the store cannot be reached or did not answer in time\r\n"
	c.send(strings.Repeat(frame("INCR", "orders"), 100))
	issued := 0
	for range 100 {
		switch line := c.line(); {
		case strings.HasPrefix(line, ":"):
			issued++
		case line+"\r\n" != unavailable:
			t.Fatalf("got %q", line)
		}
	}
	if issued < 4 || issued > 9 {
		t.Errorf("%d numbers; 4 were left, and 5 more may have been fetched before", issued)
	}
	c.do("INCRBY orders 3", unavailable)
	c.do("HAPAX.NEXT orders COUNT 3", unavailable)
	srv.store.Up()
	for {
		c.send(frame("INCR", "orders"))
		if strings.HasPrefix(c.line(), ":") {
			return
		}
	}
}

// Shutdown lets a command finish that waits for the store, and its reply arrive.
func TestShutdownFinishesCommands(t *testing.T) {
	srv := newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}})
	reached, release := holdTag(t, srv.store)
	busy, idle := srv.dial(t), srv.dial(t)
	idle.do("PING", "+PONG\r\n")
	busy.send(frame("INCR", "slow"))
	<-reached
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		done <- srv.Shutdown(ctx)
	}()
	if got := idle.expectEnd(); got != "" {
		t.Errorf("an idle connection ended with %q", got)
	}
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	release()
	if got := busy.expectEnd(); got != ":1\r\n" {
		t.Errorf("the command in flight: %q", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", srv.addr); err == nil {
		t.Error("it still accepts")
	}
}

// A client that never pauses does not hold Shutdown up: what it sent after the
// command in flight is not begun, and it is told so.
func TestShutdownOfABusyClient(t *testing.T) {
	srv := newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}})
	reached, release := holdTag(t, srv.store)
	c := srv.dial(t)
	c.send(frame("INCR", "slow"))
	<-reached
	c.send(strings.Repeat(frame("INCR", "slow"), 1000) + "*2\r\n$4\r\nINCR") // waits in the socket
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		done <- srv.Shutdown(ctx)
	}()
	<-srv.done
	release()
	if got, want := c.expectEnd(), ":1\r\n"+strings.Repeat("-"+errStopping+"\r\n", 1001); got != want {
		t.Errorf("%d bytes, want %d: %.100q", len(got), len(want), got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A client that asks one thing after another gets an answer to each until the end.
func TestShutdownOfAnAskingClient(t *testing.T) {
	for name, cfg := range map[string]testConfig{"plain": {}, "as with TLS": {noFD: true}} {
		t.Run(name, func(t *testing.T) {
			cfg.pace = func(p *pace) { p.quiet, p.close = patience.Long, patience.Long } // the client closes
			srv := newTestServer(t, cfg)
			c := srv.dial(t)
			c.do("INCR orders", ":1\r\n")
			done := make(chan error, 1)
			go func() { done <- srv.Shutdown(t.Context()) }()
			<-srv.done
			for told := 0; told < 3; {
				c.send(frame("INCR", "orders"))
				if line := c.line(); line == "-"+errStopping {
					told++
				} else if !strings.HasPrefix(line, ":") || told > 0 {
					t.Fatalf("after %d errors: %q", told, line)
				}
			}
			c.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// Shutdown cuts off what does not end in time, and leaves no goroutine behind.
func TestShutdownCutsOff(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("server", func(t *testing.T) {
		srv := newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}})
		reached, _ := holdTag(t, srv.store)
		c := srv.dial(t)
		c.send(frame("INCR", "slow"))
		<-reached
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := srv.Shutdown(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if got := c.expectEnd(); got != "-"+errStopping+"\r\n" {
			t.Errorf("the command that was cut off is answered with %q", got)
		}
	})
	patience.Until(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before }, stacks{})
}

// stacks are those of all goroutines.
type stacks struct{}

func (stacks) String() string {
	buf := make([]byte, 1<<16)
	return string(buf[:runtime.Stack(buf, true)])
}

// A panic costs the connection, not the server.
func TestPanic(t *testing.T) {
	srv := newTestServer(t, testConfig{setup: func(s *Server) { s.svc = nil }})
	c := srv.dial(t)
	c.send(frame("INCR", "orders"))
	c.expectEnd()
	srv.dial(t).do("PING", "+PONG\r\n")
}

// An error of the listener ends Serve; one that passes does not.
func TestAcceptErrors(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	l := &failingListener{errs: []error{syscall.EMFILE, hapax.ErrInternal}}
	if err := srv.Serve(l); !errors.Is(err, hapax.ErrInternal) || len(l.errs) != 0 {
		t.Errorf("got %v, with %d errors to come", err, len(l.errs))
	}
}

type failingListener struct {
	net.Listener
	errs []error
}

func (l *failingListener) Accept() (net.Conn, error) {
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

func (*failingListener) Close() error { return nil }
