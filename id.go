package hapax

import (
	"database/sql/driver"
	"fmt"
	"strconv"
)

// maxIDBytes is the length of the longest ID in text, the sign included.
const maxIDBytes = len("-9223372036854775808")

// idForm tells in errors what ParseID accepts.
const idForm = "a decimal integer of 64 bits with its sign, without a plus or leading zeros"

// An ID is a number that was issued. IDs are negative only under a layout that
// declares a field at the sign bit.
//
// As text an ID is a decimal number; in JSON it is a string, because JavaScript
// loses integers above 2^53; in a database it is an integer of 64 bits.
type ID int64

// ParseID reads the decimal text of an ID. An ID has exactly one spelling, so a
// plus, leading zeros, "-0", spaces and other bases are refused. Its errors
// match [ErrInvalidID].
func ParseID(text string) (ID, error) {
	digits := text
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	// What this lets through to ParseInt and should not, ParseInt refuses.
	if len(text) <= maxIDBytes && len(digits) > 0 && '0' <= digits[0] && digits[0] <= '9' && (digits[0] != '0' || text == "0") {
		if v, err := strconv.ParseInt(text, 10, 64); err == nil {
			return ID(v), nil
		}
	}
	return 0, &ValueError{"id", text, idForm, ErrInvalidID}
}

// String returns the ID in decimal.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// Append appends the ID in decimal to dst.
func (id ID) Append(dst []byte) []byte { return strconv.AppendInt(dst, int64(id), 10) }

// AppendText implements encoding.TextAppender.
func (id ID) AppendText(dst []byte) ([]byte, error) { return id.Append(dst), nil }

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return id.Append(nil), nil }

// UnmarshalText implements encoding.TextUnmarshaler with the rules of [ParseID].
func (id *ID) UnmarshalText(text []byte) error {
	v, err := parseIDBytes(text)
	if err == nil {
		*id = v
	}
	return err
}

// MarshalJSON returns the ID as a JSON string.
func (id ID) MarshalJSON() ([]byte, error) {
	dst := make([]byte, 0, maxIDBytes+len(`""`))
	return append(id.Append(append(dst, '"')), '"'), nil
}

// UnmarshalJSON accepts a JSON string or number with the rules of [ParseID]:
// fractions, exponents and escapes are refused. As encoding/json wants it, null
// leaves the ID as it is.
func (id *ID) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	if n := len(data); n >= 2 && data[0] == '"' && data[n-1] == '"' {
		data = data[1 : n-1]
	}
	return id.UnmarshalText(data)
}

// Scan implements sql.Scanner for columns of integers and of decimal text. NULL
// is refused: scan into a sql.Null[ID] where it can occur.
func (id *ID) Scan(src any) error {
	switch src := src.(type) {
	case int64:
		*id = ID(src)
		return nil
	case []byte:
		return id.UnmarshalText(src)
	case string:
		v, err := ParseID(src)
		if err == nil {
			*id = v
		}
		return err
	}
	return &ValueError{"id", fmt.Sprintf("a column of type %T", src), "an integer column or decimal text, not NULL", ErrInvalidID}
}

// Value implements driver.Valuer: the ID as an int64.
func (id ID) Value() (driver.Value, error) { return int64(id), nil }

// parseIDBytes bounds the text before copying it.
func parseIDBytes(text []byte) (ID, error) {
	const shown = maxIDBytes + 1 // enough for ParseID to see that it is too long
	return ParseID(string(text[:min(len(text), shown)]))
}
