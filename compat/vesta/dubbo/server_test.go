package dubbo

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
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
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
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
	var b []byte
	for _, s := range []string{"2.0.2", service, "0.0.0", method, descriptor} {
		b = appendText(b, s)
	}
	for _, v := range args {
		b = appendLong(b, v)
	}
	b = append(b, 'H') // the attachments
	b = appendText(appendText(b, "path"), service)
	return append(b, 'Z')
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
