package codec

import (
	"strings"
)

// An alphabet gives each value below its size one character.
type alphabet struct {
	name   string // in a spec; a custom one is "=" and its characters
	chars  string
	values [256]int8 // of a character, -1 if it is none of the alphabet's
	fold   [256]byte // the character that is meant by another one, 0 if none is
}

// Sizes of custom alphabets.
const (
	minAlphabet = 2
	maxAlphabet = 64
)

const (
	digits     = "0123456789"
	upper      = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	crockford  = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	customMark = "="
)

// builtinAlphabets are in the order of ASCII, so that texts of one width sort as
// their numbers do.
var builtinAlphabets = []*alphabet{
	newAlphabet("10", digits),
	newAlphabet("16", "0123456789abcdef"),
	newAlphabet("crockford32", crockford),
	newAlphabet("crockford32-lower", strings.ToLower(crockford)),
	newAlphabet("36", digits+upper),
	newAlphabet("58", "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"),
	newAlphabet("62", digits+upper+strings.ToLower(upper)),
}

var (
	decimal    = builtinAlphabets[0]
	hexLower   = builtinAlphabets[1]
	lowerBase  = builtinAlphabets[3] // of TypeIDs
	alphabetIn = "10, 16, crockford32, crockford32-lower, 36, 58, 62, or = and 2 to 64 distinct printable ASCII characters other than blank, colon and braces"
)

// newAlphabet makes an alphabet of distinct characters.
func newAlphabet(name, chars string) *alphabet {
	a := &alphabet{name: name, chars: chars}
	for i := range a.values {
		a.values[i] = -1
	}
	for i := range len(chars) {
		a.values[chars[i]] = int8(i)
	}
	a.setFold()
	return a
}

// parseAlphabet returns the alphabet that an item of a spec names.
func parseAlphabet(item string) (*alphabet, bool) {
	for _, a := range builtinAlphabets {
		// Spelt out or by its name, an alphabet has one canonical spec, and the spec is frozen with the tag.
		if item == a.name || item == customMark+a.chars {
			return a, true
		}
	}
	chars, custom := strings.CutPrefix(item, customMark)
	if !custom || len(chars) < minAlphabet || len(chars) > maxAlphabet {
		return nil, false
	}
	for i := range len(chars) {
		c := chars[i]
		if c <= ' ' || c > '~' || strings.IndexByte(":{}", c) >= 0 || strings.IndexByte(chars[:i], c) >= 0 {
			return nil, false
		}
	}
	return newAlphabet(item, chars), true
}

func (a *alphabet) size() int { return len(a.chars) }

func (a *alphabet) has(c byte) bool { return a.values[c] >= 0 }

// setFold notes which characters stand for which. Case is forgiven where no two
// characters of the alphabet differ by case alone, and likeness to a digit where
// the digit is in the alphabet and none of the letters like it is.
func (a *alphabet) setFold() {
	folds := true
	for i := range len(a.chars) {
		c := a.chars[i]
		a.fold[c] = c
		folds = folds && !(isLetter(c) && a.has(c^caseBit))
	}
	if !folds {
		return
	}
	for i := range len(a.chars) {
		if c := a.chars[i]; isLetter(c) {
			a.fold[c^caseBit] = c
		}
	}
	for _, like := range []string{"0Oo", "1IiLl"} {
		digit, letters := like[0], like[1:]
		if !a.has(digit) || strings.ContainsAny(a.chars, letters) {
			continue
		}
		for i := range len(letters) {
			a.fold[letters[i]] = digit
		}
	}
}

// caseBit is the bit in which the cases of an ASCII letter differ.
const caseBit = 'a' - 'A'

func isLetter(c byte) bool {
	c |= caseBit
	return 'a' <= c && c <= 'z'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
