package codec

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A typo is a kind of mistake in a word of values.
type typo struct {
	name string
	// make calls try with every wrong form of the word, which it may change and
	// has to restore.
	make func(word []uint8, size int, try func([]uint8))
}

var typos = []typo{
	{"one character", func(word []uint8, size int, try func([]uint8)) {
		for i, was := range word {
			for v := range uint8(size) {
				if v != was {
					word[i] = v
					try(word)
				}
			}
			word[i] = was
		}
	}},
	{"two neighbours swapped", func(word []uint8, _ int, try func([]uint8)) {
		for i := range len(word) - 1 {
			trySwap(word, i, i+1, try)
		}
	}},
	{"any two swapped", func(word []uint8, _ int, try func([]uint8)) {
		for i := range word {
			for j := i + 1; j < len(word); j++ {
				trySwap(word, i, j, try)
			}
		}
	}},
	{"twins (aa to bb)", func(word []uint8, size int, try func([]uint8)) {
		for i := range len(word) - 1 {
			was := word[i]
			if word[i+1] != was {
				continue
			}
			for v := range uint8(size) {
				if v != was {
					word[i], word[i+1] = v, v
					try(word)
				}
			}
			word[i], word[i+1] = was, was
		}
	}},
}

func trySwap(word []uint8, i, j int, try func([]uint8)) {
	if word[i] != word[j] {
		word[i], word[j] = word[j], word[i]
		try(word)
		word[i], word[j] = word[j], word[i]
	}
}

// complete appends the check's values to a word.
func complete(c *check, word []uint8, size int) []uint8 {
	sum := c.sum(word, size)
	if c.chars == 2 {
		return append(word, uint8(sum/size), uint8(sum%size))
	}
	return append(word, uint8(sum))
}

func fits(c *check, word []uint8, size int) bool {
	n := len(word) - c.chars
	return slices.Equal(complete(c, slices.Clone(word[:n]), size), word)
}

// missed counts the mistakes in all words of a length that a check does not
// notice.
func missed(c *check, length, size int, kind typo) (missed, all int) {
	word := make([]uint8, length, length+c.chars)
	for {
		whole := complete(c, word, size)
		kind.make(whole, size, func(wrong []uint8) {
			all++
			if fits(c, wrong, size) {
				missed++
			}
		})
		i := 0
		for ; i < length; i++ { // the next word
			if word[i]++; int(word[i]) < size {
				break
			}
			word[i] = 0
		}
		if i == length {
			return missed, all
		}
	}
}

// TestChecks tries every mistake in every word of a length, its check characters
// included. The table in docs/codes.md has those that some check misses.
func TestChecks(t *testing.T) {
	for _, tt := range []struct {
		name         string
		size, length int
		missed       [4]int // by typos
	}{
		{"damm", 10, 4, [4]int{0, 0, 5564, 3520}},
		{"luhn", 10, 4, [4]int{0, 800, 37200, 2400}},
		{"mod97", 10, 4, [4]int{}},
		{"iso7064", 10, 4, [4]int{0, 800, 5654, 2400}},
		{"iso7064", 16, 3, [4]int{0, 96, 604, 480}},
		{"iso7064", 36, 2, [4]int{0, 4, 18, 48}},
		{"iso7064", 58, 2, [4]int{0, 4, 24, 76}},
		{"iso7064", 62, 2, [4]int{0, 4, 86, 84}},
		{"gf", 16, 3, [4]int{}},
		{"gf", 32, 2, [4]int{}},
		{"gf", 64, 2, [4]int{}},
	} {
		c, ok := findCheck(tt.name, tt.size)
		if !ok {
			t.Fatalf("%s does not fit %d", tt.name, tt.size)
		}
		for i, kind := range typos {
			got, all := missed(c, tt.length, tt.size, kind)
			t.Logf("%s over %d, %s: %d of %d missed", tt.name, tt.size, kind.name, got, all)
			if got != tt.missed[i] {
				t.Errorf("%s over %d, %s: %d of %d missed, want %d", tt.name, tt.size, kind.name, got, all, tt.missed[i])
			}
		}
	}
}

// TestFieldCheckFarApart takes words of the full length: every change of one
// character, and every swap of two unequal ones, over all positions and pairs
// of values. The sum is linear, so the other characters do not matter; they are
// random.
func TestFieldCheckFarApart(t *testing.T) {
	for _, size := range []int{16, 32, 64} {
		c, _ := findCheck("gf", size)
		random := rand.New(rand.NewPCG(1, uint64(size)))
		most := c.most(size)
		try := func(i, j int, a, b uint8) {
			word := make([]uint8, most)
			for k := range word {
				word[k] = uint8(random.IntN(size))
			}
			if word[i] = a; j < most {
				word[j] = b
			}
			word = complete(c, word, size)
			if word[i] != word[j] {
				word[i], word[j] = word[j], word[i]
				if fits(c, word, size) {
					t.Fatalf("over %d: the swap of %d and %d is missed", size, i, j)
				}
				word[i], word[j] = word[j], word[i]
			}
			if word[i] ^= max(b, 1); fits(c, word, size) {
				t.Fatalf("over %d: the change of %d is missed", size, i)
			}
		}
		for i := range most + 1 {
			for j := i + 1; j <= most; j++ {
				for a := range size {
					for b := range size {
						if size <= 32 || (a+b)%31 == 0 { // not all of the large one
							try(i, j, uint8(a), uint8(b))
						}
					}
				}
			}
		}
		// One more character would have the weight of another one again.
		word := complete(c, make([]uint8, most+1), size)
		word[0] = 1
		word[len(word)-1] = uint8(weighted(word[:len(word)-1], size))
		word[0], word[len(word)-1] = word[len(word)-1], word[0]
		if !fits(c, word, size) {
			t.Errorf("over %d: the weights of %d characters are still distinct", size, most+2)
		}
	}
}

// TestChecksInCodes makes every mistake of one character, and every swap of two
// neighbours, in whole codes with literal text, groups and periods.
func TestChecksInCodes(t *testing.T) {
	all := digits + upper + "abcdefghijklmnopqrstuvwxyz-/. "
	for _, spec := range []string{
		"INV-{yyyy}{MM}{dd}-{seq:6}{check}",
		"{yy}/{Q} {seq:4:crockford32:feistel:group=2}{check}",
		"{id:8:crockford32:feistel:group=4}{check}",
		"{id:9:multiply}{check:mod97}",
		"{id:6}{check:luhn}",
		"{id:6:58}{check}",
		"{id:6:62}{check}",
		"{id:6:36}{check}",
		"{id:6:16}{check}",
	} {
		c := mustParse(t, spec)
		p, err := c.Period(epoch)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []int{0, 1, 428, 909_090, 123_456} {
			id = min(id, int(c.Max()))
			text := []byte(mustAppend(t, c, p, toID(id)))
			refused := func(what string) {
				if _, got, err := c.DecodePeriod(string(text)); err == nil {
					t.Errorf("%s of %d: %s: %q passes as %d", spec, id, what, text, got)
				}
			}
			for i, was := range text {
				for j := range len(all) {
					if text[i] = all[j]; text[i] != was {
						refused("one character")
					}
				}
				text[i] = was
			}
			if c.check.name == checkLuhn || c.check.name == checkISO {
				continue // they miss some swaps
			}
			for i := range len(text) - 1 {
				if text[i] != text[i+1] {
					text[i], text[i+1] = text[i+1], text[i]
					refused(fmt.Sprintf("swapped at %d", i))
					text[i], text[i+1] = text[i+1], text[i]
				}
			}
		}
	}
}

func TestFindCheck(t *testing.T) {
	for size := minAlphabet; size <= maxAlphabet; size++ {
		c, ok := findCheck("", size)
		if ok != (size%2 == 0) {
			t.Errorf("over %d: a default is %v", size, ok)
			continue
		}
		if !ok {
			continue
		}
		// A check's characters are always of the alphabet.
		for seed := range 100 {
			random := rand.New(rand.NewPCG(2, uint64(seed)))
			word := make([]uint8, 1+seed%20)
			for i := range word {
				word[i] = uint8(random.IntN(size))
			}
			if sum := c.sum(word, size); sum < 0 || sum >= size {
				t.Fatalf("%s over %d: %v has the sum %d", c.name, size, word, sum)
			}
		}
	}
}
