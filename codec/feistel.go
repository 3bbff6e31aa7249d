package codec

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"sync"
)

// A mixer is a bijection of [0, n) for its n. The tweak selects one of many
// where the mixer has a key; others ignore it.
type mixer interface {
	mix(x, tweak uint64) uint64
	unmix(y, tweak uint64) uint64
}

const (
	feistelRounds = 18
	// Small domains give an observer with many pairs a better chance.
	smallRounds = 24
	smallDomain = 1 << 20
)

// A feistel is the alternating Feistel network of Black and Rogaway (CT-RSA
// 2002) over Z_a × Z_b, with a·b only a little above n, and cycle-walking: what
// falls on n or above goes through again. Each round adds to one half a number
// that AES makes of the other half, the round and the tweak.
type feistel struct {
	n, a, b uint64
	rounds  int      // even
	table   []uint16 // of all rounds with the tweak 0, nil in a large domain
	block   cipher.Block
	scratch sync.Pool // of *blocks; what an interface's method gets is on the heap
}

// A blocks is AES's input and output, and the half of the input that is the tweak.
type blocks struct {
	in, out [aes.BlockSize]byte
	tweak   uint64
}

// newFeistel returns the bijection of [0, n), 2 <= n <= 2^63, for a key. The key
// of AES is the first half of HMAC-SHA-256 of the tag, the key's ID and n.
func newFeistel(key []byte, tag, keyID string, n uint64) *feistel {
	mac := hmac.New(sha256.New, key)
	mac.Write(deriveInput(tag, keyID, n))
	block, err := aes.NewCipher(mac.Sum(nil)[:16])
	if err != nil {
		panic(err) // the length is right
	}
	f := &feistel{n: n, rounds: feistelRounds, block: block}
	f.scratch.New = func() any { return new(blocks) }
	f.a = ceilSqrt(n)
	f.b = (n + f.a - 1) / f.a
	if n < smallDomain {
		f.rounds = smallRounds
		f.tabulate()
	}
	return f
}

// deriveInput is unambiguous: every part has a fixed length or its length before
// it.
func deriveInput(tag, keyID string, n uint64) []byte {
	in := []byte("hapax feistel 1")
	in = binary.BigEndian.AppendUint64(in, n)
	in = binary.BigEndian.AppendUint16(in, uint16(len(tag)))
	in = append(in, tag...)
	in = binary.BigEndian.AppendUint16(in, uint16(len(keyID)))
	return append(in, keyID...)
}

// ceilSqrt returns the least a with a·a >= n, for n <= 2^63.
func ceilSqrt(n uint64) uint64 {
	var a uint64
	for bit := uint64(1) << 31; bit > 0; bit >>= 1 {
		if c := a | bit; c*c < n {
			a = c
		}
	}
	return a + 1
}

func (f *feistel) mix(x, tweak uint64) uint64 {
	s := f.begin(tweak)
	// It ends: applied again and again, a bijection comes back to where it began, which lies below n.
	for {
		l, r := x/f.b, x%f.b
		for i := 0; i < f.rounds; i += 2 {
			l = addMod(l, f.round(s, i, r, f.a), f.a)
			r = addMod(r, f.round(s, i+1, l, f.b), f.b)
		}
		if x = l*f.b + r; x < f.n {
			break
		}
	}
	f.end(s)
	return x
}

func (f *feistel) unmix(y, tweak uint64) uint64 {
	s := f.begin(tweak)
	for {
		l, r := y/f.b, y%f.b
		for i := f.rounds - 2; i >= 0; i -= 2 {
			r = subMod(r, f.round(s, i+1, l, f.b), f.b)
			l = subMod(l, f.round(s, i, r, f.a), f.a)
		}
		if y = l*f.b + r; y < f.n {
			break
		}
	}
	f.end(s)
	return y
}

// begin returns what round needs for a tweak: nil if the table serves.
func (f *feistel) begin(tweak uint64) *blocks {
	if f.table != nil && tweak == 0 {
		return nil
	}
	s := f.scratch.Get().(*blocks)
	s.tweak = tweak
	return s
}

func (f *feistel) end(s *blocks) {
	if s != nil {
		f.scratch.Put(s)
	}
}

// round returns a number below m. The block of AES is the half in four bytes,
// the round in four and the tweak in eight; of the result, the first eight bytes
// are scaled to m.
func (f *feistel) round(s *blocks, i int, half, m uint64) uint64 {
	if s == nil {
		return uint64(f.table[uint64(i)*f.a+half])
	}
	return s.round(f.block, half|uint64(i)<<32, m)
}

// round computes a round without the table; in holds everything but the tweak.
func (s *blocks) round(block cipher.Block, in, m uint64) uint64 {
	putBlock(&s.in, in, s.tweak)
	block.Encrypt(s.out[:], s.in[:])
	hi, _ := bits.Mul64(binary.LittleEndian.Uint64(s.out[:8]), m)
	return hi
}

// tabulate computes every round for the tweak 0. A small domain has more rounds
// and few halves: up to 24·1024 entries of two bytes.
func (f *feistel) tabulate() {
	table := make([]uint16, uint64(f.rounds)*f.a)
	s := f.begin(0)
	for i := range f.rounds {
		halves, m := f.b, f.a // of an even round
		if i%2 == 1 {
			halves, m = m, halves
		}
		for half := range halves {
			table[uint64(i)*f.a+half] = uint16(f.round(s, i, half, m))
		}
	}
	f.end(s)
	f.table = table
}

// addMod returns x+y modulo m, for x and y below m and m below 2^63. It has no
// branch, which would be mispredicted every other time.
func addMod(x, y, m uint64) uint64 {
	sum, d := x+y, x-m+y
	if int64(d) < 0 {
		d = sum
	}
	return d
}

func subMod(x, y, m uint64) uint64 {
	sum, d := x+m-y, x-y
	if int64(d) < 0 {
		d = sum
	}
	return d
}

// reversal reverses the bits of numbers below 2^k. It is its own inverse.
type reversal struct{ k int }

func (r reversal) mix(x, _ uint64) uint64   { return bits.Reverse64(x) >> (64 - r.k) }
func (r reversal) unmix(y, _ uint64) uint64 { return r.mix(y, 0) }

// A multiplication multiplies modulo n by an odd number that has no factor in
// common with n.
type multiplication struct{ n, by, inverse uint64 }

// golden is 2^64 divided by the golden ratio: multiples of it spread evenly.
const golden = 0x9E3779B97F4A7C15

// newMultiplication takes the first suitable number from n over the golden ratio
// on.
func newMultiplication(n uint64) multiplication {
	by, _ := bits.Mul64(n, golden)
	for by |= 1; gcd(by, n) != 1; {
		by += 2
	}
	return multiplication{n: n, by: by, inverse: inverse(by, n)}
}

func (m multiplication) mix(x, _ uint64) uint64   { return mulMod(x, m.by, m.n) }
func (m multiplication) unmix(y, _ uint64) uint64 { return mulMod(y, m.inverse, m.n) }

func mulMod(x, y, n uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	_, r := bits.Div64(hi, lo, n) // hi < n, because x and y are
	return r
}

func gcd(x, y uint64) uint64 {
	for y != 0 {
		x, y = y, x%y
	}
	return x
}

// inverse returns the y with x·y = 1 modulo n, for n <= 2^63 and x without a
// common factor. All coefficients stay below n.
func inverse(x, n uint64) uint64 {
	if n == 1<<63 { // the one that int64 lacks
		return inversePow2(x) & (n - 1)
	}
	r0, r1 := int64(n), int64(x%n)
	var t0, t1 int64 = 0, 1
	for r1 != 0 {
		q := r0 / r1
		r0, r1 = r1, r0-q*r1
		t0, t1 = t1, t0-q*t1
	}
	if t0 < 0 {
		t0 += int64(n)
	}
	return uint64(t0)
}

// inversePow2 returns the inverse of an odd x modulo 2^64 by Newton's steps,
// each of which doubles the bits that are right, from three on.
func inversePow2(x uint64) uint64 {
	y := x
	for range 5 {
		y *= 2 - x*y
	}
	return y
}
