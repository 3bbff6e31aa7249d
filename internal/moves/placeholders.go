package moves

import "strings"

// Limits on the texts of placeholders.
const (
	maxNested  = 16
	maxReplace = 10_000
	maxFilled  = 1 << 20 // bytes
)

// Placeholders put values in the place of ${NAME} and ${NAME:DEFAULT}.
type Placeholders struct {
	Values map[string]string
	Used   map[string]bool // the names of the values that were put somewhere
}

// Fill puts values in the place of their names. A placeholder without a value stays, also
// one with a default: that counts only if Java was started without another value, which no
// file tells.
func (p Placeholders) Fill(text string) string {
	done := 0
	return p.fill(text, maxNested, &done)
}

func (p Placeholders) fill(text string, depth int, done *int) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		name, after, closed := strings.Cut(rest, "}")
		// A value that holds itself, or grows with each one put in, ends at a bound and stays unfilled.
		if !found || !closed || depth == 0 || *done == maxReplace || b.Len() > maxFilled {
			return b.String() + text
		}
		*done++
		key, _, _ := strings.Cut(name, ":")
		value, ok := p.Values[key]
		if ok {
			p.Used[key] = true
			value = p.fill(value, depth-1, done)
		} else {
			value = "${" + name + "}"
		}
		b.WriteString(before + value)
		text = after
	}
}

// Unfilled returns the first placeholder in a text, without its default, which may be a
// password; empty if there is none.
func Unfilled(text string) string {
	_, rest, found := strings.Cut(text, "${")
	if !found {
		return ""
	}
	name, _, _ := strings.Cut(rest, "}")
	name, _, _ = strings.Cut(name, ":")
	return "${" + name + "}"
}
