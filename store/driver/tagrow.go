package driver

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
)

// tagRow is a tag as it is stored: a JSON object, which operators can read.
type tagRow struct {
	Kind      hapax.Kind `json:"kind"`
	Start     int64      `json:"start,omitempty"`
	Step      int64      `json:"step,omitempty"`
	MinStep   int64      `json:"min_step,omitempty"`
	MaxStep   int64      `json:"max_step,omitempty"`
	Delta     int64      `json:"delta,omitempty"`
	Remainder int64      `json:"remainder,omitempty"`
	Mark      int64      `json:"mark,omitempty"`
	Token     int64      `json:"token,omitempty"`
	Run       int64      `json:"run,omitempty"`
	KeyHash   string     `json:"key_hash,omitempty"`
	Pool      string     `json:"pool,omitempty"`
	Extra     string     `json:"extra,omitempty"`
	Deleted   bool       `json:"deleted,omitempty"`
}

// encodeTag returns what encoding/json makes of the tag's row, in a quarter of its time.
func encodeTag(t Tag) []byte {
	raw := make([]byte, 0, 224+len(t.Pool)+len(t.Extra))
	raw = appendText(append(raw, `{"kind":`...), string(t.Kind))
	raw = appendNumber(raw, "start", t.Start)
	raw = appendNumber(raw, "step", t.Step)
	raw = appendNumber(raw, "min_step", t.MinStep)
	raw = appendNumber(raw, "max_step", t.MaxStep)
	raw = appendNumber(raw, "delta", t.Delta)
	raw = appendNumber(raw, "remainder", t.Remainder)
	raw = appendNumber(raw, "mark", t.Mark)
	raw = appendNumber(raw, "token", t.Token)
	raw = appendNumber(raw, "run", t.Run)
	if t.KeyHash != "" {
		raw = appendText(append(raw, `,"key_hash":`...), t.KeyHash)
	}
	if t.Pool != "" {
		raw = appendText(append(raw, `,"pool":`...), t.Pool)
	}
	if t.Extra != "" {
		raw = appendText(append(raw, `,"extra":`...), t.Extra)
	}
	if t.Deleted {
		raw = append(raw, `,"deleted":true`...)
	}
	return append(raw, '}')
}

func appendNumber(raw []byte, name string, n int64) []byte {
	if n == 0 {
		return raw
	}
	raw = append(append(append(raw, ',', '"'), name...), '"', ':')
	return strconv.AppendInt(raw, n, 10)
}

// appendText adds a text in JSON.
func appendText(raw []byte, text string) []byte {
	for i := range len(text) {
		// These encoding/json escapes: a row must not be spelt in two ways, since it is swapped by its bytes.
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(text) // it cannot fail for a text
			return append(raw, quoted...)
		}
	}
	return append(append(append(raw, '"'), text...), '"')
}

// An UnreadableError is the error of calls for a tag whose row cannot be read. It matches
// hapax.ErrStoreCorrupt, and says nothing of other tags.
type UnreadableError struct {
	Tag   string
	Cause error // what is wrong with the row
}

func (u *UnreadableError) Error() string {
	return fmt.Sprintf("%v: tag %q: %s; correct its row in the store, with a mark at or above every number that was used: nothing is granted of it until then, and other tags go on",
		hapax.ErrStoreCorrupt, u.Tag, hapax.Message(u.Cause))
}

// Unwrap returns hapax.ErrStoreCorrupt.
func (u *UnreadableError) Unwrap() error { return hapax.ErrStoreCorrupt }

// decodeTag reads the row of a tag. It fails with an [UnreadableError].
func decodeTag(name string, raw []byte) (Tag, error) {
	if len(raw) == 0 { // as drivers show one, too, that is longer than a row may be
		return Tag{}, &UnreadableError{name, fmt.Errorf("row %q of table \"tags\" is empty, longer than %d bytes or encoded wrongly", name, MaxValueBytes)}
	}
	r, ok := scanTag(raw)
	if !ok {
		r = tagRow{}
		if err := decodeStrictly("tags", name, raw, &r); err != nil {
			return Tag{}, &UnreadableError{name, err}
		}
	}
	tag := hapax.Tag{
		Name: name, Kind: r.Kind, Start: r.Start, Step: r.Step, MinStep: r.MinStep, MaxStep: r.MaxStep, Mark: r.Mark, Token: r.Token,
		Delta: r.Delta, Remainder: r.Remainder, Pool: r.Pool, Extra: r.Extra, Deleted: r.Deleted,
	}
	// What a default would change was not written by this package: nothing is granted from a guess.
	if whole, err := tag.WithDefaults(); err != nil || whole != tag || tag.Mark > hapax.MaxMark || r.Token < 0 || r.Token > MaxToken || r.Run < 0 || r.Run > tag.Mark {
		return Tag{}, &UnreadableError{name, fmt.Errorf("row %q of table \"tags\" is no definition of a tag: %.500q", name, raw)}
	}
	return Tag{Tag: tag, KeyHash: r.KeyHash, Run: r.Run}, nil
}

// scanTag reads a row as encodeTag writes it. It reports false for any other one, which
// may still be right: encoding/json, which takes several times as long, has the last word.
func scanTag(raw []byte) (r tagRow, ok bool) {
	s := rowScanner{string(raw), true}
	s.skip(`{"kind":`)
	r.Kind = hapax.Kind(s.text())
	s.number(`,"start":`, &r.Start)
	s.number(`,"step":`, &r.Step)
	s.number(`,"min_step":`, &r.MinStep)
	s.number(`,"max_step":`, &r.MaxStep)
	s.number(`,"delta":`, &r.Delta)
	s.number(`,"remainder":`, &r.Remainder)
	s.number(`,"mark":`, &r.Mark)
	s.number(`,"token":`, &r.Token)
	s.number(`,"run":`, &r.Run)
	for _, f := range []struct {
		name string
		to   *string
	}{{`,"key_hash":`, &r.KeyHash}, {`,"pool":`, &r.Pool}, {`,"extra":`, &r.Extra}} {
		if s.follows(f.name) {
			*f.to = s.text()
		}
	}
	r.Deleted = s.follows(`,"deleted":true`)
	s.skip("}")
	return r, s.ok && s.rest == ""
}

// A rowScanner reads JSON of one form from the beginning of rest.
type rowScanner struct {
	rest string
	ok   bool
}

// follows skips a text, and reports whether it was there.
func (s *rowScanner) follows(text string) (there bool) {
	s.rest, there = strings.CutPrefix(s.rest, text)
	return there
}

func (s *rowScanner) skip(text string) { s.ok = s.follows(text) && s.ok }

// number reads a number that follows its name; where the name does not follow it is 0.
func (s *rowScanner) number(name string, to *int64) {
	if !s.follows(name) {
		return
	}
	i := 0
	for i < len(s.rest) && s.rest[i] >= '0' && s.rest[i] <= '9' {
		i++
	}
	n, err := strconv.ParseInt(s.rest[:i], 10, 64)
	// encodeTag writes neither zero nor leading zeros: encoding/json decides about such a row.
	*to, s.ok = n, s.ok && err == nil && s.rest[0] != '0'
	s.rest = s.rest[i:]
}

// text reads a text without escapes.
func (s *rowScanner) text() string {
	if !s.follows(`"`) {
		s.ok = false
		return ""
	}
	text, rest, ended := strings.Cut(s.rest, `"`)
	s.rest = rest
	s.ok = s.ok && ended && !strings.Contains(text, `\`) && utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' })
	return text
}
