package codec

import (
	"fmt"
	"strings"
)

// maxTextBytes bounds what Normalize reads.
const maxTextBytes = 1024

// A slot is one byte of a code.
type slot struct {
	literal  byte
	alphabet *alphabet // nil for a literal
}

// slots returns the form of the codes of a band.
func (c *Codec) slots(b *band) []slot {
	var form []slot
	of := func(a *alphabet, n int) {
		for range n {
			form = append(form, slot{alphabet: a})
		}
	}
	for _, part := range c.parts {
		switch {
		case part.period != nil:
			of(decimal, part.period.width)
		case part.check:
			of(c.number.alphabet, c.check.chars)
		case part.number:
			for _, example := range []byte(c.example(b)) {
				// A hyphen that is one of the alphabet's characters is a digit.
				if example == separator && !c.number.alphabet.has(separator) {
					form = append(form, slot{literal: separator})
				} else {
					of(c.number.alphabet, 1)
				}
			}
		default:
			for i := range len(part.text) {
				form = append(form, slot{literal: part.text[i]})
			}
		}
	}
	return form
}

// example returns some number of a band as it is shown.
func (c *Codec) example(b *band) string {
	text, _ := c.number.append(nil, nil, b, b.lo)
	return string(text)
}

// Normalize returns the text in the form that Decode accepts. It forgives what
// people do to codes as far as the alphabet leaves no doubt: blanks and hyphens
// that are missing or too many, unless hyphen is in the alphabet; upper and lower
// case, unless the alphabet has a letter in both; O for 0, and I or L for 1,
// unless the alphabet has one of these letters. Errors are a [TextError]. Decode
// has to check the result.
func (c *Codec) Normalize(text string) (string, error) {
	if len(text) > maxTextBytes {
		return "", textError(text, maxTextBytes, fmt.Sprintf("at most %d bytes", maxTextBytes))
	}
	skipped := " \t-"
	if c.number.alphabet.has(separator) {
		skipped = " \t"
	}
	skip := func(b byte) bool { return strings.IndexByte(skipped, b) >= 0 }
	var at []int // offsets of the characters that count
	for i := range len(text) {
		if !skip(text[i]) {
			at = append(at, i)
		}
	}
	// Longer bands have more slots that count, so one fits at most.
	var form []slot
	counts := make([]int, 0, len(c.number.bands))
	for i := range c.number.bands {
		form = c.slots(&c.number.bands[i])
		n := 0
		for _, s := range form {
			if s.alphabet != nil || !skip(s.literal) {
				n++
			}
		}
		counts = append(counts, n)
		if n >= len(at) {
			break
		}
	}
	if last := counts[len(counts)-1]; last != len(at) {
		pos := len(text)
		if last < len(at) {
			pos = at[last]
		}
		return "", textError(text, pos, fmt.Sprintf("another number of characters; blanks and hyphens aside, %d is none of a code's lengths", len(at)))
	}
	out := make([]byte, 0, len(form))
	next := 0
	for _, s := range form {
		if s.alphabet == nil && skip(s.literal) {
			out = append(out, s.literal)
			continue
		}
		char := text[at[next]]
		switch {
		case s.alphabet == nil:
			if !alike(char, s.literal) {
				return "", textError(text, at[next], fmt.Sprintf("%q", s.literal))
			}
			out = append(out, s.literal)
		case s.alphabet.fold[char] == 0:
			return "", textError(text, at[next], "a character of "+s.alphabet.chars)
		default:
			out = append(out, s.alphabet.fold[char])
		}
		next++
	}
	return string(out), nil
}

// alike reports whether one character may be meant by the other in a text that
// is the same in all codes.
func alike(a, b byte) bool {
	return a == b || isLetter(a) && a^caseBit == b || confused[a] != 0 && confused[a] == confused[b]
}

// confused gives characters that look alike the same number.
var confused = [256]byte{'0': 1, 'O': 1, 'o': 1, '1': 2, 'I': 2, 'i': 2, 'L': 2, 'l': 2}

// Disjoint reports whether no text can be a code of both. Where the numbers of
// one tag are shown by several codecs, as after a change of the key, only this
// keeps each text to one number.
func Disjoint(a, b *Codec) bool {
	for i := range a.number.bands {
		for j := range b.number.bands {
			if overlap(a.slots(&a.number.bands[i]), b.slots(&b.number.bands[j])) {
				return false
			}
		}
	}
	return true
}

// overlap reports whether some text has both forms.
func overlap(a, b []slot) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		if x.alphabet == nil {
			x, y = y, x
		}
		switch {
		case x.alphabet == nil && x.literal != y.literal,
			x.alphabet != nil && y.alphabet == nil && !x.alphabet.has(y.literal),
			x.alphabet != nil && y.alphabet != nil && !strings.ContainsAny(x.alphabet.chars, y.alphabet.chars):
			return false
		}
	}
	return true
}
