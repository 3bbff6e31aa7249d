package hapax

import (
	"database/sql"
	"database/sql/driver"
	"encoding"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var (
	_ encoding.TextAppender    = ID(0)
	_ encoding.TextMarshaler   = ID(0)
	_ encoding.TextUnmarshaler = (*ID)(nil)
	_ json.Marshaler           = ID(0)
	_ json.Unmarshaler         = (*ID)(nil)
	_ sql.Scanner              = (*ID)(nil)
	_ driver.Valuer            = ID(0)
)

// notIDs are texts that no form of an ID has.
var notIDs = []string{
	"", "-", "+1", "-+1", "--1", "01", "00", "-0", "-01", " 1", "1 ", "1_000", "0x1f", "1e3", "1.0", "١",
	"9223372036854775808", "-9223372036854775809", "18446744073709551615",
	"123456789012345678901", "-12345678901234567890", strings.Repeat("0", 1<<20),
}

func TestParseIDRefuses(t *testing.T) {
	for _, text := range notIDs {
		_, err := ParseID(text)
		v, ok := errors.AsType[*ValueError](err)
		if !errors.Is(err, ErrInvalidID) || !ok || v.Field != "id" {
			t.Errorf("ParseID(%.40q) = %v, want ErrInvalidID on field id", text, err)
		} else if len(err.Error()) > 400 {
			t.Errorf("ParseID(%.40q): the error has %d bytes", text, len(err.Error()))
		}
		id := ID(42)
		if err := id.UnmarshalText([]byte(text)); !errors.Is(err, ErrInvalidID) || id != 42 {
			t.Errorf("UnmarshalText(%.40q) = %d, %v, want ErrInvalidID", text, id, err)
		}
	}
}

func TestParseIDAccepts(t *testing.T) {
	for text, want := range map[string]ID{
		"0": 0, "7": 7, "-1": -1,
		"9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64,
	} {
		if got, err := ParseID(text); err != nil || got != want {
			t.Errorf("ParseID(%q) = %d, %v", text, got, err)
		}
	}
}

func TestIDRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := ID(rapid.Int64().Draw(t, "id"))
		if got, err := ParseID(id.String()); err != nil || got != id {
			t.Fatalf("text: %d, %v", got, err)
		}
		if got := string(id.Append([]byte("x"))); got != "x"+id.String() {
			t.Fatalf("Append: %q", got)
		}
		var fromString, fromNumber, scanned ID
		data, err := json.Marshal(id)
		if err != nil || string(data) != `"`+id.String()+`"` {
			t.Fatalf("JSON is %s, %v", data, err)
		}
		if err := json.Unmarshal(data, &fromString); err != nil || fromString != id {
			t.Fatalf("JSON string: %d, %v", fromString, err)
		}
		if err := json.Unmarshal([]byte(id.String()), &fromNumber); err != nil || fromNumber != id {
			t.Fatalf("JSON number: %d, %v", fromNumber, err)
		}
		v, err := id.Value()
		if err != nil || scanned.Scan(v) != nil || scanned != id {
			t.Fatalf("database: %v, %v, %d", v, err, scanned)
		}
	})
}

func TestIDUnmarshalJSON(t *testing.T) {
	const before = ID(42)
	for _, test := range []struct {
		json string
		want ID
		ok   bool
	}{
		{`null`, before, true},
		{`"17"`, 17, true},
		{`17`, 17, true},
		{` 17 `, 17, true},
		{`-1`, -1, true},
		{`"null"`, before, false},
		{`""`, before, false},
		{`"`, before, false},
		{`1.0`, before, false},
		{`1e3`, before, false},
		{`-0`, before, false},
		{`true`, before, false},
		{`[1]`, before, false},
		{`{}`, before, false},
		{`"\u0031"`, before, false},
		{`9223372036854775808`, before, false},
		{`"1` + strings.Repeat("0", 1<<16) + `"`, before, false},
	} {
		id := before
		err := json.Unmarshal([]byte(test.json), &id)
		if (err == nil) != test.ok || id != test.want {
			t.Errorf("%.40s: %d, %v", test.json, id, err)
		}
	}
	for _, data := range []string{"", `"`, `"1`} { // what encoding/json never passes on
		var id ID
		if err := id.UnmarshalJSON([]byte(data)); !errors.Is(err, ErrInvalidID) {
			t.Errorf("UnmarshalJSON(%s) = %d, %v, want ErrInvalidID", data, id, err)
		}
	}
	var keyed map[ID]string
	if err := json.Unmarshal([]byte(`{"5":"a"}`), &keyed); err != nil || keyed[5] != "a" {
		t.Errorf("as a key: %v, %v", keyed, err)
	}
}

func TestIDScan(t *testing.T) {
	for _, src := range []any{int64(7), "7", []byte("7")} {
		var id ID
		if err := id.Scan(src); err != nil || id != 7 {
			t.Errorf("Scan(%T) = %d, %v", src, id, err)
		}
	}
	for _, src := range []any{nil, 7.0, true, "7.0", []byte("x")} {
		id := ID(42)
		if err := id.Scan(src); !errors.Is(err, ErrInvalidID) || id != 42 {
			t.Errorf("Scan(%T %v) = %d, %v, want ErrInvalidID", src, src, id, err)
		}
	}
	var null sql.Null[ID]
	if err := null.Scan(nil); err != nil || null.Valid {
		t.Errorf("sql.Null: %v, %v", null, err)
	}
}
