package interop

import (
	"encoding/binary"
	"io"
	"math"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	hessian "github.com/apache/dubbo-go-hessian2"

	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/memstore"
)

// exchange sends a request whose body the other implementation of Hessian encodes,
// and returns the values of the reply as it decodes them.
func exchange(t *testing.T, c net.Conn, values ...any) (status byte, reply []any) {
	t.Helper()
	e := hessian.NewEncoder()
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	frame := binary.BigEndian.AppendUint32(append([]byte{0xda, 0xbb, 0xc2, 0}, make([]byte, 8)...), uint32(len(e.Buffer())))
	if _, err := c.Write(append(frame, e.Buffer()...)); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 16)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint32(head[12:]))
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	for d := hessian.NewDecoder(body); ; {
		v, err := d.Decode()
		if err != nil {
			return head[3], reply
		}
		reply = append(reply, v)
	}
}

func connect(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", provide(t, memstore.New(), "127.0.0.1:0").addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience.Long)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEcho sends values of each kind there and back.
func TestEcho(t *testing.T) {
	c := connect(t)
	for _, v := range []any{
		nil, true, false, int32(0), int32(-17), int32(48), int32(2048), int32(-2049), int32(262144), int32(math.MaxInt32), int32(math.MinInt32),
		0.0, 1.0, -1.0, 127.0, -32768.0, 0.5, math.Pi, math.MaxFloat64,
		"", "a", strings.Repeat("a", 31), strings.Repeat("a", 32), strings.Repeat("ü", 1023), strings.Repeat("漢", 1024),
		[]byte{1, 2, 3},
		make([]byte, 15), make([]byte, 16), make([]byte, 1023), make([]byte, 1024), make([]byte, 9000),
		time.UnixMilli(1432800339000), time.UnixMilli(1432800339123), time.UnixMilli(-1),
		[]any{int32(1), "a", nil, []any{"b"}},
		[]string{"a", "b"},
		[]int64{1, 2, 3, 4, 5, 6, 7, 8, 9},
		map[any]any{"a": "b", int32(1): []any{"c"}},
		&ID{1, 2, 3, 4, 5, 6},
		[]any{&ID{Machine: 1}, &ID{Machine: 2}},
	} {
		status, reply := exchange(t, c, "2.0.2", dubbo.DefaultInterface, "0.0.0", "$echo", "Ljava/lang/Object;", v, map[any]any{"path": dubbo.DefaultInterface})
		e := hessian.NewEncoder()
		if err := e.Encode(v); err != nil {
			t.Fatal(err)
		}
		want, err := hessian.NewDecoder(e.Buffer()).Decode()
		if err != nil {
			t.Fatal(err)
		}
		if status != 20 || len(reply) != 2 || reply[0] != int32(1) || !reflect.DeepEqual(reply[1], want) {
			t.Errorf("%.60v came back as %d %.200v", v, status, reply)
		}
	}
}

// TestLongs has the server read longs that the other implementation writes, and the
// other way round: an ID is made of the fields that it was explained as.
func TestLongs(t *testing.T) {
	c := connect(t)
	attachments := map[any]any{"path": dubbo.DefaultInterface, "a": nil, "b": int32(1), "c": []any{true}}
	for bit := range 64 {
		for _, id := range []int64{1 << bit, 1<<bit - 1, -1 << bit, -1<<bit - 1, 0x5555555555555555 << bit} {
			status, reply := exchange(t, c, "2.0.2", dubbo.DefaultInterface, "0.0.0", "expId", "J", id, attachments)
			if status != 20 || len(reply) != 2 {
				t.Fatalf("expId(%d): %d %v", id, status, reply)
			}
			p := reply[1].(*ID)
			status, reply = exchange(t, c, "2.0.2", dubbo.DefaultInterface, "0.0.0", "makeId", "JJJJJJ", p.Version, p.Type, p.GenMethod, p.Time, p.Seq, p.Machine, attachments)
			if status != 20 || len(reply) != 2 || reply[1] != id {
				t.Errorf("%d is %+v, of which was made %d %v", id, p, status, reply)
			}
		}
	}
	for _, at := range []int64{0, 1, 12758739, 1<<30 - 1} {
		_, reply := exchange(t, c, "2.0.2", dubbo.DefaultInterface, "0.0.0", "transTime", "J", at, nil)
		if want := time.Unix(1420041600+at, 0); len(reply) != 2 || !reply[1].(time.Time).Equal(want) {
			t.Errorf("transTime(%d): %v; want %v", at, reply, want)
		}
	}
}

// TestStatusText has the other implementation read the text of an error.
func TestStatusText(t *testing.T) {
	c := connect(t)
	status, reply := exchange(t, c, "2.0.2", "com.other.Service", "0.0.0", "genId", "", map[any]any{})
	if status != 70 || len(reply) != 1 || !strings.HasPrefix(reply[0].(string), `no service "com.other.Service"`) {
		t.Errorf("got %d %v", status, reply)
	}
}
