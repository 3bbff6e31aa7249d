package witness

import (
	"encoding/json"
	"strconv"
	"strings"
)

// A witness may know a million lines. Where they are many, a snapshot is followed by changes
// that hold lines and nothing else, so many each:
//
//	{"lines":{"tag/orders":{"t":1,"m":2000},"tag/users":{"m":1},...}}
//
// These are written and read here: encoding/json takes several times as long, and a server
// starts only when its witness is read. Any other text is left to it.
const (
	bulkLines = 5000
	bulkBegin = `{"lines":{`
	bulkEnd   = `}}`
)

// A namedPair is a line with its pair.
type namedPair struct {
	name string
	Pair
}

// encodeAll returns the record as a snapshot with the changes that follow it.
func (r record) encodeAll() []byte {
	if len(r.Lines) <= bulkLines {
		return r.encode(kindSnapshot)
	}
	head := r
	head.Lines = nil
	return r.appendBulk(head.encode(kindSnapshot))
}

// appendBulk appends changes that hold all lines of the record, and nothing else.
func (r record) appendBulk(b []byte) []byte {
	part, n := []byte(bulkBegin), 0
	for name, p := range r.Lines {
		part = appendLine(part, name, p)
		if n++; n%bulkLines == 0 || n == len(r.Lines) {
			b = appendRecord(b, kindChange, append(part, bulkEnd...))
			part = part[:len(bulkBegin)]
		} else {
			part = append(part, ',')
		}
	}
	return b
}

// isBulk reports whether a change holds many lines and nothing else.
func (r record) isBulk() bool {
	return len(r.Lines) == bulkLines && len(r.Own)+len(r.Peers)+len(r.Defs)+len(r.Refused)+len(r.Former)+len(r.Copies) == 0 &&
		r.Store == "" && r.Joins == 0 && r.Compacted == 0 && r.Home == nil && r.Decision == nil && r.Latch == nil && r.Left == nil
}

// appendLine appends one line of a change.
func appendLine(b []byte, name string, p Pair) []byte {
	if isPlain(name) {
		b = append(append(append(b, '"'), name...), '"')
	} else {
		text, err := json.Marshal(name)
		if err != nil {
			panic(err) // a string
		}
		b = append(b, text...)
	}
	b = append(b, `:{`...)
	if p.Token != 0 {
		b = strconv.AppendInt(append(b, `"t":`...), p.Token, 10)
	}
	if p.Token != 0 && p.Mark != 0 {
		b = append(b, ',')
	}
	if p.Mark != 0 {
		b = strconv.AppendInt(append(b, `"m":`...), p.Mark, 10)
	}
	return append(b, '}')
}

// isPlain reports whether JSON has a name as it is.
func isPlain(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// readBulk returns the lines of a change that holds nothing else, and reports whether the text
// is one that is written as above.
func readBulk(text string) (lines []namedPair, ok bool) {
	r := bulkReader{text, true}
	r.skip(bulkBegin)
	for r.ok {
		var line namedPair
		line.name = r.name()
		r.skip(`:{`)
		hasToken := r.has(`"t":`)
		if hasToken {
			line.Token = r.number()
		}
		if hasToken && r.has(`,"m":`) || !hasToken && r.has(`"m":`) {
			line.Mark = r.number()
		}
		r.skip(`}`)
		lines = append(lines, line)
		if !r.has(`,`) {
			break
		}
	}
	r.skip(bulkEnd)
	return lines, r.ok && r.rest == ""
}

// A bulkReader reads a text from its beginning, until something else stands there than should.
type bulkReader struct {
	rest string
	ok   bool
}

// has skips a text that may come next, and reports whether it did.
func (r *bulkReader) has(text string) bool {
	rest, found := strings.CutPrefix(r.rest, text)
	r.rest = rest
	return found
}

// skip skips a text that must come next.
func (r *bulkReader) skip(text string) { r.ok = r.has(text) && r.ok }

// name reads a plain name between quotes.
func (r *bulkReader) name() string {
	r.skip(`"`)
	name, rest, found := strings.Cut(r.rest, `"`)
	r.rest, r.ok = rest, r.ok && found && isPlain(name)
	return name
}

// number reads a number that has at most 18 digits and is not negative.
func (r *bulkReader) number() (n int64) {
	i := 0
	for ; i < len(r.rest) && i < 19 && '0' <= r.rest[i] && r.rest[i] <= '9'; i++ {
		n = 10*n + int64(r.rest[i]-'0')
	}
	r.ok = r.ok && i > 0 && i < 19 && (i == 1 || r.rest[0] != '0')
	r.rest = r.rest[i:]
	return n
}
