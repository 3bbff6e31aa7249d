package hapax

import (
	"runtime"
	"testing"
	"unsafe"
)

// What every issue writes lies on a cache line that nothing else is on: neither what other
// callers read, nor another segment that was put beside it.
func TestCursorsHaveALineOfTheirOwn(t *testing.T) {
	const line = 64
	type word struct {
		name string
		at   unsafe.Pointer
	}
	var (
		written []word
		others  = map[uintptr]string{}
		size    = unsafe.Sizeof(segment{})
		kept    []*segment
	)
	note := func(name string, from unsafe.Pointer, n uintptr) {
		for at := uintptr(from); at < uintptr(from)+n; at += 8 {
			others[at/line] = name
		}
	}
	for range 1000 {
		r := newSegment(Allocation{})
		kept = append(kept, r)
		note("the fields of a segment", unsafe.Pointer(r), size-line)
		note("the limit of a segment", unsafe.Pointer(&r.limit), 8)
		written = append(written, word{"a segment", unsafe.Pointer(&r.next)})
		f := &stretch{}
		note("the encoder of a stretch", unsafe.Pointer(&f.enc), unsafe.Sizeof(f.enc))
		note("the limit of a stretch", unsafe.Pointer(&f.limit), 8)
		note("the rest of a stretch", unsafe.Pointer(&f.pop), unsafe.Sizeof(*f)-unsafe.Offsetof(f.pop))
		written = append(written, word{"a stretch", unsafe.Pointer(&f.next)})
	}
	for _, w := range written {
		if name, shared := others[uintptr(w.at)/line]; shared {
			t.Fatalf("the cursor of %s lies beside %s", w.name, name)
		}
		others[uintptr(w.at)/line] = "the cursor of " + w.name
	}
	runtime.KeepAlive(kept)
}
