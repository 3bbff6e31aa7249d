package identity

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
)

func mustSplit(t *testing.T, text string) Split {
	t.Helper()
	s, err := ParseSplit(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The documented example: service worker 1 in rack 1 is machine 5.
func TestSplitExample(t *testing.T) {
	s := mustSplit(t, "service:8:1,rack:2:1")
	parts := hapax.Fields{{Name: "service", Value: 1}, {Name: "rack", Value: 1}}
	if w, err := s.Worker(parts); err != nil || w != 5 {
		t.Errorf("the worker is %d, error %v; want 5", w, err)
	}
	if got := s.Parts(5); !reflect.DeepEqual(got, parts) {
		t.Errorf("the parts of 5 are %v", got)
	}
	other := mustSplit(t, "rack:2,service:8")
	if w, err := other.Worker(parts); err != nil || w != 1<<8|1 {
		t.Errorf("in the other order the worker is %d, error %v; want 257", w, err)
	}
}

func TestBadSplits(t *testing.T) {
	for _, text := range []string{
		"", "a", "a:", "a:0", "a:x", "a:-1", ":3", "a:3:8", "a:3:-1", "a:3:1:1", "a:3,a:4", "a:23", "a:20,b:3",
		"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1", "a b:3", "a:3,", "a:18446744073709551617",
	} {
		s, err := ParseSplit(text)
		if v, ok := errors.AsType[*hapax.ValueError](err); !ok || v.Field != "split" {
			t.Errorf("%q is %v, error %v; want a ValueError", text, s, err)
		}
	}
}

func TestBadParts(t *testing.T) {
	s := mustSplit(t, "service:8:1,rack:2:1")
	for name, parts := range map[string]hapax.Fields{
		"too high":  {{Name: "service", Value: 256}, {Name: "rack", Value: 1}},
		"too low":   {{Name: "service", Value: 0}, {Name: "rack", Value: 1}},
		"unknown":   {{Name: "service", Value: 1}, {Name: "room", Value: 1}},
		"missing":   {{Name: "service", Value: 1}},
		"negative":  {{Name: "service", Value: 1}, {Name: "rack", Value: -1}},
		"too large": {{Name: "service", Value: 1}, {Name: "rack", Value: 4}},
	} {
		if w, err := s.Worker(parts); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: worker %d, error %v", name, w, err)
		}
	}
	if err := Split(nil).Check(hapax.Fields{{Name: "rack", Value: 1}}); err == nil || !strings.Contains(err.Error(), "none without a split") {
		t.Errorf("parts without a split: error %v", err)
	}
}

func drawSplit(t *rapid.T) Split {
	var s Split
	for i := range rapid.IntRange(1, 4).Draw(t, "parts") {
		bits := rapid.IntRange(1, 3).Draw(t, "bits")
		s = append(s, Part{Name: fmt.Sprint("p", i), Bits: bits, Start: rapid.Int64Range(0, 1).Draw(t, "start")})
	}
	return s
}

// Worker and Parts are each other's inverse.
func TestSplitRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSplit(t)
		id := rapid.Int64Range(0, 1<<s.Bits()-1).Draw(t, "worker")
		back, err := s.Worker(s.Parts(id))
		if s.starts(id) != (err == nil) || err == nil && back != id {
			t.Errorf("worker %d has the parts %v, which are worker %d, error %v", id, s.Parts(id), back, err)
		}
	})
}

// Narrow leaves the worker IDs of the choice that have the parts, and no other.
func TestNarrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSplit(t)
		all := int64(1) << s.Bits()
		c := Choice{IDs: hapax.WorkerRange{Lo: rapid.Int64Range(0, all-1).Draw(t, "lo")}}
		c.IDs.Hi = rapid.Int64Range(c.IDs.Lo+1, all).Draw(t, "hi")
		if rapid.Bool().Draw(t, "scattered") {
			c.Among = []int64{c.IDs.Lo, c.IDs.Hi - 1}[:min(2, c.IDs.Len())]
		}
		var parts hapax.Fields
		for _, p := range s {
			if rapid.Bool().Draw(t, "fixed") {
				parts = append(parts, hapax.Field{Name: p.Name, Value: rapid.Int64Range(p.Start, p.max()).Draw(t, "value")})
			}
		}
		want := map[int64]bool{}
		for id := range c.all {
			has := s.Parts(id)
			_, err := s.Worker(has)
			for _, f := range parts {
				if v, _ := has.Get(f.Name); v != f.Value {
					err = errors.New("another part")
				}
			}
			if err == nil {
				want[id] = true
			}
		}
		got, err := s.Narrow(c, parts)
		if len(want) == 0 {
			if !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Errorf("nothing is left, and the error is %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for id := range got.all {
			if n++; !want[id] {
				t.Errorf("worker %d is left of %v with %v", id, c, parts)
			}
		}
		if n != len(want) {
			t.Errorf("%d worker IDs are left, want %v", n, want)
		}
	})
}

// A list that would be too long is refused, a range of any length is not.
func TestNarrowIsBounded(t *testing.T) {
	all := Choice{IDs: hapax.WorkerRange{Lo: 0, Hi: 1 << 20}}
	if _, err := mustSplit(t, "a:18,b:2").Narrow(all, hapax.Fields{{Name: "b", Value: 1}}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("error is %v", err)
	}
	c, err := mustSplit(t, "a:2,b:18").Narrow(all, hapax.Fields{{Name: "a", Value: 1}})
	if err != nil || c.Among != nil || c.IDs != (hapax.WorkerRange{Lo: 1 << 18, Hi: 1 << 19}) {
		t.Errorf("got %v, error %v", c.IDs, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"pool", "fixed:5", "env:X", "statefulset:1", "address:10.0.0.1,::1", "list:1,2", "disposable", "service:8:1,rack:2:1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := Parse(text); (p == nil) == (err == nil) {
			t.Errorf("%q is %v, error %v", text, p, err)
		}
		if s, err := ParseSplit(text); err == nil && (s.Bits() < 1 || s.Bits() > maxBits) {
			t.Errorf("%q is %d bits wide", text, s.Bits())
		}
	})
}
