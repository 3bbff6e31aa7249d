package sequences

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A source's name is what somebody put into the database, and a plan is run by a shell:
// nothing here may let a name end the text that it stands in.

// ForStore names the function of a script that puts the ID of the hapax store where steps leave
// room for it, and ForStoreHelp defines it. The script's arguments say which store that is.
const (
	ForStore     = "hapax_for_store"
	ForStoreHelp = ForStore + `() { LC_ALL=C sed "s/` + storeLater + `/$hapax_store/g; s/$hapax_later/$hapax_digits/g"; }
hapax_hex() { printf %s "$1" | od -An -v -tx1 | tr -d ' \n'; }
hapax_store=$(hapax store id "$@")
case $hapax_store in '' | *[!A-Za-z0-9_-]*) echo "the ID of the store is '$hapax_store': want letters and digits" >&2; exit 1 ;; esac
hapax_later=$(hapax_hex ` + storeLater + `) hapax_digits=$(hapax_hex "$hapax_store")
`

	storeLater = "hapax-store-later"
)

// hereDocument returns a text as a shell's here-document that expands nothing.
func hereDocument(text string) (opening, rest string) {
	end := without(strings.Split(text, "\n"), "HAPAX")
	return "<<'" + end + "'", text + "\n" + end + "\n"
}

// without returns the word, with a number behind it if it is one of the lines.
func without(lines []string, word string) string {
	end := word
	for n := 1; slices.Contains(lines, end); n++ {
		end = fmt.Sprint(word, n)
	}
	return end
}

// dollarQuoted returns a text as a literal of PostgreSQL between $word$ and $word$.
func dollarQuoted(word, text string) string {
	quote := "$" + word + "$"
	for n := 1; strings.Contains(text, quote); n++ {
		quote = fmt.Sprintf("$%s%d$", word, n)
	}
	return quote + text + quote
}

// formatted returns a name as it stands in the first argument of PostgreSQL's format.
func formatted(quoted string) string {
	return strings.NewReplacer("'", "''", "%", "%%").Replace(quoted)
}

// jsText returns a text as a literal of JavaScript.
func jsText(s string) string {
	text, _ := json.Marshal(s) // a string always has a form
	return string(text)
}

// redisText returns a text as a word of redis-cli, which knows escapes of bytes alone.
func redisText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteString("\\" + string(c))
		case c == '\n':
			b.WriteString(`\n`)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}
