package respapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

type testConfig struct {
	opts    Options
	service service.Options
	pace    func(*pace)
	setup   func(*Server) // before it serves
	noFD    bool          // connections that show no socket, as those with TLS
	tls     *tls.Config   // nil: none
}

// hiddenSockets accepts connections that are net.Conn and no more.
type hiddenSockets struct{ net.Listener }

func (l hiddenSockets) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	return struct{ net.Conn }{nc}, err
}

type testServer struct {
	*Server
	addr  string
	store *storetest.Faults
}

// newTestServer starts a server on loopback that ends with the test.
func newTestServer(t testing.TB, cfg testConfig) testServer {
	t.Helper()
	store := storetest.NewFaults(memstore.New())
	cfg.service.Logger = slog.New(slog.DiscardHandler)
	if cfg.opts.Logger == nil {
		cfg.opts.Logger = cfg.service.Logger
	}
	svc, err := service.New(t.Context(), store, cfg.service)
	if err != nil {
		t.Fatal(err)
	}
	s := New(svc, cfg.opts)
	if cfg.pace != nil {
		cfg.pace(&s.pace)
	}
	if cfg.setup != nil {
		cfg.setup(s)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if cfg.noFD {
		l = hiddenSockets{l}
	}
	if cfg.tls != nil {
		l = tls.NewListener(l, cfg.tls)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := svc.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return testServer{s, addr, store}
}

// testClient is a client that speaks bytes.
type testClient struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

func (s testServer) dial(t testing.TB) *testClient {
	t.Helper()
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience.Long)); err != nil {
		t.Fatal(err)
	}
	return &testClient{nc, t, bufio.NewReader(nc)}
}

func (c *testClient) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatalf("send %.40q: %v", text, err)
	}
}

// expect reads exactly the reply.
func (c *testClient) expect(reply string) {
	c.t.Helper()
	got := make([]byte, len(reply))
	n, err := io.ReadFull(c.r, got)
	if err != nil || string(got) != reply {
		c.t.Fatalf("got %q (%v), want %q", got[:n], err, reply)
	}
}

// do sends a command of words and reads exactly the reply.
func (c *testClient) do(command, reply string) {
	c.t.Helper()
	c.send(frame(strings.Fields(command)...))
	c.expect(reply)
}

// line reads one line.
func (c *testClient) line() string {
	c.t.Helper()
	line, err := c.r.ReadString('\n')
	if err != nil {
		c.t.Fatalf("after %q: %v", line, err)
	}
	return strings.TrimSuffix(line, "\r\n")
}

// expectEnd reads to the end of the connection, and returns what came.
func (c *testClient) expectEnd() string {
	c.t.Helper()
	rest, err := io.ReadAll(c.r)
	if errors.Is(err, context.DeadlineExceeded) || isNetTimeout(err) {
		c.t.Fatalf("the connection is still open after %q", rest)
	}
	return string(rest)
}

func isNetTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// discardConn stands for a connection that is not one.
type discardConn struct{ net.Conn }

func (discardConn) Write(p []byte) (int, error) { return len(p), nil }
func (discardConn) RemoteAddr() net.Addr        { return &net.TCPAddr{} }
func (discardConn) LocalAddr() net.Addr         { return &net.TCPAddr{} }

func TestReplies(t *testing.T) {
	const (
		wrongType = "-WRONGTYPE kind_mismatch: the tag is frozen as another kind: \"events\" is a snowflake tag; only a segment tag has numbers in a row\r\n"
		tooMany   = "-ERR invalid_argument: invalid COUNT 101: want 1 to 100\r\n"
		parsed    = "$2\r\nid\r\n$18\r\n250551203758067712\r\n$6\r\nlayout\r\n$4\r\nleaf\r\n$4\r\ntime\r\n$24\r\n2012-09-25T11:03:56.649Z\r\n$6\r\nfields\r\n"
		fields    = "$4\r\ntime\r\n:59736061992\r\n$6\r\nworker\r\n:189\r\n$8\r\nsequence\r\n:0\r\n"
	)
	const badNext = "-ERR syntax error: HAPAX.NEXT tag [COUNT n] [TEXT|INT]\r\n"
	srv := newTestServer(t, testConfig{service: service.Options{
		MaxCount: 100, Tags: map[string]service.TagConfig{"events": {Kind: hapax.KindSnowflake}, "late": {Start: 100}, "odd": {Delta: 2, Remainder: 1}, "coupons": {Code: "C{id:4}{check}"}, "safe": {Start: 1<<53 - 1}, "across": {Start: 1<<53 - 1}},
	}})
	for _, tt := range []struct {
		name  string
		steps []string // commands and replies in turn
	}{
		{"INCR", []string{"INCR orders", ":1\r\n", "incr orders", ":2\r\n", "InCr late", ":100\r\n"}},
		{"INCRBY", []string{"INCRBY rows 10", ":10\r\n", "INCR rows", ":11\r\n", "INCRBY rows 1", ":12\r\n"}},
		{"INCRBY of numbers that are apart", []string{
			"INCR odd", ":1\r\n",
			"INCRBY odd 2", "-WRONGTYPE kind_mismatch: the tag is frozen as another kind: the numbers of \"odd\" are 2 apart, so none follow each other: ask for one at a time, or for a list of them\r\n",
			"GET odd", "$1\r\n1\r\n", "INCRBY odd 1", ":3\r\n", "GET odd", "$1\r\n3\r\n",
		}},
		{"INCRBY with nonsense", []string{
			"INCRBY rows x", "-ERR value is not an integer or out of range\r\n", "INCRBY rows 9223372036854775808", "-ERR value is not an integer or out of range\r\n",
			"INCRBY rows 0", "-ERR invalid_argument: invalid count 0: want 1 to 1000000\r\n", "INCRBY rows -5", "-ERR invalid_argument: invalid count -5: want 1 to 1000000\r\n",
			"INCRBY events 2", wrongType,
		}},
		{"GET", []string{
			"GET seen", "$-1\r\n", "INCR seen", ":1\r\n", "GET seen", "$1\r\n1\r\n", "GET seen", "$1\r\n1\r\n", "INCRBY seen 41", ":42\r\n", "GET seen", "$2\r\n42\r\n",
		}},
		{"GET in RESP3", []string{"HELLO 3", "%8\r\n*", "GET nobody", "_\r\n"}},
		{"HAPAX.NEXT", []string{"HAPAX.NEXT many", ":1\r\n", "hapax.next many count 3", "*3\r\n:2\r\n:3\r\n:4\r\n", "HAPAX.NEXT many COUNT 1", "*1\r\n:5\r\n", "HAPAX.NEXT many TEXT COUNT 2", "*2\r\n$1\r\n6\r\n$1\r\n7\r\n", "HAPAX.NEXT many text", "$1\r\n8\r\n"}},
		{"HAPAX.CODE", []string{
			"HAPAX.CODE coupons", "$6\r\nC00013\r\n", "hapax.code coupons count 2", "*2\r\n$6\r\nC00021\r\n$6\r\nC00037\r\n", "GET coupons", "$1\r\n3\r\n",
			"HAPAX.CODE coupons 2", "-ERR syntax error: HAPAX.CODE tag [COUNT n]\r\n", "HAPAX.CODE coupons COUNT 0", "-ERR invalid_argument*",
		}},
		{"HAPAX.NEXT above 2^53", []string{
			"HAPAX.NEXT safe COUNT 1", "*1\r\n:9007199254740991\r\n", "HAPAX.NEXT safe", "$16\r\n9007199254740992\r\n", "HAPAX.NEXT safe INT", ":9007199254740993\r\n",
			"HAPAX.NEXT across COUNT 2", "*2\r\n$16\r\n9007199254740991\r\n$16\r\n9007199254740992\r\n", "HELLO 3", "%8\r\n*", "HAPAX.NEXT across", "$16\r\n9007199254740993\r\n",
			"HAPAX.NEXT across INT COUNT 1", "*1\r\n:9007199254740994\r\n", "INCR across", ":9007199254740995\r\n",
		}},
		{"HAPAX.NEXT with nonsense", []string{
			"HAPAX.NEXT many COUNT 0", "-ERR invalid_argument: invalid COUNT 0: want 1 to 100\r\n", "HAPAX.NEXT many COUNT 101", tooMany,
			"HAPAX.NEXT many COUNT x", "-ERR value is not an integer or out of range\r\n", "HAPAX.NEXT many 3", badNext,
			"HAPAX.NEXT many COUNT 1 COUNT 2", badNext, "HAPAX.NEXT many TEXT INT", badNext, "HAPAX.NEXT many COUNT", badNext, "HAPAX.NEXT", "-ERR wrong number of arguments for 'hapax.next' command\r\n",
		}},
		{"HAPAX.PARSE", []string{
			"HAPAX.PARSE 250551203758067712", "*8\r\n" + parsed + "*6\r\n" + fields, "HAPAX.PARSE 250551203758067712 leaf", "*8\r\n" + parsed + "*6\r\n" + fields,
			"HELLO 3", "%8\r\n*", "HAPAX.PARSE 250551203758067712", "%4\r\n" + parsed + "%3\r\n" + fields,
		}},
		{"HAPAX.PARSE with nonsense", []string{
			"HAPAX.PARSE x", "-ERR invalid_id*", "HAPAX.PARSE 1 lead", "-ERR invalid_layout*", "HAPAX.PARSE 1 leaf x", "-ERR wrong number of arguments for 'hapax.parse' command\r\n",
		}},
		{"PING and ECHO", []string{
			"PING", "+PONG\r\n", "PING hi", "$2\r\nhi\r\n", "PING a b", "-ERR wrong number of arguments for 'ping' command\r\n", "ECHO x", "$1\r\nx\r\n",
			"ECHO", "-ERR wrong number of arguments for 'echo' command\r\n",
		}},
		{"HELLO", []string{
			"HELLO 4", "-NOPROTO unsupported protocol version\r\n", "HELLO x", "-ERR Protocol version is not an integer or out of range\r\n",
			"HELLO 2 SETNAME me", "*16\r\n*", "CLIENT GETNAME", "$2\r\nme\r\n", "HELLO 3 NONSENSE", "-ERR Syntax error in HELLO option 'NONSENSE'\r\n",
			"HELLO 3 AUTH a b", "-" + errNoPassword + "\r\n", "CLIENT GETNAME", "$2\r\nme\r\n", "HELLO 3", "%8\r\n*", "RESET", "+RESET\r\n", "CLIENT GETNAME", "$-1\r\n",
		}},
		{"AUTH without passwords", []string{"AUTH x", "-" + errNoPassword + "\r\n", "AUTH a b c", "-ERR syntax error\r\n"}},
		{"SELECT", []string{"SELECT 0", "+OK\r\n", "SELECT 1", "-ERR DB index is out of range: hapax has only database 0; use tags of different names to keep numbers apart\r\n", "SELECT x", "-ERR invalid DB index\r\n"}},
		{"CLIENT", []string{
			"CLIENT SETNAME app", "+OK\r\n", "CLIENT GETNAME", "$3\r\napp\r\n", "CLIENT SETINFO LIB-NAME go", "+OK\r\n", "CLIENT SETINFO lib-ver 1", "+OK\r\n",
			"CLIENT SETINFO x y", "-ERR Unrecognized option 'x'\r\n", "CLIENT NO-EVICT on", "+OK\r\n", "CLIENT NO-EVICT maybe", "-ERR syntax error\r\n",
			"CLIENT KILL x", "-ERR unknown subcommand 'KILL'. Try CLIENT HELP.\r\n", "CLIENT", "-ERR wrong number of arguments for 'client' command\r\n",
			"CLIENT ID x", "-ERR wrong number of arguments for 'client|id' command\r\n", "CLIENT INFO", "$*", "CLIENT LIST TYPE normal", "$*", "CLIENT HELP", "*8\r\n*",
		}},
		{"COMMAND", []string{
			"COMMAND COUNT", ":21\r\n", "COMMAND INFO get nothing", "*2\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n*-1\r\n",
			"COMMAND DOCS echo nothing", "*2\r\n$4\r\necho\r\n*4\r\n$7\r\nsummary\r\n$21\r\nReturns its argument.\r\n$5\r\ngroup\r\n$7\r\ngeneric\r\n",
			"COMMAND", "*21\r\n*", "COMMAND LIST", "*21\r\n$4\r\nauth\r\n*", "COMMAND GETKEYS x", "-ERR unknown subcommand 'GETKEYS'. Try COMMAND HELP.\r\n",
		}},
		{"CONFIG", []string{
			"CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n", "CONFIG GET append* SAVE", "*4\r\n$10\r\nappendonly\r\n$2\r\nno\r\n$4\r\nsave\r\n$0\r\n\r\n", "CONFIG GET [", "*0\r\n",
			"CONFIG SET save 1", "-ERR unknown subcommand 'SET'. Try CONFIG HELP.\r\n", "CONFIG GET", "-ERR wrong number of arguments for 'config|get' command\r\n",
		}},
		{"INFO", []string{"INFO keyspace", "$12\r\n# Keyspace\r\n\r\n", "INFO", "$*", "INFO nothing", "$0\r\n\r\n"}},
		{"what is not here", []string{
			"set a b", "-ERR unknown command 'set': hapax issues numbers and keeps no values; INCR tag*", "SETNX a 1", "-ERR unknown command 'SETNX': hapax issues numbers*",
			"EXPIRE a 1", "-ERR unknown command 'EXPIRE': a tag does not expire*", "WATCH a", "-ERR unknown command 'WATCH': no number is issued twice*",
			"CLUSTER SLOTS", "-ERR This instance has cluster support disabled: hapax is no Redis Cluster*", "READONLY", "-ERR unknown command 'READONLY': hapax has neither Redis Cluster*",
			"AVERYLONGCOMMANDNAME x", "-ERR unknown command 'AVERYLONGCOMMANDNAME': this is hapax, which issues unique numbers: INCR tag*",
			"INCR", "-ERR wrong number of arguments for 'incr' command\r\n", "INCR a b", "-ERR wrong number of arguments for 'incr' command\r\n",
			"GET " + strings.Repeat("x", 129), "-ERR invalid_tag*",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := srv.dial(t)
			for step := range slices.Chunk(tt.steps, 2) {
				want, part := strings.CutSuffix(step[1], "*")
				c.do(step[0], want)
				if part { // skip the rest of the reply, up to that of the next command
					c.send(frame("ECHO", "mark"))
					for c.line() != "mark" {
					}
				}
			}
		})
	}
}

func TestTags(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	c := srv.dial(t)
	for range 100 { // the tag of the start comes when the service has met its store
		c.send(frame("HAPAX.TAGS"))
		if c.line() == "*1" {
			break
		}
	}
	c.expect("$9\r\nsnowflake\r\n")
	for _, tag := range []string{"b", "a", "c"} {
		c.do("INCR "+tag, ":1\r\n")
	}
	c.do("HAPAX.TAGS", "*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$9\r\nsnowflake\r\n")
	if _, err := srv.svc.DeleteTag(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	c.do("HAPAX.TAGS AFTER a COUNT 1", "*1\r\n$1\r\nc\r\n")
	c.do("HAPAX.TAGS COUNT 0", "-ERR invalid_argument: invalid COUNT 0: want 1 to 1000\r\n")
	c.do("HAPAX.TAGS x", "-ERR syntax error: HAPAX.TAGS [AFTER name] [COUNT n]\r\n")
	c.do("INCR b", "-ERR tag_deleted: the tag was deleted; create it explicitly to resume above its mark: \"b\"\r\n")
}

// The last number of a snowflake tag is the last one that this server issued.
func TestGetSnowflake(t *testing.T) {
	srv := newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}})
	c := srv.dial(t)
	c.do("GET snowflake", "$-1\r\n")
	for _, cmd := range []string{"INCR snowflake", "HAPAX.NEXT snowflake", "INCRBY snowflake 1"} {
		c.send(frame(strings.Fields(cmd)...))
		id := strings.TrimPrefix(c.line(), ":")
		if strings.HasPrefix(id, "$") { // as text
			id = c.line()
		}
		c.do("GET snowflake", fmt.Sprintf("$%d\r\n%s\r\n", len(id), id))
	}
}

func TestAuthenticate(t *testing.T) {
	token := auth.NewToken()
	policy := newPolicy(t, map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(token)}})
	srv := newTestServer(t, testConfig{opts: Options{Policy: policy}})
	c := srv.dial(t)
	for _, cmd := range []string{"INCR orders", "PING", "NOTHING", "CLIENT ID", "HAPAX.TAGS"} {
		c.do(cmd, "-NOAUTH Authentication required.\r\n")
	}
	c.do("HELLO 3", "-"+errHelloNoAuth+"\r\n")
	c.do("AUTH wrong", "-"+errWrongPass+"\r\n")
	c.do("AUTH other "+token, "-"+errWrongPass+"\r\n")
	c.do("HELLO 3 AUTH default wrong", "-"+errWrongPass+"\r\n")
	c.do("INCR orders", "-NOAUTH Authentication required.\r\n")
	c.do("AUTH "+token, "+OK\r\n")
	c.do("INCR orders", ":1\r\n")
	c.do("RESET", "+RESET\r\n")
	c.do("INCR orders", "-NOAUTH Authentication required.\r\n")
	c.send(frame("HELLO", "2", "AUTH", "app", token))
	if got := c.line(); got != "*16" {
		t.Fatalf("HELLO with credentials: %q", got)
	}
}

// A pipeline is answered in order, whatever is in it and however it is cut.
func TestPipeline(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	var pipeline, want strings.Builder
	others := 0
	for i := 1; i <= 1000; i++ {
		pipeline.WriteString(frame("INCR", "orders"))
		fmt.Fprintf(&want, ":%d\r\n", i)
		if i%7 == 0 {
			others++
			pipeline.WriteString(frame("INCR", "others"))
			fmt.Fprintf(&want, ":%d\r\n", others)
		}
		if i%300 == 0 {
			pipeline.WriteString(frame("ECHO", "between") + "INCR\r\n\r\n*0\r\n")
			want.WriteString("$7\r\nbetween\r\n-ERR wrong number of arguments for 'incr' command\r\n")
		}
	}
	c := srv.dial(t)
	c.send(pipeline.String())
	c.expect(want.String())
}

// Bytes may come one by one.
func TestBytewise(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	c := srv.dial(t)
	for _, b := range []byte(frame("ECHO", "a\r\nb") + "PING\r\n" + frame("INCR", "orders") + frame("INCR", "orders")) {
		c.send(string(b))
		runtime.Gosched()
	}
	c.expect("$4\r\na\r\nb\r\n+PONG\r\n:1\r\n:2\r\n")
}

// A command as long as is allowed, in pieces, with more behind it.
func TestLongCommand(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	c := srv.dial(t)
	text := strings.Repeat("x", MaxFrame-100)
	in := frame("ECHO", text) + frame("PING")
	for piece := range slices.Chunk([]byte(in), 7000) {
		c.send(string(piece))
		patience.Slow(time.Millisecond)
	}
	c.expect(fmt.Sprintf("$%d\r\n%s\r\n+PONG\r\n", len(text), text))
}

// Where a connection is not a socket, or this is not Linux, it is read by other
// means, which answer the same.
func TestPlainConnection(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	ours, theirs := net.Pipe()
	srv.admit(theirs)
	c := &testClient{ours, t, bufio.NewReader(ours)}
	c.do("INCR orders", ":1\r\n")
	go c.send(frame("INCR", "orders") + "*1\r\n$4\r\nPI")
	c.expect(":2\r\n")
	go c.send("NG\r\n*x")
	c.expect("+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n")
	c.expectEnd()
}

func TestManyConnections(t *testing.T) {
	const conns, rounds, run = 200, 5, 10
	srv := newTestServer(t, testConfig{})
	numbers := make([][]int, conns)
	var wg sync.WaitGroup
	for i := range conns {
		c := srv.dial(t)
		wg.Go(func() {
			for range rounds {
				if _, err := io.WriteString(c, strings.Repeat(frame("INCR", "orders"), run)); err != nil {
					t.Error(err)
					return
				}
				for range run {
					line, err := c.r.ReadString('\n')
					if err != nil {
						t.Error(err)
						return
					}
					n, err := strconv.Atoi(strings.Trim(line, ":\r\n"))
					if err != nil {
						t.Errorf("%q", line)
					}
					numbers[i] = append(numbers[i], n)
				}
			}
		})
	}
	wg.Wait()
	for i, own := range numbers {
		if !slices.IsSorted(own) {
			t.Errorf("connection %d: not ascending: %v", i, own)
		}
	}
	all := slices.Concat(numbers...)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != conns*rounds*run {
		t.Errorf("%d different numbers of %d", n, conns*rounds*run)
	}
}
