package respapi

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// frame encodes a command as clients do.
func frame(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

func texts(args [][]byte) []string {
	list := make([]string, len(args))
	for i, a := range args {
		list[i] = string(a)
	}
	return list
}

func TestParse(t *testing.T) {
	long := strings.Repeat("x", MaxFrame)
	for _, tt := range []struct {
		name string
		in   string
		args []string
		size int // of the first command; 0: incomplete
		err  protocolError
	}{
		{name: "nothing"},
		{name: "command", in: frame("INCR", "orders"), args: []string{"INCR", "orders"}, size: 26},
		{name: "the first of two", in: frame("PING") + frame("QUIT"), args: []string{"PING"}, size: 14},
		{name: "any bytes", in: frame("ECHO", "\x00\r\n\xff"), args: []string{"ECHO", "\x00\r\n\xff"}, size: 24},
		{name: "empty argument", in: frame("ECHO", ""), args: []string{"ECHO", ""}, size: 20},
		{name: "no arguments", in: "*0\r\n", size: 4},
		{name: "null array", in: "*-1\r\n", size: 5},
		{name: "longest command", in: frame("ECHO", long[:MaxFrame-24]), args: []string{"ECHO", long[:MaxFrame-24]}, size: MaxFrame},

		{name: "only the kind", in: "*"},
		{name: "count without its end", in: "*2\r"},
		{name: "an argument is missing", in: "*2\r\n$4\r\nPING\r\n"},
		{name: "length without its end", in: "*1\r\n$4"},
		{name: "half an argument", in: "*1\r\n$4\r\nPI"},
		{name: "end is missing", in: "*1\r\n$4\r\nPING"},
		{name: "half an end", in: "*1\r\n$4\r\nPING\r"},

		{name: "count is huge", in: "*2000000000\r\n", err: errArgCount},
		{name: "count is beyond int", in: "*9223372036854775808\r\n", err: errArgCount},
		{name: "count above the limit", in: "*1025\r\n", err: errArgCount},
		{name: "count is no number", in: "*x\r\n", err: errArgCount},
		{name: "count is empty", in: "*\r\n", err: errArgCount},
		{name: "count is a sign", in: "*-\r\n", err: errArgCount},
		{name: "count with a plus", in: "*+1\r\n", err: errArgCount},
		{name: "count ends without LF", in: "*1\r$4\r\nPING\r\n", err: errArgCount},
		{name: "count ends without CR", in: "*1\n$4\r\nPING\r\n", err: errArgCount},
		{name: "count without an end", in: "*11111111111", err: errArgCount},
		{name: "length is huge", in: "*1\r\n$9223372036854775800\r\n", err: errArgLength},
		{name: "length above the limit", in: "*1\r\n$65537\r\n", err: errArgLength},
		{name: "command above the limit", in: "*1\r\n$65536\r\n", err: errTooBig},
		{name: "length is negative", in: "*1\r\n$-1\r\n", err: errArgLength},
		{name: "length is no number", in: "*1\r\n$0x4\r\n", err: errArgLength},
		{name: "argument too long", in: "*1\r\n$4\r\nPINGS\r\n", err: errNoEnd},
		{name: "end is CR alone", in: "*1\r\n$4\r\nPING\r.", err: errNoEnd},
		{name: "end is wrong at once", in: "*1\r\n$4\r\nPING.", err: errNoEnd},
		{name: "array in an array", in: strings.Repeat("*1\r\n", 1000), err: errNoArg + ", got '*'"},
		{name: "integer as argument", in: "*1\r\n:1\r\n", err: errNoArg + ", got ':'"},
		{name: "all arguments above the limit", in: "*3\r\n" + strings.Repeat("$30000\r\n"+long[:30000]+"\r\n", 3), err: errTooBig},

		{name: "inline", in: "INCR orders\r\n", args: []string{"INCR", "orders"}, size: 13},
		{name: "inline without CR", in: " incr\torders \n", args: []string{"incr", "orders"}, size: 14},
		{name: "inline, empty", in: "\r\n", size: 2},
		{name: "inline, half", in: "PING\r"},
		{name: "inline, quoted", in: `ECHO "a b\x41\n\"" 'it\'s' ""` + "\n", args: []string{"ECHO", "a bA\n\"", "it's", ""}, size: 30},
		{name: "inline, quotes open", in: "ECHO \"a\n", err: errQuotes},
		{name: "inline, text after quotes", in: "ECHO 'a'b\n", err: errQuotes},
		{name: "inline, backslash at the end", in: "ECHO \"a\\\n", err: errQuotes},
		{name: "inline, too long", in: long, err: "too big inline request"},
		{name: "inline, too many words", in: strings.Repeat("x ", MaxArgs+1) + "\n", err: errArgCount},

		{name: "HTTP POST", in: "POST /x HTTP/1.1\r\n", err: errHTTP},
		{name: "HTTP POST without a version", in: "POST /x\r\n", err: errHTTP},
		{name: "HTTP GET", in: "GET /INCR%20orders HTTP/1.1\r\n", err: errHTTP},
		{name: "HTTP/0.9", in: "GET /\r\n", err: errHTTP},
		{name: "HTTP OPTIONS", in: "OPTIONS * HTTP/1.1\r\n", err: errHTTP},
		{name: "HTTP header", in: "host: localhost\r\n", err: errHTTP},
		{name: "GET of a tag", in: "GET orders\r\n", args: []string{"GET", "orders"}, size: 12},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args, size, err := parse([]byte(tt.in), nil)
			var want error
			if tt.err != "" {
				want = tt.err
			}
			if !errors.Is(err, want) || size != tt.size {
				t.Fatalf("%d bytes, error %v; want %d, %v", size, err, tt.size, want)
			}
			if size > 0 && !slices.Equal(texts(args), tt.args) {
				t.Errorf("%q, want %q", args, tt.args)
			}
		})
	}
}

// What is encoded comes out, however the bytes are cut into pieces.
func TestParseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfN(rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 100), func(b []byte) string { return string(b) }), 1, 20).Draw(t, "args")
		in := []byte(frame(args...))
		cut := rapid.IntRange(0, len(in)-1).Draw(t, "cut")
		if _, size, err := parse(in[:cut], nil); size != 0 || err != nil {
			t.Fatalf("the first %d of %d bytes: %d, %v", cut, len(in), size, err)
		}
		got, size, err := parse(append(in, "*1\r\n"...), nil)
		if size != len(in) || err != nil || !slices.Equal(texts(got), args) {
			t.Fatalf("%q, %d, %v", got, size, err)
		}
	})
}

// A frame that announces much makes the reader allocate nothing for it.
func TestParseAllocatesNothing(t *testing.T) {
	args := make([][]byte, 0, 8)
	for _, in := range []string{
		frame("INCR", "orders"), "*2000000000\r\n", "*1024\r\n$4\r\nPING\r\n", "*1\r\n$9223372036854775800\r\n",
		"*1\r\n$60000\r\nabc", "INCR orders\r\n",
	} {
		buf := []byte(in)
		if n := testing.AllocsPerRun(100, func() { _, _, _ = parse(buf, args) }); n > 0 {
			t.Errorf("%.20q: %v allocations", in, n)
		}
	}
}

// FuzzReader holds the reader to its bounds, and to the same answer for every way
// in which the bytes can arrive.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		frame("INCR", "orders") + frame("PING"), "$9223372036854775800\r\n", "*1\r\n$9223372036854775800\r\n", "*2000000000\r\n",
		strings.Repeat("*1\r\n", 200), "*2\r\n$4\r\nINCR\r\n$6\r\nord", "*-1\r\n*0\r\n", "*1\r\n$-1\r\n", "*1\r$4\r\nPING\r\n",
		"*1\r\n$4\r\nPING\r", "\r\n\n", "INCR orders\r\nPING\r\n", "ECHO \"\\x4\\\"", "POST / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00",
		"*\r\n", "*1\r\n$\r\n", "*00000000001\r\n", "'\\'\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		in = in[:min(len(in), 2*MaxFrame)]
		whole, wholeErr := parseAll(t, in, len(in))
		bytewise, err := parseAll(t, in, 1)
		if !slices.EqualFunc(whole, bytewise, slices.Equal) || !errors.Is(err, wholeErr) && !errors.Is(wholeErr, err) {
			t.Errorf("at once %q, %v; byte by byte %q, %v", whole, wholeErr, bytewise, err)
		}
	})
}

// parseAll parses what comes in pieces of a size, as a connection does.
func parseAll(t *testing.T, in []byte, piece int) (cmds [][]string, err error) {
	for from, to := 0, 0; ; {
		args, size, err := parse(in[from:to], nil)
		taken := 0
		for _, a := range args {
			taken += len(a)
		}
		switch {
		case size < 0 || from+size > to || taken > to-from || len(args) > MaxArgs:
			t.Fatalf("%d bytes with %d arguments of %d bytes, from %d", size, len(args), taken, to-from)
		case err != nil:
			return cmds, err
		case size > MaxFrame:
			t.Fatalf("a command of %d bytes", size)
		case size > 0:
			cmds = append(cmds, texts(args))
			from += size
			continue
		case to-from >= MaxFrame:
			t.Fatalf("more than %d bytes are waited for", to-from)
		case to == len(in):
			return cmds, nil
		}
		to = min(to+piece, len(in))
	}
}

// FuzzCommands sends anything to a connection: it must answer, and go on or end.
func FuzzCommands(f *testing.F) {
	f.Add([]byte(frame("INCR", "orders") + frame("GET", "orders")))
	f.Add([]byte(frame("HELLO", "3", "AUTH", "a", "b", "SETNAME", "c") + frame("INFO") + frame("COMMAND", "DOCS")))
	f.Add([]byte(frame("HAPAX.NEXT", "orders", "COUNT", "-9223372036854775808") + frame("HAPAX.PARSE", "1", "leaf")))
	f.Add([]byte(frame("CLIENT", "SETNAME", "a\r\nb") + frame("CONFIG", "GET", "[", "*")))
	srv := newTestServer(f, testConfig{})
	f.Fuzz(func(t *testing.T, in []byte) {
		in = in[:min(len(in), 4096)]
		c := newConn(srv.Server, discardConn{})
		c.b = scratches.Get().(*scratch)
		c.net = discardConn{}
		c.received(copy(c.b.in, in))
	})
}

// The memory that hostile clients can make the server keep stays small.
func TestHostileMemory(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 50 {
		c := srv.dial(t)
		c.send("*1024\r\n$65000\r\n" + strings.Repeat("x", 100))
	}
	c := srv.dial(t)
	c.do("PING", "+PONG\r\n")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapInuse) - int64(before.HeapInuse); used > 8<<20 {
		t.Errorf("50 half frames that announce 64 MB keep %d bytes", used)
	}
}

func TestWriter(t *testing.T) {
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"integer", appendInt(nil, -1<<63), ":-9223372036854775808\r\n"},
		{"error on one line", appendError(nil, "ERR a\r\n+OK\x00\x7f"), "-ERR a  +OK  \r\n"},
		{"long error", appendError(nil, strings.Repeat("x", 5000)), "-" + strings.Repeat("x", maxErrorText) + "\r\n"},
		{"text in RESP2", appendText(nil, "a\n", false), "$2\r\na\n\r\n"},
		{"text in RESP3", appendText(nil, "a\n", true), "=6\r\ntxt:a\n\r\n"},
		{"map in RESP2", appendMap(nil, 3, false), "*6\r\n"},
		{"map in RESP3", appendMap(nil, 3, true), "%3\r\n"},
		{"null in RESP2", appendNull(nil, false), "$-1\r\n"},
		{"null in RESP3", appendNull(nil, true), "_\r\n"},
	} {
		if !bytes.Equal(tt.got, []byte(tt.want)) {
			t.Errorf("%s: %q, want %q", tt.name, tt.got, tt.want)
		}
	}
}
