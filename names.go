package hapax

import "unicode"

// hidden are the characters that no name has, because people see nothing of them, or
// see what stands around them in another order: control and format characters, among
// them those of bidirectional text and those without width; separators of lines;
// variation selectors and others that may be ignored; and what Unicode will never
// assign. A name that looks like another is another line of numbers.
var hidden = []*unicode.RangeTable{
	unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp,
	unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point, unicode.Noncharacter_Code_Point,
}

// isHidden reports whether a character must not be in a name.
func isHidden(r rune) bool {
	if ' ' <= r && r <= '~' {
		return false
	}
	return unicode.In(r, hidden...)
}
