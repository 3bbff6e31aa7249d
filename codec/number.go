package codec

import (
	"math/bits"

	"github.com/hapax-id/hapax"
)

// maxNumbers is how many numbers there are: those from 0 to 2^63-1.
const maxNumbers = 1 << 63

// A number is the part of a code that shows the number.
type number struct {
	alphabet *alphabet
	group    int // characters between hyphens, 0 without
	bands    []band
	keyID    string
	uuid     *uuidForm // nil unless the number is shown as a UUID
}

// A band holds the numbers whose texts have the same length: [lo, lo+n). The
// first begins at 0 and is filled up with zeros; each further one is a digit
// longer. A mixer permutes the numbers of a band.
type band struct {
	width int // digits
	lo, n uint64
	mixer mixer // nil if numbers are shown as they are
}

// newBands returns the bands of texts of a width, or of that width and more.
func newBands(size, width int, widen bool) []band {
	bands := []band{{width: width, n: power(size, width)}}
	for widen {
		last := &bands[len(bands)-1]
		lo := last.lo + last.n
		if lo >= maxNumbers {
			break
		}
		bands = append(bands, band{width: last.width + 1, lo: lo, n: power(size, last.width+1) - lo})
	}
	return bands
}

// power returns size to the power of exp, and 2^63 if that is less.
func power(size, exp int) uint64 {
	p := uint64(1)
	for range exp {
		hi, lo := bits.Mul64(p, uint64(size))
		if p = lo; hi != 0 || lo >= maxNumbers {
			return maxNumbers
		}
	}
	return p
}

// maxWidth returns how many digits the largest number has.
func maxWidth(size int) int {
	w := 1
	for power(size, w) < maxNumbers {
		w++
	}
	return w
}

// shown returns the number of the band that is shown for another one.
func (b *band) shown(id, tweak uint64) uint64 {
	if b.mixer == nil {
		return id
	}
	return b.lo + b.mixer.mix(id-b.lo, tweak)
}

// id is the inverse of shown.
func (b *band) id(shown, tweak uint64) uint64 {
	if b.mixer == nil {
		return shown
	}
	return b.lo + b.mixer.unmix(shown-b.lo, tweak)
}

func (n *number) bandOf(id hapax.ID) *band {
	if id < 0 {
		return nil
	}
	for i := range n.bands {
		if b := &n.bands[i]; uint64(id)-b.lo < b.n {
			return b
		}
	}
	return nil
}

func (n *number) bandOfLength(length int) *band {
	for i := range n.bands {
		if b := &n.bands[i]; n.length(b) == length {
			return b
		}
	}
	return nil
}

// length returns the length of the band's numbers as texts.
func (n *number) length(b *band) int {
	if n.uuid != nil {
		return n.uuid.length()
	}
	if n.group == 0 {
		return b.width
	}
	return b.width + (b.width-1)/n.group
}

// append appends a number as it is shown, and the values of its digits to seen.
func (n *number) append(dst []byte, seen []uint8, b *band, shown uint64) (text []byte, values []uint8) {
	if n.uuid != nil {
		return n.uuid.append(dst, shown), seen
	}
	var store [maxDigits]uint8
	digits := store[:b.width]
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = uint8(shown % uint64(n.alphabet.size()))
		shown /= uint64(n.alphabet.size())
	}
	for i, d := range digits {
		if n.group > 0 && i > 0 && i%n.group == 0 {
			dst = append(dst, separator)
		}
		dst = append(dst, n.alphabet.chars[d])
	}
	return dst, append(seen, digits...)
}

// separator stands between groups.
const separator = '-'

// read reads a number as it is shown; maxNumbers stands for all that are too
// large. The text is long enough.
func (n *number) read(text string, pos int, b *band, seen []uint8) (uint64, []uint8, error) {
	if n.uuid != nil {
		shown, err := n.uuid.read(text, pos)
		return shown, seen, err
	}
	size := uint64(n.alphabet.size())
	var shown uint64
	for i := range b.width {
		if n.group > 0 && i > 0 && i%n.group == 0 {
			if text[pos] != separator {
				return 0, nil, textError(text, pos, `"-" between groups`)
			}
			pos++
		}
		v := n.alphabet.values[text[pos]]
		if v < 0 {
			return 0, nil, textError(text, pos, "a character of "+n.alphabet.chars)
		}
		seen = append(seen, uint8(v))
		// Bounded, since an overflow could come out as a number that the code has.
		if shown > (maxNumbers-1-uint64(v))/size {
			shown = maxNumbers
		} else {
			shown = shown*size + uint64(v)
		}
		pos++
	}
	return shown, seen, nil
}
