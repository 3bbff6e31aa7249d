package audit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Long runs, in which many keys are equal across pages, come out in order and in
// one span each, wherever they are kept.
func TestMergeProperty(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		s := &runs{dir: dir, room: rapid.SampledFrom([]int64{0, 100_000, 1 << 30}).Draw(t, "room")}
		narrow := s
		defer func() {
			if err := narrow.close(); err != nil {
				t.Error(err)
			}
		}()
		different := rapid.Uint64Range(1, 50).Draw(t, "different")
		gap := rapid.SampledFrom([]uint64{1, 300, math.MaxUint64 / 50}).Draw(t, "gap")
		var all []uint64
		for range rapid.IntRange(1, 9).Draw(t, "runs") {
			keys := make([]uint64, rapid.IntRange(1, 4*pageKeys).Draw(t, "keys"))
			for i := range keys {
				keys[i] = math.MaxUint64 - gap*random.Uint64N(different)
			}
			slices.Sort(keys)
			all = append(all, keys...)
			if err := s.add(keys); err != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(all)
		most := rapid.IntRange(2, 10).Draw(t, "most")
		s, err := s.narrowed(t.Context(), most)
		if err != nil || len(s.list) > most {
			t.Fatal(len(s.list), err)
		}
		narrow = s
		var got []uint64
		for _, part := range spans(s.list, rapid.IntRange(1, 20).Draw(t, "spans")) {
			before := len(got)
			if err := s.merge(t.Context(), s.list, part, func(keys []uint64) error {
				got = append(got, keys...)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if part := got[before:]; before > 0 && len(part) > 0 && part[0] == got[before-1] {
				t.Fatalf("%d lies in two spans", part[0])
			}
		}
		if !slices.Equal(got, all) {
			t.Fatalf("%d keys came out, or not in order; want %d", len(got), len(all))
		}
	})
}

// A page of which two bytes have changed places, so that its first and last key, and how many it
// has, are as before, is told from what was written.
func TestDamagedPage(t *testing.T) {
	s := &runs{dir: t.TempDir()}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.add([]uint64{1, 3, 6, 10}); err != nil {
		t.Fatal(err)
	}
	read := func() (got []uint64, err error) {
		err = s.merge(t.Context(), s.list, span{0, math.MaxUint64}, func(keys []uint64) error { got = append(got, keys...); return nil })
		return got, err
	}
	if got, err := read(); err != nil || !slices.Equal(got, []uint64{1, 3, 6, 10}) {
		t.Fatal(got, err)
	}
	if _, err := s.file.WriteAt([]byte{3, 2}, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := read(); err == nil {
		t.Errorf("a damaged page gives %d", got)
	}
}
