package testservers

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

func TestServerLife(t *testing.T) {
	for name, open := range map[string]func(testing.TB, ...string) *Server{"mariadb": MariaDB, "postgres": Postgres, "etcd": Etcd, "zookeeper": ZooKeeper} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			s.MustControl()
			if !strings.Contains(s.URL, s.Addr) {
				t.Errorf("the URL %s does not hold the address %s", s.URL, s.Addr)
			}
			for _, step := range []struct {
				name    string
				do      func()
				answers bool
			}{
				{"started", func() {}, true},
				{"paused", s.Pause, false},
				{"resumed", s.Resume, true},
				{"killed", s.Kill, false},
				{"killed again", s.Kill, false},
				{"started after a kill", s.Start, true},
				{"started twice", s.Start, true},
				{"stopped", s.Stop, false},
				{"started after a stop", s.Start, true},
				{"killed while paused", func() { s.Pause(); s.Kill() }, false},
			} {
				step.do()
				if err := s.spec.ready(t.Context(), s.Addr); (err == nil) != step.answers {
					t.Fatalf("%s: ready is %v, want it to answer: %v", step.name, err, step.answers)
				}
			}
		})
	}
}

func TestKillTakesChildren(t *testing.T) {
	s := Postgres(t)
	s.MustControl()
	pids := tree(s.cmd.Process.Pid)
	if len(pids) < 3 {
		t.Fatalf("the server has processes %v, want its children among them", pids)
	}
	s.Kill()
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d of the killed server is alive", pid)
		}
	}
}

// A child that is killed must take its server with it.
func TestServerDiesWithItsTest(t *testing.T) {
	if os.Getenv("HAPAX_TEST_CHILD") != "" {
		s := MariaDB(t)
		if _, err := os.Stdout.WriteString("pid " + s.Addr + "\n"); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	Require(t, []string{"mariadbd"}, "/usr/sbin", "/usr/local/sbin")
	if External(t, "HAPAX_TEST_MYSQL_URL") != nil {
		t.Skip("an existing server was given")
	}
	cmd, addr := startSelf(t)
	if err := cmd.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience.Long); ; patience.Again() {
		conn, err := net.Dial("tcp", addr)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil {
			_ = conn.Close()
		}
		if time.Now().After(end) {
			t.Fatal("the server outlives its test")
		}
	}
}

// A server that is down for a while must find its port free when it comes back.
func TestReserve(t *testing.T) {
	var port int
	t.Run("while the test runs", func(t *testing.T) {
		port = FreePort(t)
		runtime.GC() // which closes a socket that nothing refers to
		if reserve(t, port) {
			t.Errorf("port %d was given twice", port)
		}
	})
	if !reserve(t, port) {
		t.Errorf("port %d is still reserved after its test", port)
	}
	k := &keeper{ctx: t.Context()}
	port = FreePort(k)
	runtime.GC()
	if reserve(t, port) {
		t.Errorf("port %d of a shared server was given twice", port)
	}
	runtime.KeepAlive(k)
}

func TestMissing(t *testing.T) {
	skipIfShort(t)
	for _, c := range []struct {
		ci, require string
		fails       bool
	}{{"", "", false}, {"true", "", true}, {"false", "", false}, {"", "1", true}} {
		t.Setenv("CI", c.ci)
		t.Setenv("HAPAX_TEST_REQUIRE", c.require)
		probe := &probeTB{TB: t}
		func() {
			defer func() { _ = recover() }()
			Require(probe, []string{"no-such-binary-of-any-server"})
		}()
		if probe.failed != c.fails || probe.skipped == c.fails {
			t.Errorf("%+v: failed %v, skipped %v", c, probe.failed, probe.skipped)
		}
	}
}

// probeTB records how a test was ended.
type probeTB struct {
	testing.TB
	failed, skipped bool
}

func (p *probeTB) Fatalf(string, ...any) { p.failed = true; panic("ended") }
func (p *probeTB) Skip(...any)           { p.skipped = true; panic("ended") }

func TestProxy(t *testing.T) {
	p := NewProxy(t, echoServer(t))
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", p.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	// ask sends a word and returns what came back; "" if the connection broke.
	ask := func(conn net.Conn, word string, within time.Duration) (string, error) {
		if _, err := io.WriteString(conn, word); err != nil {
			return "", err
		}
		if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
			return "", err
		}
		buf := make([]byte, 100)
		n, err := conn.Read(buf)
		return string(buf[:n]), err
	}
	const long, short = 10 * time.Second, 50 * time.Millisecond
	expect := func(conn net.Conn, word string) {
		t.Helper()
		if got, err := ask(conn, word, long); got != word {
			t.Fatalf("asked %q, got %q, %v", word, got, err)
		}
	}

	c := dial()
	expect(c, "one")
	p.CutReply(Contains("two"))
	expect(c, "other")
	if got, err := ask(c, "two", long); err == nil {
		t.Fatalf("the reply %q came, want the connection cut", got)
	}
	if p.Fired() != 1 {
		t.Fatalf("cut %d times, want 1", p.Fired())
	}
	c = dial()
	expect(c, "two")
	p.CutRequest(Nth(2))
	expect(c, "first")
	if got, err := ask(c, "second", long); err == nil {
		t.Fatalf("the reply %q came, want the connection cut", got)
	}
	c = dial()
	expect(c, "before")
	p.Blackhole()
	if _, err := ask(c, "held", short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("in the black hole: %v, want no answer", err)
	}
	fresh := dial()
	p.Pass()
	if got, err := ask(c, "", long); got != "held" {
		t.Fatalf("after the black hole: %q, %v, want what was held", got, err)
	}
	expect(fresh, "fresh")
	p.Delay(0, time.Minute)
	if _, err := ask(c, "slow", short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("delayed: %v, want no answer yet", err)
	}
	p.Cut()
	if _, err := ask(fresh, "x", long); err == nil {
		t.Fatal("a cut connection answers")
	}
	if _, err := ask(dial(), "x", long); err == nil {
		t.Fatal("a new connection answers while cut")
	}
	p.Pass()
	expect(dial(), "again")
}

// An answer that is waited for is a round trip, and so is a connection; what is sent while one
// is on the way is none.
func TestProxyCountsRoundTrips(t *testing.T) {
	p := NewProxy(t, echoServer(t))
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(words ...string) {
		t.Helper()
		for _, word := range words {
			if _, err := io.WriteString(conn, word); err != nil {
				t.Fatal(err)
			}
		}
		all := strings.Join(words, "")
		got := make([]byte, len(all))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != all {
			t.Fatalf("sent %q, got %q, %v", all, got, err)
		}
	}
	for range 3 {
		ask("one")
	}
	if got := p.RoundTrips(); got != 4 {
		t.Errorf("%d round trips; want one for the connection, and three", got)
	}
	p.Delay(time.Millisecond, 100*time.Millisecond)
	ask("two", "at once")
	if got := p.RoundTrips(); got != 5 {
		t.Errorf("%d round trips; want one more", got)
	}
	began, l := time.Now(), &link{}
	for i, v := range []struct {
		from direction
		at   time.Duration
		want int
	}{
		{toServer, 0, 6},
		{toServer, time.Millisecond, 6},
		{toClient, 2 * time.Millisecond, 6},
		{toServer, 3 * time.Millisecond, 6}, // what the server has sent is on the way, and was no answer
		{toServer, 101 * time.Millisecond, 7},
		{toServer, 500 * time.Millisecond, 7}, // before an answer
	} {
		if p.count(l, v.from, began.Add(v.at)); p.RoundTrips() != v.want {
			t.Errorf("%d round trips after piece %d; want %d", p.RoundTrips(), i, v.want)
		}
	}
}

func TestProxyURL(t *testing.T) {
	p := NewProxy(t, "127.0.0.1:1")
	got := p.URL("mysql://u:p@example.org:3306/db?x=1")
	if want := "mysql://u:p@" + p.Addr + "/db?x=1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func echoServer(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection, which the proxy closes
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// startSelf runs TestServerDiesWithItsTest in a process of its own and returns
// it with the address of its server.
func startSelf(t *testing.T) (*os.Process, string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := os.StartProcess(os.Args[0], []string{os.Args[0], "-test.run=^TestServerDiesWithItsTest$"}, &os.ProcAttr{
		Env: append(os.Environ(), "HAPAX_TEST_CHILD=1", "TMPDIR="+t.TempDir()), Files: []*os.File{nil, w, os.Stderr},
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		_, _ = p.Wait()
	})
	var text strings.Builder
	buf := make([]byte, 200)
	for !strings.Contains(text.String(), "\n") {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("the child printed %q: %v", text.String(), err)
		}
		text.Write(buf[:n])
	}
	_, addr, _ := strings.Cut(strings.TrimSpace(text.String()), "pid ")
	return p, addr
}
