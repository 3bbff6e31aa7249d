package hapax

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// populators are held to one suite.
var populators = map[string]func(t timeline, first int64) populator{
	"atomic": func(t timeline, first int64) populator {
		c := &cursor{timeline: t}
		c.next.Store(first)
		return c
	},
	"mutex": func(t timeline, first int64) populator { return &mutexCursor{timeline: t, next: first} },

	// A user's that chooses what the others do, and those whose choices are not used.
	"own":           own(func(free Grant, most int64, _ int) (int64, int64) { return free.Lo, min(most, free.Len()) }),
	"own, below":    own(func(free Grant, most int64, _ int) (int64, int64) { return free.Lo - 1, most }),
	"own, too many": own(func(free Grant, most int64, _ int) (int64, int64) { return free.Lo, most + 1 }),
	"own, none":     own(func(free Grant, _ int64, _ int) (int64, int64) { return free.Lo, 0 }),
}

func own(choose func(Grant, int64, int) (int64, int64)) func(timeline, int64) populator {
	return func(t timeline, first int64) populator {
		return &chosenCursor{mutexCursor{timeline: t, next: first}, choose}
	}
}

// A populator of one's own may pass numbers over; what it issues still rises, and the
// grant is kept to.
func TestPopulate(t *testing.T) {
	even := func(free Grant, _ int64, sequenceBits int) (int64, int64) {
		if sequenceBits != 12 {
			t.Errorf("told of %d bits", sequenceBits)
		}
		return free.Lo + free.Lo&1, 1
	}
	s, err := NewSnowflake(t.Context(), nil, SnowflakeOptions{Workers: WorkerRange{3, 4}, Populate: even})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	last, lane := ID(-1), s.Lane()
	for i := range 5000 {
		next := s.Next
		if i%3 == 0 {
			next = lane.Next
		}
		id, err := next(t.Context())
		if err != nil || id&1 == 1 {
			t.Fatalf("number %d: %d, %v; want an even one", i, id, err)
		}
		if i%3 != 0 && id <= last {
			t.Fatalf("%d after %d", id, last)
		}
		last = max(last, id)
	}
	ids := make([]ID, 100)
	if n, err := s.NextN(t.Context(), ids); n != 100 || err != nil || !slices.IsSorted(ids) || ids[0] <= last {
		t.Errorf("%d numbers, %v: %v after %d", n, err, ids, last)
	}
	if err := (SnowflakeOptions{Populate: even, Mutex: true}).Validate(); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("beside Mutex: %v; want ErrInvalidArgument", err)
	}
}

func TestPopulator(t *testing.T) {
	for name, open := range populators {
		t.Run(name, func(t *testing.T) {
			t.Run("stays below the limit", func(t *testing.T) {
				p := open(timeline{bits: 4}, 16)
				if lo, n := p.take(1, 100, 1, 32); lo != 16 || n != 16 {
					t.Fatalf("took %d from %d, want 16 from 16", n, lo)
				}
				if _, n := p.take(1, 1, 1, 32); n != 0 {
					t.Fatal("took past the limit")
				}
			})
			t.Run("gives no fewer than asked", func(t *testing.T) {
				p := open(timeline{}, 1)
				if _, n := p.take(11, 11, 0, 11); n != 0 {
					t.Fatal("took 11 of 10")
				}
				if lo, n := p.take(10, 10, 0, 11); lo != 1 || n != 10 {
					t.Fatalf("took %d from %d, want 10 from 1", n, lo)
				}
			})
			t.Run("follows the tick and never goes back", func(t *testing.T) {
				p := open(timeline{bits: 4}, 0)
				p.take(1, 3, 0, 1<<20)
				lo, _ := p.take(1, 1, 7, 1<<20)
				if lo != 7<<4 {
					t.Fatalf("entered tick 7 at %d, want %d", lo, 7<<4)
				}
				if lo, _ := p.take(1, 1, 2, 1<<20); lo != 7<<4+1 {
					t.Fatalf("with the tick back at 2 it went on at %d, want %d", lo, 7<<4+1)
				}
				if next, skipped := p.position(); next-skipped != 5 {
					t.Fatalf("counts %d issued, want 5", next-skipped)
				}
			})
			t.Run("carries into the next tick", func(t *testing.T) {
				p := open(timeline{bits: 2}, 0)
				var got []int64
				for range 6 {
					lo, _ := p.take(1, 1, 0, 8)
					got = append(got, lo)
				}
				if want := []int64{0, 1, 2, 3, 4, 5}; !slices.Equal(got, want) {
					t.Fatalf("got %v, want %v", got, want)
				}
			})
			t.Run("starts a tick where it is told", func(t *testing.T) {
				p := open(timeline{bits: 12, start: SequenceContinue}, 0)
				p.take(1, 9, 0, 1<<30)
				if lo, _ := p.take(1, 1, 5, 1<<30); lo != 5<<12|9 {
					t.Fatalf("continued at %d, want %d", lo, 5<<12|9)
				}
				p = open(timeline{bits: 12, start: 100}, 0)
				seen := map[int64]int{}
				for tick := int64(1); tick <= 5000; tick++ {
					lo, _ := p.take(1, 1, tick, 1<<40)
					if lo>>12 != tick || lo&4095 >= 100 {
						t.Fatalf("tick %d started at tick %d, sequence %d", tick, lo>>12, lo&4095)
					}
					seen[lo&4095]++
				}
				if len(seen) != 100 {
					t.Fatalf("%d of 100 starts seen in 5,000 ticks", len(seen))
				}
			})
			t.Run("seal refuses and tells the first unissued", func(t *testing.T) {
				p := open(timeline{bits: 4}, 16)
				p.take(1, 5, 1, 1<<20)
				if last := p.seal(); last != 21 {
					t.Fatalf("sealed at %d, want 21", last)
				}
				if _, n := p.take(1, 1, 1<<40, MaxMark); n != 0 {
					t.Fatal("took after the seal")
				}
				if last := p.seal(); last < MaxMark {
					t.Fatalf("second seal gave %d, want above every limit", last)
				}
			})
			t.Run("gives each number once under contention", func(t *testing.T) {
				const takers, each = 8, 2000
				p := open(timeline{bits: 5}, 0)
				got := make([][]int64, takers)
				var wg sync.WaitGroup
				for i := range takers {
					wg.Go(func() {
						for k := range int64(each) {
							lo, n := p.take(1, 3, k/50, MaxMark)
							for c := range n {
								got[i] = append(got[i], lo+c)
							}
						}
					})
				}
				wg.Wait()
				for _, g := range got {
					if !slices.IsSorted(g) {
						t.Fatal("a taker saw numbers go back")
					}
				}
				all := slices.Sorted(slices.Values(slices.Concat(got...)))
				if unique := slices.Compact(slices.Clone(all)); len(unique) != len(all) || len(all) != takers*each*3 {
					t.Fatalf("%d numbers, %d different, want %d", len(all), len(unique), takers*each*3)
				}
			})
		})
	}
}

// Another claim comes between a look at the cursor and the claim that follows from it: the
// second look is what counts. Contention brings that about on an idle machine only.
func TestOvertakenClaim(t *testing.T) {
	c := &cursor{timeline: timeline{bits: 5, start: 4}}
	var between int64
	defer SetRandom(func(int64) int64 { // asked for in a new tick, after the look
		if between == 0 {
			between, _ = c.take(3, 3, 0, MaxMark)
			c.next.Store(1<<5 + 2) // and others are in the new tick by now
		}
		return 0
	})()
	c.next.Store(7)
	lo, n := c.take(2, 2, 1, MaxMark)
	if between != 7 || lo != 1<<5+2 || n != 2 {
		t.Errorf("after one that got 7 to 9, and others up to %d, a claim got %d from %d", 1<<5+1, n, lo)
	}
	if next := c.next.Load(); next != 1<<5+4 {
		t.Errorf("the cursor is at %d, want %d", next, 1<<5+4)
	}
}

// Both populators answer every sequence of calls alike.
func TestPopulatorsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := timeline{
			bits:  uint8(rapid.IntRange(0, 22).Draw(t, "bits")),
			start: rapid.SampledFrom([]int64{SequenceZero, SequenceContinue}).Draw(t, "start"),
		}
		first := rapid.Int64Range(0, 1<<30).Draw(t, "first")
		a, m := populators["atomic"](line, first), populators["mutex"](line, first)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				least := rapid.Int64Range(0, 5).Draw(t, "least")
				most := least + rapid.Int64Range(0, 1<<12).Draw(t, "more")
				tick := rapid.Int64Range(0, 1<<20).Draw(t, "tick")
				limit := rapid.Int64Range(0, 1<<42).Draw(t, "limit")
				alo, an := a.take(least, most, tick, limit)
				mlo, mn := m.take(least, most, tick, limit)
				if alo != mlo || an != mn {
					t.Fatalf("atomic took %d from %d, mutex %d from %d", an, alo, mn, mlo)
				}
			},
			"seal": func(t *rapid.T) {
				if rapid.IntRange(0, 20).Draw(t, "rarely") > 0 {
					return
				}
				if x, y := a.seal(), m.seal(); x != y {
					t.Fatalf("atomic sealed at %d, mutex at %d", x, y)
				}
			},
			"": func(t *rapid.T) {
				an, as := a.position()
				mn, ms := m.position()
				if an != mn || as != ms {
					t.Fatalf("atomic is at %d (%d skipped), mutex at %d (%d)", an, as, mn, ms)
				}
			},
		})
	})
}
