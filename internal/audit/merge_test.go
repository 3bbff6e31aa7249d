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
		s := &runs{dir: dir, room: rapid.SampledFrom([]int64{0, 100_000, 1 << 30}).Draw(t, "room"), most: 10}
		defer func() {
			if err := s.close(); err != nil {
				t.Error(err)
			}
		}()
		different := rapid.Uint64Range(1, 50).Draw(t, "different")
		gap := rapid.SampledFrom([]uint64{1, 300, math.MaxUint64 / 50}).Draw(t, "gap")
		var all []uint64
		for range rapid.IntRange(1, 4).Draw(t, "runs") {
			keys := make([]uint64, rapid.IntRange(1, 4*indexEvery*pageKeys).Draw(t, "keys"))
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
		readAhead := rapid.IntRange(0, 10*maxPage).Draw(t, "read ahead")
		var got []uint64
		for _, part := range spans(s.list, rapid.IntRange(1, 20).Draw(t, "spans")) {
			var cursors []*cursor
			for _, r := range s.list {
				c, err := newCursor(s, r, part.from, part.upTo, readAhead, heldKeys(len(s.list)))
				if err != nil {
					t.Fatal(err)
				}
				cursors = append(cursors, c)
			}
			m, before := newMerger(cursors), len(got)
			for {
				keys, err := m.next()
				if err != nil {
					t.Fatal(err)
				}
				if len(keys) == 0 {
					break
				}
				got = append(got, keys...)
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
