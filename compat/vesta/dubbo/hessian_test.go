package dubbo

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax/compat/vesta"
)

// TestLongs has the examples of the specification of Hessian 2, section 4.7.
func TestLongs(t *testing.T) {
	for want, v := range map[string]int64{
		"e0": 0, "d8": -8, "ef": 15, "f000": -2048, "f700": -256, "f800": 0x0, "ffff": 2047,
		"380000": -262144, "3fffff": 262143, "5980000000": math.MinInt32, "597fffffff": math.MaxInt32,
		"4c000000000000012c": 300, "4c8000000000000000": math.MinInt64, "4c7fffffffffffffff": math.MaxInt64,
		// Ints are taken for longs.
		"90": 0, "80": -16, "bf": 47, "c000": -2048, "c800": 0, "cfff": 2047, "d00000": -262144, "d7ffff": 262143, "4980000000": math.MinInt32, "490000012c": 300,
	} {
		data, err := hex.DecodeString(want)
		if err != nil {
			t.Fatal(err)
		}
		d := decoder{data: data}
		if got, err := d.long(); err != nil || got != v || d.left() != 0 {
			t.Errorf("%s: %d, %v; want %d", want, got, err, v)
		}
	}
	lengths := map[int64]int{
		-8: 1, 15: 1, -9: 2, 16: 2, -2048: 2, 2047: 2, -2049: 3, 2048: 3, -262144: 3, 262143: 3, -262145: 5, 262144: 5,
		math.MinInt32: 5, math.MaxInt32: 5, math.MinInt32 - 1: 9, math.MaxInt32 + 1: 9, math.MinInt64: 9, math.MaxInt64: 9,
	}
	for v, want := range lengths {
		b := appendLong(nil, v)
		d := decoder{data: b}
		if got, err := d.long(); err != nil || got != v || len(b) != want {
			t.Errorf("%d is %x, which is %d, %v; want %d bytes", v, b, got, err, want)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		v := rapid.Int64().Draw(rt, "v")
		d := decoder{data: appendLong(nil, v)}
		if got, err := d.long(); err != nil || got != v || d.left() != 0 {
			rt.Fatalf("%d became %d, %v", v, got, err)
		}
	})
}

func TestText(t *testing.T) {
	for name, c := range map[string]struct {
		data, want string // want begins with ! if that is an error
	}{
		"empty":                {"\x00", ""},
		"null":                 {"N", ""},
		"short":                {"\x03abc", "abc"},
		"two bytes":            {"\x30\x03abc", "abc"},
		"S":                    {"S\x00\x03abc", "abc"},
		"ü":                    {"\x01\xc3\xbc", "ü"},
		"beyond 16 bits":       {"\x02\xed\xa0\xbd\xed\xb8\x80", "\xed\xa0\xbd\xed\xb8\x80"},
		"four bytes":           {"\x02\U0001f600", "\U0001f600"},
		"longest":              {"\x33\xff" + strings.Repeat("a", 1023), strings.Repeat("a", 1023)},
		"chunks":               {"R\x00\x01aS\x00\x01b", "!several chunks"},
		"endless chunks":       {strings.Repeat("R\x00\x00", 100), "!ends within"},
		"truncated":            {"\x04abc", "!ends within"},
		"truncated length":     {"S\x00", "!ends within"},
		"truncated ü":          {"\x01\xc3", "!ends within"},
		"longer than it is":    {"S\xff\xffabc", "!ends within"},
		"no character":         {"\x01\xff", "!begins no character"},
		"a part":               {"\x01\x80", "!begins no character"},
		"a long":               {"\xe0", "!begins no string"},
		"nothing":              {"", "!ends within"},
		"more than is allowed": {"S\x04\x00" + strings.Repeat("a", 1024), "!more than 1023"},
	} {
		d := decoder{data: []byte(c.data)}
		got, err := d.text(1023)
		if want, wrong := strings.CutPrefix(c.want, "!"); wrong {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q, %v; want an error with %q", name, got, err, want)
			}
		} else if err != nil || got != c.want || d.left() != 0 {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestAppendText(t *testing.T) {
	for s, want := range map[string]string{
		"":                              "\x00",
		strings.Repeat("ü", 31):         "\x1f" + strings.Repeat("ü", 31),
		strings.Repeat("ü", 32):         "\x30\x20" + strings.Repeat("ü", 32),
		strings.Repeat("a", 2000):       "\x33\xff" + strings.Repeat("a", 1023),
		"a\U0001f600b\xff":              "\x04a?b\ufffd",
		strings.Repeat("\U0001f600", 2): "\x02??",
	} {
		if got := appendText(nil, s); string(got) != want {
			t.Errorf("%.20q: %.40q; want %.40q", s, got, want)
		}
	}
}

// values are one of each kind, and what is wrong with the last ones.
var values = []struct{ data, wrong string }{
	{"N", ""},
	{"T", ""},
	{"F", ""},
	{"[", ""},
	{"\\", ""},
	{"]\x01", ""},
	{"^\x01\x02", ""},
	{"_\x01\x02\x03\x04", ""},
	{"D\x01\x02\x03\x04\x05\x06\x07\x08", ""},
	{"J\x01\x02\x03\x04\x05\x06\x07\x08", ""},
	{"K\x01\x02\x03\x04", ""},
	{"I\x01\x02\x03\x04", ""},
	{"\x20", ""},
	{"\x22ab", ""},
	{"\x34\x02ab", ""},
	{"B\x00\x02ab", ""},
	{"A\x00\x02abB\x00\x01c", ""},
	{"A\x00\x02ab\x21c", ""},
	{"R\x00\x02abS\x00\x01c", ""},
	{"R\x00\x02ab\x01c", ""},
	{"HZ", ""},
	{"H\x01a\xe1\x01b\x01cZ", ""},
	{"M\x01t\x01a\xe1Z", ""},
	{"M\x90\x01a\xe1Z", ""},
	{"U\x01t\xe1\xe2Z", ""},
	{"V\x01t\x92\xe1\xe2", ""},
	{"W\xe1\xe2Z", ""},
	{"X\x92\xe1\xe2", ""},
	{"\x72\x01t\xe1\xe2", ""},
	{"\x7a\xe1\xe2", ""},
	{"C\x01t\x92\x01a\x01b\x60\xe1\xe2", ""},
	{"\x7aC\x01t\x91\x01a\x60\xe1O\x90\xe2", ""},
	{"C\x01t\x91\x01a\x60Q\x90", ""},
	{strings.Repeat("\x79", maxDepth-1) + "N", ""},

	{"", "ends within"},
	{"@", "begins no value"},
	{"E", "begins no value"},
	{"G", "begins no value"},
	{"P", "begins no value"},
	{"Z", "begins no value"},
	{"J\x01", "ends within"},
	{"D\x01\x02\x03", "ends within"},
	{"B\xff\xffab", "ends within"},
	{"A\x00\x00", "ends within"},
	{"A\x00\x00N", "begins no binary"},
	{"R\x00\x00N", "begins no string"},
	{"H\x01a", "ends within"},
	{"HE", "begins no value"},
	{"X\x4c\x7f\xff\xff\xff\xff\xff\xff\xff", "ends within"},
	{"X\xdf", "a list of -1"},
	{"X\x01a", "begins no long"},
	{"V\x54\x90", "begins no string"},
	{"C\x01t\x4c\x7f\xff\xff\xff\xff\xff\xff\xff", "a class of"},
	{"C\x01t\xdf", "a class of -1"},
	{"C\x01t\x91\x01a\x61\xe1", "of class 1, of which there are 1"},
	{"\x60", "of class 0, of which there are 0"},
	{"O\xdf", "of class -1"},
	{"O\x01", "begins no long"},
	{strings.Repeat("C\x01t\x90", maxClasses+1), "nested more"},
	{"W" + strings.Repeat("C\x01t\x90\x60", maxClasses+1) + "Z", "more than 64 classes"},
	{strings.Repeat("\x79", maxDepth) + "N", "nested more"},
	{strings.Repeat("H", 1000), "nested more"},
	{strings.Repeat("W", 1000), "nested more"},
}

func TestSkip(t *testing.T) {
	for _, v := range values {
		d := decoder{data: []byte(v.data + "\x00")}
		if v.wrong != "" {
			d.data = []byte(v.data)
		}
		err := d.skip(maxDepth)
		switch {
		case v.wrong == "" && (err != nil || d.left() != 1):
			t.Errorf("%.40q: %v, %d bytes are left; want 1", v.data, err, d.left())
		case v.wrong != "" && (err == nil || !strings.Contains(err.Error(), v.wrong)):
			t.Errorf("%.40q: %v; want an error with %q", v.data, err, v.wrong)
		}
	}
}

// TestSkipAllocates shows that passing over hostile lengths takes no memory.
func TestSkipAllocates(t *testing.T) {
	data := []byte("X\x4c\x7f\xff\xff\xff\xff\xff\xff\xff")
	if n := testing.AllocsPerRun(100, func() {
		d := decoder{data: data}
		_ = d.skip(maxDepth)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzHessian shows that the decoder ends within any input, and that what it took for
// a value is one, whatever follows.
func FuzzHessian(f *testing.F) {
	for _, v := range values {
		f.Add([]byte(v.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := decoder{data: data}
		value, err := d.raw()
		if d.at > len(data) || len(d.members) > maxClasses {
			t.Fatalf("at %d of %d, with %d classes", d.at, len(data), len(d.members))
		}
		if err != nil {
			return
		}
		again := decoder{data: append(bytes.Clone(value), 'x')}
		if same, err := again.raw(); err != nil || !bytes.Equal(same, value) {
			t.Fatalf("%x, then %x, %v", value, same, err)
		}
		texts := decoder{data: data}
		if s, err := texts.text(maxName); err == nil && len(s) > maxName {
			t.Fatalf("%d bytes", len(s))
		}
	})
}

// FuzzFrame shows that whatever arrives, an answer is one whole frame with a result
// or a text.
func FuzzFrame(f *testing.F) {
	for _, body := range [][]byte{
		request(DefaultInterface, "genId", ""),
		request(DefaultInterface, "expId", "J", -1),
		request(DefaultInterface, "makeId", "JJJJJJ", 0, 0, 1, 2, 3, 4),
		request(WandaInterface, "makeId", "JJJ", 0, 0, 1),
		request(DefaultInterface, "transTime", "J", 12758739),
		request("x", "y", "z"),
		append(beginning("any", "$echo", descObject), "\x7aC\x01t\x91\x01a\x60\xe1O\x90\xe2N"...),
		{'N'},
	} {
		f.Add(frame(twoWayRequest, 1, body))
		f.Add(frame(twoWayRequest|flagEvent, 1, body))
	}
	ids, err := vesta.New(issuing(sample), vesta.Options{})
	if err != nil {
		f.Fatal(err)
	}
	s, err := NewServer(ids, Options{Interfaces: []string{DefaultInterface, WandaInterface}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, body, err := readFrame(bytes.NewReader(data), nil)
		if cap(body) > maxBody {
			t.Fatalf("%d bytes for a body", cap(body))
		}
		if err != nil {
			return
		}
		c := &conn{server: s, out: make(chan []byte, 1)}
		c.answer(h, body)
		if answered := len(c.out) == 1; answered != (h.flags&flagRequest != 0 && h.flags&flagTwoWay != 0) {
			t.Fatalf("%+v: answered is %v", h, answered)
		} else if !answered {
			return
		}
		r := bytes.NewReader(<-c.out)
		reply, result, err := readFrame(r, nil)
		if err != nil && !errors.As(err, new(*requestError)) || r.Len() > maxBody || reply.id != h.id || reply.flags&(flagRequest|flagTwoWay) != 0 {
			t.Fatalf("the reply is %+v, %v, with %d bytes left", reply, err, r.Len())
		}
		if err != nil {
			return // an echo that is longer than a request may be
		}
		d := decoder{data: result}
		switch reply.status {
		case statusOK:
			if reply.flags&flagEvent == 0 {
				if tag, err := d.tag(); err != nil || tag != resultValue {
					t.Fatalf("a result begins with %#x, %v", tag, err)
				}
			}
			if err := d.skip(maxDepth); err != nil || d.left() != 0 {
				t.Fatalf("the result is %x, %v", result, err)
			}
		case statusBadRequest, statusServiceError:
			if _, err := d.text(3 * 1023); err != nil || d.left() != 0 {
				t.Fatalf("the text is %x, %v", result, err)
			}
		default:
			t.Fatalf("status %d", reply.status)
		}
	})
}
