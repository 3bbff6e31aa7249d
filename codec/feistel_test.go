package codec

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A processor of another kind writes the same bytes.
func TestPutBlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo, hi := rapid.Uint64().Draw(t, "lo"), rapid.Uint64().Draw(t, "hi")
		var got, want [16]byte
		putBlock(&got, lo, hi)
		if putBlockPortable(&want, lo, hi); got != want {
			t.Fatalf("%x, %x: %x here, and %x elsewhere", lo, hi, got, want)
		}
	})
}

// TestBijection takes every number of every small domain through every mixer. A
// mixer that stays in the domain and can be undone is a bijection of it.
func TestBijection(t *testing.T) {
	most, tweaked := uint64(4096), uint64(64)
	if testing.Short() {
		most = 1024
	}
	for n := uint64(2); n <= most; n++ {
		f := newFeistel(keys["k1"], "orders", "k1", n)
		mixers := map[string]mixer{"feistel": f, "multiply": newMultiplication(n)}
		if n&(n-1) == 0 {
			mixers["reverse"] = reversal{bits.Len64(n) - 1}
		}
		for name, m := range mixers {
			for x := range n {
				y := m.mix(x, 0)
				if y >= n || m.unmix(y, 0) != x {
					t.Fatalf("%s of [0,%d): %d becomes %d, which comes from %d", name, n, x, y, m.unmix(y, 0))
				}
			}
		}
		// With a tweak no table is used; it is slower, so not for all.
		if n > tweaked && n%61 != 0 {
			continue
		}
		for x := range n {
			y := f.mix(x, 20261121)
			if y >= n || f.unmix(y, 20261121) != x {
				t.Fatalf("with a tweak, [0,%d): %d becomes %d", n, x, y)
			}
		}
	}
}

func TestBijectionOfLargeDomains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(4097, maxNumbers).Draw(t, "n")
		if rapid.Bool().Draw(t, "small") {
			n = n%(2*smallDomain) + 2
		}
		x := rapid.Uint64Range(0, n-1).Draw(t, "x")
		tweak := rapid.SampledFrom([]uint64{0, 2026, 2026112113}).Draw(t, "tweak")
		f := newFeistel(keys["k1"], "orders", "k1", n)
		for name, m := range map[string]mixer{"feistel": f, "multiply": newMultiplication(n)} {
			if y := m.mix(x, tweak); y >= n || m.unmix(y, tweak) != x || m.mix(m.unmix(x, tweak), tweak) != x {
				t.Fatalf("%s of [0,%d): %d becomes %d", name, n, x, y)
			}
		}
	})
}

// TestTable compares a small domain's table with AES.
func TestTable(t *testing.T) {
	for _, n := range []uint64{2, 3, 1000, 99_999, smallDomain - 1} {
		f := newFeistel(keys["k1"], "orders", "k1", n)
		bare := &feistel{n: f.n, a: f.a, b: f.b, rounds: f.rounds, block: f.block}
		bare.scratch.New = f.scratch.New
		for x := range min(n, 1000) {
			if a, b := f.mix(x, 0), bare.mix(x, 0); a != b {
				t.Fatalf("[0,%d): %d becomes %d, without the table %d", n, x, a, b)
			}
		}
	}
}

func TestRoundsAndHalves(t *testing.T) {
	for _, tt := range []struct {
		n, a, b uint64
		rounds  int
	}{
		{2, 2, 1, 24},
		{3, 2, 2, 24},
		{1_000_000, 1000, 1000, 24},
		{smallDomain - 1, 1024, 1024, 24},
		{smallDomain, 1024, 1024, 18},
		{1e10, 1e5, 1e5, 18},
		{maxNumbers, 3037000500, 3037000500, 18},
	} {
		f := newFeistel(keys["k1"], "orders", "k1", tt.n)
		if f.a != tt.a || f.b != tt.b || f.rounds != tt.rounds {
			t.Errorf("%d: %d·%d in %d rounds, want %d·%d in %d", tt.n, f.a, f.b, f.rounds, tt.a, tt.b, tt.rounds)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(2, maxNumbers).Draw(t, "n")
		a := ceilSqrt(n)
		hi, lo := bits.Mul64(a, a)
		if hi != 0 || lo < n || (a-1)*(a-1) >= n {
			t.Fatalf("the root of %d is not %d", n, a)
		}
	})
}

// TestTweak shows that everything that should matter does: each change makes
// another bijection.
func TestTweak(t *testing.T) {
	const n = 1 << 40
	base := newFeistel(keys["k1"], "orders", "k1", n)
	for name, other := range map[string]uint64{
		"the key":         newFeistel(keys["k2"], "orders", "k1", n).mix(1, 0),
		"the tag":         newFeistel(keys["k1"], "order", "sk1", n).mix(1, 0),
		"the key's ID":    newFeistel(keys["k1"], "orders", "k2", n).mix(1, 0),
		"the domain":      newFeistel(keys["k1"], "orders", "k1", n-1).mix(1, 0),
		"the period":      base.mix(1, 20261121),
		"the next period": base.mix(1, 20261122),
	} {
		if other == base.mix(1, 0) {
			t.Errorf("%s makes no difference", name)
		}
	}
}

func TestReverse(t *testing.T) {
	for _, tt := range []struct{ k, x, want uint64 }{
		{1, 1, 1}, {3, 1, 4}, {8, 0b1011, 0b11010000}, {63, 1, 1 << 62},
	} {
		if got := (reversal{int(tt.k)}).mix(tt.x, 0); got != tt.want {
			t.Errorf("%d bits: %b becomes %b, want %b", tt.k, tt.x, got, tt.want)
		}
	}
}

// TestSpread counts how alike the codes of neighbours are: of 8 characters out
// of 32, chance has two equal at a position once in 32 times.
func TestSpread(t *testing.T) {
	count := 1_000_000
	if testing.Short() {
		count = 50_000
	}
	c, err := Parse("{id:8:crockford32:feistel}", Options{Tag: "coupons", Keys: keys, Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	places := make([]uint64, 0, count) // of the codes among all
	var alike [9]int                   // pairs of neighbours by equal positions
	var chars [8][32]int               // characters by position
	last := ""
	for id := range count {
		text := mustAppend(t, c, Period{}, toID(id))
		place, equal := uint64(0), 0
		for i := range len(text) {
			v := c.number.alphabet.values[text[i]]
			chars[i][v]++
			place = place<<5 | uint64(v)
			if last != "" && text[i] == last[i] {
				equal++
			}
		}
		if last != "" {
			alike[equal]++
		}
		last = text
		places = append(places, place)
	}
	slices.Sort(places)
	if n := len(slices.Compact(places)); n != count {
		t.Errorf("%d codes of %d numbers", n, count)
	}
	// The codes follow from the key, so these bounds hold for ever or never. The
	// square sum of 31 degrees of freedom exceeds 75 once in 50,000 times, and
	// that of 4 exceeds 27 as rarely.
	for i, counts := range chars {
		if chi := chiSquare(counts[:], uniform(32, float64(count)/32)); chi > 75 {
			t.Errorf("position %d: the characters' square sum is %.1f", i, chi)
		}
	}
	var want []float64 // binomial
	p := float64(count - 1)
	for range 8 {
		p *= 31. / 32
	}
	for k := range 4 {
		want = append(want, p)
		p *= float64(8-k) / float64(k+1) / 31
	}
	if chi := chiSquare(alike[:4], want); chi > 27 {
		t.Errorf("%v neighbours are alike in 0 to 8 positions, want about %.0f; the square sum is %.1f", alike, want, chi)
	}
	for k, n := range alike[5:] {
		if n > 5 { // chance has 0.0002 to 2 of them
			t.Errorf("%d neighbours are alike in %d positions", n, k+5)
		}
	}
}

func uniform(n int, each float64) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = each
	}
	return all
}

func chiSquare(got []int, want []float64) float64 {
	sum := 0.
	for i, g := range got {
		d := float64(g) - want[i]
		sum += d * d / want[i]
	}
	return sum
}
