package codec

import "math/bits"

// A check computes the characters that make a mistyped code fall out. It reads
// the values of all digits before it, those of the period included.
type check struct {
	name  string
	chars int // how many it appends
	// fits reports whether it works over an alphabet of that size.
	fits func(size int) bool
	// most is the number of values that its promises hold for; 0 is any number.
	most func(size int) int
}

var checks = []check{
	{checkDamm, 1, isDecimal, nil},
	{checkField, 1, isField, fieldCovers},
	{checkISO, 1, isEven, nil},
	{checkLuhn, 1, isDecimal, nil},
	{check97, 2, isDecimal, nil},
}

// Names of checks.
const (
	checkDamm  = "damm"
	checkField = "gf"
	checkISO   = "iso7064"
	checkLuhn  = "luhn"
	check97    = "mod97"
)

const checkIn = "damm, luhn or mod97 over alphabet 10; iso7064 over one of an even size; gf over one of 16, 32 or 64 characters"

// fieldCovers returns how many digits gf covers.
func fieldCovers(size int) int { return size - 2 }

func isDecimal(size int) bool { return size == 10 }
func isEven(size int) bool    { return size%2 == 0 }
func isField(size int) bool   { return reduce[size] != 0 }

// findCheck returns the check of that name, or the default over the alphabet if
// the name is empty. Defaults never change: codes in use depend on them.
func findCheck(name string, size int) (*check, bool) {
	if name == "" {
		name = defaultCheck(size)
	}
	for i := range checks {
		if c := &checks[i]; c.name == name && c.fits(size) {
			return c, true
		}
	}
	return nil, false
}

func defaultCheck(size int) string {
	switch {
	case size == 10:
		return checkDamm
	case size == 32 || size == 64:
		return checkField
	case isEven(size):
		return checkISO
	}
	return ""
}

// sum returns the check's value, below size^chars. It is a switch, because what
// a function variable gets is moved to the heap.
func (c *check) sum(values []uint8, size int) int {
	switch c.name {
	case checkDamm:
		return damm(values)
	case checkField:
		return weighted(values, size)
	case checkISO:
		return iso7064(values, size)
	case checkLuhn:
		return luhn(values)
	default:
		return mod97(values)
	}
}

// dammTable is the quasigroup of order 10 of H. M. Damm's thesis (2004). Its
// diagonal is zero, so that the check of a code with its check digit is zero.
var dammTable = [10][10]uint8{
	{0, 3, 1, 7, 5, 9, 8, 6, 4, 2},
	{7, 0, 9, 2, 1, 5, 4, 8, 6, 3},
	{4, 2, 0, 6, 8, 7, 1, 3, 5, 9},
	{1, 7, 5, 0, 9, 8, 3, 4, 2, 6},
	{6, 1, 2, 3, 0, 4, 5, 9, 7, 8},
	{3, 6, 7, 4, 2, 0, 9, 5, 8, 1},
	{5, 8, 6, 9, 7, 2, 0, 1, 3, 4},
	{8, 9, 4, 5, 3, 6, 2, 0, 1, 7},
	{9, 4, 3, 8, 6, 1, 7, 2, 0, 5},
	{2, 5, 8, 1, 4, 3, 6, 7, 9, 0},
}

func damm(values []uint8) int {
	var s uint8
	for _, v := range values {
		s = dammTable[s][v]
	}
	return int(s)
}

// luhn doubles every second digit, from the last one on.
func luhn(values []uint8) int {
	s := 0
	for i, v := range values {
		d := int(v)
		if (len(values)-i)%2 == 1 {
			d *= 2
			d = d/10 + d%10
		}
		s += d
	}
	return (10 - s%10) % 10
}

// mod97 is the pure system MOD 97-10 of ISO 7064: the code with its two check
// digits is 1 modulo 97.
func mod97(values []uint8) int {
	s := 0
	for _, v := range values {
		s = (s*10 + int(v)) % 97
	}
	return 98 - s*100%97
}

// iso7064 is the hybrid system MOD M+1,M of ISO 7064. The standard has M = 10,
// 26 and 36; doubling modulo M+1 can be undone for every even M.
func iso7064(values []uint8, m int) int {
	p := m
	for _, v := range values {
		if p = (p + int(v)) % m; p == 0 {
			p = m
		}
		p = 2 * p % (m + 1)
	}
	return (m + 1 - p) % m
}

// reduce holds, by size, the polynomial of a field of characteristic two in
// which x generates all elements but zero.
var reduce = [maxAlphabet + 1]int{16: 0b1_0011, 32: 0b10_0101, 64: 0b100_0011}

// weighted is the sum of the values in GF(size), each times its own power of x.
// The check has the power 0, the value before it 1, and so on. Up to size-1
// characters have distinct weights, so no change of one and no swap of two
// leaves the sum as it was.
func weighted(values []uint8, size int) int {
	poly, top := reduce[size], bits.Len(uint(size))-1
	s := 0
	for _, v := range values {
		s = (s ^ int(v)) << 1
		s ^= poly & -(s >> top)
	}
	return s
}
