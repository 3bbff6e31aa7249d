package signals

import "strings"

// Word returns a text as one word of a shell, for a command that an operator copies: the
// names of tags are whatever their makers chose.
func Word(text string) string {
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if text != "" && strings.TrimFunc(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
