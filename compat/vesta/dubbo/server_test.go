package dubbo

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/internal/patience"
)

// source issues what the test says.
type source struct {
	next func(ctx context.Context) (hapax.ID, error)
}

func (s source) Next(ctx context.Context) (hapax.ID, error) { return s.next(ctx) }
func (source) Machine() int64                               { return 1021 }

// sample is a number of Vesta's guide, without its publishing method.
const sample = 2407837855670862845 &^ (3 << 60)

func issuing(id hapax.ID) source {
	return source{func(context.Context) (hapax.ID, error) { return id, nil }}
}

// start returns a server's address.
func start(t testing.TB, from vesta.Source, opts Options) (*Server, string) {
	t.Helper()
	ids, err := vesta.New(from, vesta.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(ids, opts)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-served; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, ln.Addr().String()
}

func dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience.Long)); err != nil {
		t.Fatal(err)
	}
	return c
}

// frame returns a frame with a body.
func frame(flags byte, id uint64, body []byte) []byte {
	b := []byte{0xda, 0xbb, flags, 0}
	b = binary.BigEndian.AppendUint64(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

const twoWayRequest = flagRequest | flagTwoWay | hessian2

// request returns the body of a call.
func request(service, method, descriptor string, args ...int64) []byte {
	b := beginning(service, method, descriptor)
	for _, v := range args {
		b = appendLong(b, v)
	}
	b = append(b, 'H') // the attachments
	b = appendText(appendText(b, "path"), service)
	return append(b, 'Z')
}

// beginning returns the five strings that a call begins with.
func beginning(service, method, descriptor string) (b []byte) {
	for _, s := range []string{"2.0.2", service, "0.0.0", method, descriptor} {
		b = appendText(b, s)
	}
	return b
}

// exchange sends a frame and returns the reply.
func exchange(t testing.TB, c net.Conn, frame []byte) (status byte, body []byte) {
	t.Helper()
	if _, err := c.Write(frame); err != nil {
		t.Fatal(err)
	}
	return receive(t, c, binary.BigEndian.Uint64(frame[4:]))
}

func receive(t testing.TB, c net.Conn, id uint64) (status byte, body []byte) {
	t.Helper()
	h, body, err := readFrame(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h.id != id || h.flags&flagRequest != 0 || h.flags&serializationMask != hessian2 {
		t.Fatalf("the reply's head is %+v; want one to request %d", h, id)
	}
	return h.status, body
}

// TestGolden pins the bytes of a whole conversation, taken apart below.
func TestGolden(t *testing.T) {
	_, addr := start(t, issuing(sample), Options{Interfaces: []string{DefaultInterface, WandaInterface}})
	for _, c := range []struct{ name, request, reply string }{
		{
			"genId",
			"dabb c2 00 0000000000000001 0000006c" +
				" 05 322e302e32" + // "2.0.2"
				" 30 27 636f6d2e726f626572742e76657374612e736572766963652e696e74662e496453657276696365" +
				" 05 302e302e30" + // "0.0.0"
				" 05 67656e4964 00" + // "genId" and no parameters
				" 48 04 70617468 30 27 636f6d2e726f626572742e76657374612e736572766963652e696e74662e496453657276696365 5a",
			"dabb 02 14 0000000000000001 0000000a 91 4c 116a5bc5c00003fd",
		},
		{
			"expId",
			"dabb c2 00 fffffffffffffff0 00000047" +
				" 05 322e302e32" +
				" 30 27 636f6d2e726f626572742e76657374612e736572766963652e696e74662e496453657276696365" +
				" 05 302e302e30 05 6578704964 01 4a" +
				" 4c 216a5bc5c00003fd" + // the number
				" 4e", // no attachments
			"dabb 02 14 fffffffffffffff0 00000059 91" +
				" 43 30 20 636f6d2e726f626572742e76657374612e736572766963652e6265616e2e4964 96" + // com.robert.vesta.service.bean.Id
				" 07 6d616368696e65 03 736571 04 74696d65 09 67656e4d6574686f64 04 74797065 07 76657273696f6e" +
				" 60 fbfd e0 59 05a96f17 e2 e0 e0",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			unhex := func(s string) []byte {
				b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			conn := dial(t, addr)
			req := unhex(c.request)
			if want := len(req) - headBytes; binary.BigEndian.Uint32(req[12:]) != uint32(want) {
				t.Fatalf("the request's length is %x; want %x", req[12:16], want)
			}
			if _, err := conn.Write(req); err != nil {
				t.Fatal(err)
			}
			want := unhex(c.reply)
			got := make([]byte, len(want))
			if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("got  %x, %v\nwant %x", got[:n], err, want)
			}
		})
	}
}

// text returns the string that a reply consists of.
func text(t testing.TB, body []byte) string {
	t.Helper()
	d := decoder{data: body}
	s, err := d.text(1 << 12)
	if err != nil || d.left() != 0 {
		t.Fatalf("the reply %x is not one string: %v", body, err)
	}
	return s
}

func TestRefusals(t *testing.T) {
	told := &calls{}
	_, addr := start(t, issuing(sample), Options{Answered: told.answered})
	c := dial(t, addr)
	long := strings.Repeat("x", maxName+1)
	const iface = DefaultInterface
	for name, r := range map[string]struct {
		body   []byte
		status byte
		want   string
	}{
		"unknown method":     {request(iface, "genIds", ""), 70, `no method "genIds"`},
		"unknown service":    {request("com.other.IdService", "genId", ""), 70, `no service "com.other.IdService"; there is com.robert`},
		"no such overload":   {request(iface, "genId", "J", 1), 70, `no method "genId" with the parameters "J"`},
		"makeId of one":      {request(iface, "makeId", "J", 1), 70, `no method "makeId"`},
		"makeId of seven":    {request(iface, "makeId", "JJJJJJJ", 1, 1, 1, 1, 1, 1, 1), 70, `no method "makeId"`},
		"another descriptor": {request(iface, "expId", "Ljava/lang/Long;", 1), 70, `parameters "Ljava/lang/Long;"`},
		"out of range":       {request(iface, "makeId", "JJJ", 1, 1, 1024), 40, "invalid machine 1024: want 0 to 1023"},
		"time out of range":  {request(iface, "transTime", "J", 1<<62), 40, "invalid time"},
		"empty":              {nil, 40, "protocol version: the body ends"},
		"long name":          {appendText(appendText(nil, "2.0.2"), long), 40, "path: a string of more than 256 bytes"},
		"a string for a long": {
			appendText(beginning(iface, "expId", "J"), "1"), 40, "argument 1 of expId: byte 0x01 begins no long",
		},
		"attachments":        {append(request(iface, "expId", "J", 1), 0), 20, ""},
		"broken attachments": {append(bytes.TrimSuffix(request(iface, "expId", "J", 1), []byte("Z")), 'E'), 40, "attachments: byte 0x45 begins no value"},
		"echo without a value": {
			beginning(iface, "$echo", descObject), 40, "argument of $echo: the body ends",
		},
	} {
		status, body := exchange(t, c, frame(twoWayRequest, 7, r.body))
		if status != r.status || r.want != "" && !strings.Contains(text(t, body), r.want) {
			t.Errorf("%s: %d %q; want %d with %q", name, status, body, r.status, r.want)
		}
	}
	if status, body := exchange(t, c, frame(twoWayRequest, 8, request(iface, "genId", ""))); status != statusOK || len(body) != 10 {
		t.Errorf("the connection does not go on: %d %x", status, body)
	}
	want := map[string]int{"genId failed": 2, "genId": 1, "makeId failed": 3, "expId failed": 3, "expId": 1, "transTime failed": 1, "$echo failed": 1, "other failed": 3}
	if got := told.byMethod(); !maps.Equal(got, want) {
		t.Errorf("told were %v; want %v", got, want)
	}
}

// calls notes what it is told of.
type calls struct {
	mu   sync.Mutex // guards told
	told []string
	took []time.Duration
}

func (c *calls) answered(method string, failed bool, took time.Duration) {
	if failed {
		method += " failed"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told, c.took = append(c.told, method), append(c.took, took)
}

func (c *calls) byMethod() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := map[string]int{}
	for _, told := range c.told {
		n[told]++
	}
	return n
}

// TestWanda calls the older interface, whose makeId takes the machine first.
func TestWanda(t *testing.T) {
	_, addr := start(t, issuing(sample), Options{Interfaces: []string{DefaultInterface, WandaInterface}})
	c := dial(t, addr)
	want := appendLong([]byte{resultValue}, 2407837855670862845)
	for _, r := range []struct {
		service, descriptor string
		args                []int64
	}{
		{WandaInterface, "JJJJ", []int64{2, 1021, 94990103, 0}},
		{WandaInterface, "JJJJJ", []int64{0, 2, 1021, 94990103, 0}},
		{WandaInterface, "JJJJJJ", []int64{0, 0, 2, 1021, 94990103, 0}},
		{DefaultInterface, "JJJJ", []int64{2, 94990103, 0, 1021}},
	} {
		status, body := exchange(t, c, frame(twoWayRequest, 1, request(r.service, "makeId", r.descriptor, r.args...)))
		if status != statusOK || !bytes.Equal(body, want) {
			t.Errorf("%s%v: %d %x; want %x", r.service, r.args, status, body, want)
		}
	}
	_, body := exchange(t, c, frame(twoWayRequest, 1, request(WandaInterface, "expId", "J", 1)))
	if !bytes.Contains(body, []byte("com.wanda.vesta.service.bean.Id")) {
		t.Errorf("expId returned %q", body)
	}
}

func TestEvents(t *testing.T) {
	_, addr := start(t, issuing(sample), Options{})
	c := dial(t, addr)
	// None of these is answered.
	for _, f := range [][]byte{
		frame(flagRequest|flagEvent|hessian2, 1, []byte{'N'}),                   // a heartbeat without a reply
		frame(flagRequest|flagEvent|hessian2, 2, []byte{1, 'R'}),                // the consumer is closing
		frame(flagRequest|hessian2, 3, request(DefaultInterface, "genId", "")),  // a one-way call
		frame(flagRequest|hessian2, 4, []byte("nonsense")),                      // likewise
		frame(flagEvent|hessian2, 5, []byte{'N'}),                               // a reply
		frame(flagRequest|flagTwoWay|flagEvent|hessian2, 0xabcdef, []byte{'N'}), // a heartbeat
	} {
		if _, err := c.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, headBytes+1)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if want := "dabb22140000000000abcdef000000014e"; hex.EncodeToString(got) != want {
		t.Errorf("the heartbeat's reply is %x; want %s", got, want)
	}
}

// TestBroken shows what ends a connection, after a text where there is somebody to
// read it.
func TestBroken(t *testing.T) {
	_, addr := start(t, issuing(sample), Options{})
	for name, c := range map[string]struct {
		send []byte
		want string
	}{
		"another protocol": {[]byte("GET / HTTP/1.1\r\n\r\n"), ""},
		"too long":         {frame(twoWayRequest, 1, make([]byte, maxBody+1))[:headBytes], "a body of 16385 bytes"},
		"longest":          {append([]byte{0xda, 0xbb, twoWayRequest, 0}, bytes.Repeat([]byte{0xff}, 12)...), "a body of 4294967295 bytes"},
	} {
		conn := dial(t, addr)
		if _, err := conn.Write(c.send); err != nil {
			t.Fatal(err)
		}
		h, body, err := readFrame(conn, nil)
		if c.want != "" {
			if err != nil || h.status != statusBadRequest || !strings.Contains(text(t, body), c.want) {
				t.Errorf("%s: %+v %q %v", name, h, body, err)
			}
			_, _, err = readFrame(conn, nil)
		}
		if err == nil {
			t.Errorf("%s: the connection goes on", name)
		}
	}
	c := dial(t, addr)
	status, body := exchange(t, c, frame(flagRequest|flagTwoWay|6, 1, request(DefaultInterface, "genId", "")))
	if status != statusBadRequest || !strings.Contains(text(t, body), "serialization 6") {
		t.Errorf("another serialization: %d %q", status, body)
	}
}

func TestEcho(t *testing.T) {
	_, addr := start(t, issuing(sample), Options{})
	c := dial(t, addr)
	object := appendObject(nil, "a.B", []string{"x"}, []int64{1})
	for _, value := range [][]byte{{'N'}, {'T'}, {0}, appendText(nil, strings.Repeat("ü", 100)), append(append([]byte{0x7a}, object...), 'Q', 0x91)} {
		body := append(append(beginning("any", "$echo", descObject), value...), 'N')
		status, reply := exchange(t, c, frame(twoWayRequest, 9, body))
		if status != statusOK || !bytes.Equal(reply, append([]byte{resultValue}, value...)) {
			t.Errorf("%x came back as %d %x", value, status, reply)
		}
	}
}

// TestWaiting shows that a call which waits for a number holds nobody up, and fails
// in time.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready, told := make(chan struct{}), &calls{}
		s, c := pipe(t, source{func(ctx context.Context) (hapax.ID, error) {
			select {
			case <-ready:
				return sample, nil
			default:
			}
			select {
			case <-ready:
				return sample, nil
			case <-ctx.Done():
				return 0, &hapax.WaitError{Cause: hapax.ErrStoreUnavailable, Context: ctx.Err()}
			}
		}}, Options{Answered: told.answered})
		gen := request(DefaultInterface, "genId", "")
		begin := time.Now()
		for id := range uint64(2) {
			if _, err := c.Write(frame(twoWayRequest, id, gen)); err != nil {
				t.Fatal(err)
			}
		}
		if status, _ := exchange(t, c, frame(twoWayRequest, 5, request(DefaultInterface, "expId", "J", 1))); status != statusOK || time.Since(begin) != 0 {
			t.Errorf("a call behind was answered %d after %v", status, time.Since(begin))
		}
		for range 2 {
			h, body, err := readFrame(c, nil)
			if err != nil || h.status != statusServiceError || !strings.Contains(text(t, body), "the store cannot be reached") || h.id > 1 {
				t.Errorf("got %+v %q, %v", h, body, err)
			}
		}
		if waited := time.Since(begin); waited != DefaultWait {
			t.Errorf("failed after %v; want %v", waited, DefaultWait)
		}
		if _, err := c.Write(frame(twoWayRequest, 9, gen)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		// A server that closes answers what has arrived.
		closed := make(chan error)
		go func() { closed <- s.Close(t.Context()) }()
		synctest.Wait()
		close(ready)
		if status, body := receive(t, c, 9); status != statusOK || len(body) != 10 {
			t.Errorf("got %d %x", status, body)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if want := []time.Duration{0, DefaultWait, DefaultWait, time.Second}; !slices.Equal(told.took, want) || !maps.Equal(told.byMethod(), map[string]int{"expId": 1, "genId failed": 2, "genId": 1}) {
			t.Errorf("told were %v after %v", told.told, told.took)
		}
	})
}

// pipe returns a server with one connection, in a bubble of virtual time.
func pipe(t testing.TB, from vesta.Source, opts Options) (*Server, net.Conn) {
	t.Helper()
	ids, err := vesta.New(from, vesta.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(ids, opts)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	s.open(theirs)
	t.Cleanup(func() {
		_ = ours.Close()
		_ = s.Close(context.Background())
	})
	return s, ours
}

func TestDeadlines(t *testing.T) {
	for name, c := range map[string]struct {
		send []byte
		want time.Duration
	}{
		"silent":            {nil, firstWithin},
		"idle":              {frame(0, 1, nil), DefaultIdle},
		"half a head":       {frame(twoWayRequest, 1, nil)[:5], bodyWithin},
		"half a body":       {frame(twoWayRequest, 1, make([]byte, 100))[:50], bodyWithin},
		"nobody is reading": {frame(twoWayRequest|flagEvent, 1, nil), writeWithin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c2 := pipe(t, issuing(sample), Options{})
				begin := time.Now()
				if len(c.send) > 0 {
					if _, err := c2.Write(c.send); err != nil {
						t.Fatal(err)
					}
				}
				s.wg.Wait()
				if got := time.Since(begin); got != c.want {
					t.Errorf("the connection ended after %v; want %v", got, c.want)
				}
			})
		})
	}
}

func TestCloseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := pipe(t, source{func(ctx context.Context) (hapax.ID, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}, Options{Wait: time.Hour})
		if _, err := c.Write(frame(twoWayRequest, 9, request(DefaultInterface, "genId", ""))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("the second time: %v", err)
		}
	})
}

func TestMaxConns(t *testing.T) {
	_, addr := start(t, issuing(sample), Options{MaxConns: 1})
	gen := frame(twoWayRequest, 1, request(DefaultInterface, "genId", ""))
	first := dial(t, addr)
	if status, _ := exchange(t, first, gen); status != statusOK {
		t.Fatal(status)
	}
	second := dial(t, addr)
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a second connection was answered")
	}
	if status, _ := exchange(t, first, gen); status != statusOK {
		t.Error(status)
	}
}

func TestOptions(t *testing.T) {
	ids, err := vesta.New(issuing(1), vesta.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range []Options{
		{Interfaces: []string{"IdService"}},
		{Interfaces: []string{"a..B"}},
		{Interfaces: []string{".a.B"}},
		{Interfaces: []string{"a.B."}},
		{Interfaces: []string{"a.B?c"}},
		{Interfaces: []string{"a." + strings.Repeat("b", 256)}},
		{MaxConns: -1},
		{Wait: -1},
		{Idle: -1},
	} {
		if _, err := NewServer(ids, opts); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

func TestClassOf(t *testing.T) {
	for iface, want := range map[string]string{
		DefaultInterface: "com.robert.vesta.service.bean.Id",
		WandaInterface:   "com.wanda.vesta.service.bean.Id",
		"a.IdService":    "a.Id",
	} {
		if got := classOf(iface); got != want {
			t.Errorf("%s: %s; want %s", iface, got, want)
		}
	}
}
