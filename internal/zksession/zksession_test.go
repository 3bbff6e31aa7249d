package zksession

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

var (
	renewing = Options{Timeout: 4 * time.Second, MaxReply: 1 << 20, MaxCalls: 4}
	once     = Options{Timeout: 4 * time.Second, MaxReply: 1 << 20, MaxCalls: 4, Once: true}
	errOver  = errors.New("the test is over")
)

func open(t *testing.T, server string, opts Options) *Session {
	t.Helper()
	s, err := Open(t.Context(), []string{server}, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(errOver) })
	return s
}

// exists asks for a node.
func exists(ctx context.Context, s *Session, node string) (bool, error) {
	return Call(ctx, s, func(conn *zk.Conn) (bool, error) {
		found, _, err := conn.Exists(node)
		return found, err
	})
}

// A session that renews itself goes on after the server has forgotten it: as another one, whose
// ephemeral nodes are gone. One that is for once has ended.
func TestExpiry(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	server.MustProxy()
	proxy := testservers.NewProxy(t, server.Addr)
	direct, long, short := open(t, server.Addr, renewing), open(t, proxy.Addr, renewing), open(t, proxy.Addr, once)
	patience.Closed(t, "a session", long.Up())
	patience.Closed(t, "a session", short.Up())
	node, first := "/"+rand.Text(), long.Conn.SessionID()
	if _, err := long.Conn.Create(node, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	patience.Closed(t, "the end of the session that is for once", short.Done())
	if err := short.Cause(); !errors.Is(err, errLost) {
		t.Errorf("it has ended because of %v", err)
	}
	patience.Until(t, "the end of the ephemeral node", func() bool {
		found, err := exists(t.Context(), direct, node)
		return err == nil && !found
	})
	proxy.Pass()
	patience.Until(t, "another session", func() bool {
		_, err := exists(t.Context(), long, node)
		return err == nil && long.Conn.SessionID() != first
	})
	if _, err := exists(t.Context(), short, node); !errors.Is(err, errLost) {
		t.Errorf("a call in the session that is for once: %v", err)
	}
}

// The library, which would take the session up again where a connection was lost, is refused a
// second one.
func TestConnectsOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, opts := range []Options{renewing, once} {
		s := newSession(t.Context(), opts)
		for dial := range 3 {
			conn, err := s.dial("tcp", listener.Addr().String(), patience.Call)
			if allowed := dial == 0 || !opts.Once; allowed != (err == nil) {
				t.Errorf("for once %v: dial %d: %v", opts.Once, dial, err)
			}
			if err == nil {
				_ = conn.Close()
			}
		}
		s.end(errOver)
		if _, err := s.dial("tcp", listener.Addr().String(), patience.Call); err == nil {
			t.Errorf("for once %v: a session that has ended connects", opts.Once)
		}
	}
}

// A server that takes a connection, and then says nothing of a session, is given up for the next.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	server.MustProxy()
	proxy := testservers.NewProxy(t, server.Addr)
	proxy.Blackhole()
	s := open(t, proxy.Addr, Options{Timeout: time.Second, MaxReply: 1 << 20, MaxCalls: 1})
	dials := func() int { // how often it has tried
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.dials
	}
	patience.Until(t, "another attempt to connect", func() bool { return dials() > 1 })
	proxy.Pass()
	patience.Until(t, "an answer", func() bool {
		_, err := exists(t.Context(), s, "/")
		return err == nil
	})
}

// deadlines is a connection that notes the deadlines of its reads.
type deadlines struct {
	net.Conn
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// A server has the session's time to take it, however long the library would wait for its answer;
// afterwards the library's deadlines count, which follow what server and client have agreed on.
func TestDeadlines(t *testing.T) {
	const within = time.Second
	var d deadlines
	conn, late := &socket{Conn: &d, within: within}, time.Now().Add(time.Hour)
	for _, at := range []time.Time{late, {}, late, {}} {
		if err := conn.SetReadDeadline(at); err != nil {
			t.Fatal(err)
		}
	}
	for i, at := range d.set[:2] { // the answer's length, and the rest of it
		if at.IsZero() || at.After(time.Now().Add(within)) {
			t.Errorf("deadline %d is %v", i, at)
		}
	}
	if !d.set[2].Equal(late) || !d.set[3].IsZero() {
		t.Errorf("afterwards the deadlines are %v", d.set[2:])
	}
}

// A call ends with its context, for the reason that this gives, while the server is silent or all
// calls are taken; what it began goes on.
func TestCancelledCall(t *testing.T) {
	t.Parallel()
	s := open(t, testservers.SharedZooKeeper(t).Addr, renewing)
	why := errors.New("enough")
	release, ended := make(chan struct{}), make(chan struct{}, renewing.MaxCalls)
	for range renewing.MaxCalls {
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := Call(ctx, s, func(*zk.Conn) (bool, error) {
			cancel(why)
			<-release
			ended <- struct{}{}
			return true, nil
		})
		if !errors.Is(err, why) {
			t.Errorf("cancelled: %v", err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := Call(ctx, s, func(*zk.Conn) (bool, error) { t.Error("one call too many"); return true, nil }); !errors.Is(err, why) {
		t.Errorf("where all calls are taken: %v", err)
	}
	close(release)
	for range renewing.MaxCalls {
		patience.Receive(t, "the end of a call", ended)
	}
	if _, err := exists(t.Context(), s, "/"); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// A connection that was given is left open; the session ends with the first call that it fails.
func TestGiven(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	server.MustProxy()
	proxy := testservers.NewProxy(t, server.Addr)
	conn, _, err := zk.Connect([]string{proxy.Addr}, 4*time.Second, zk.WithLogInfo(false), zk.WithLogger(silence{}), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := Given(t.Context(), conn, once)
	if _, err := exists(t.Context(), s, "/"); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	_, err = exists(t.Context(), s, "/")
	if !IsLost(err) || !errors.Is(s.Cause(), err) {
		t.Errorf("without a network: %v; the session has ended because of %v", err, s.Cause())
	}
	s.Close(errOver)
	proxy.Pass()
	again := Given(t.Context(), conn, once)
	defer again.Close(errOver)
	patience.Until(t, "an answer on the caller's connection", func() bool {
		if again.Cause() != nil {
			again.Wait()
			again = Given(t.Context(), conn, once)
		}
		_, err := exists(t.Context(), again, "/")
		return err == nil
	})
}

// Close ends the calls that wait for a server, whatever it does, with the reason for later ones,
// and leaves nothing running.
func TestClose(t *testing.T) {
	server := testservers.ZooKeeper(t)
	server.MustControl()
	proxy := testservers.NewProxy(t, server.Addr)
	for _, c := range []struct {
		name          string
		trouble, mend func()
	}{
		{"at rest", func() {}, func() {}},
		{"paused", server.Pause, server.Resume},
		{"cut off", proxy.Cut, proxy.Pass},
		{"black hole", proxy.Blackhole, proxy.Pass},
	} {
		for _, opts := range []Options{renewing, once} {
			for _, was := range []string{"up", "never up"} {
				before := count()
				if was == "never up" {
					c.trouble()
				}
				s, err := Open(t.Context(), []string{proxy.Addr}, opts)
				if err != nil {
					t.Fatal(err)
				}
				begun, outcome := make(chan struct{}), make(chan error, 1)
				go func() {
					_, err := Call(t.Context(), s, func(conn *zk.Conn) (bool, error) {
						close(begun)
						for {
							if _, _, err := conn.Exists("/"); err != nil && s.Cause() != nil {
								return false, err
							}
						}
					})
					outcome <- err
				}()
				select {
				case <-begun:
				case err := <-outcome: // it is for once, and over already
					outcome <- err
				}
				if was == "up" {
					patience.Closed(t, "a session", s.Up())
					c.trouble()
				}
				s.Close(errOver)
				if err := patience.Receive(t, "the end of the call", outcome); !IsLost(err) && !errors.Is(err, s.Cause()) {
					t.Errorf("%s, %s: the call that waited: %v", c.name, was, err)
				}
				if _, err := exists(t.Context(), s, "/"); !errors.Is(err, s.Cause()) {
					t.Errorf("%s, %s: a call afterwards: %v; the session has ended because of %v", c.name, was, err, s.Cause())
				}
				s.Close(errors.New("again"))
				patience.Until(t, "the end of every goroutine", func() bool { return count() <= before })
				c.mend()
			}
		}
	}
}

// count tells how many goroutines run code of this package or its library, the test's own among
// them.
func count() int {
	buf := make([]byte, 1<<20)
	n := 0
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "zksession.") || strings.Contains(stack, "go-zookeeper/zk.") {
			n++
		}
	}
	return n
}
