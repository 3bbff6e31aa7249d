package hapax

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func FuzzParseLayout(f *testing.F) {
	for _, b := range builtins {
		f.Add(b.name)
		f.Add(b.layout.String())
	}
	for _, spec := range []string{
		"", ":", "=", ",", "time:41,sequence:12", "time:41,sequence:12,epoch=-62135596800000ms,unit=1h",
		"version:1,time:41,worker:10,sequence:12,epoch=9998-12-31T23:59:59.999+14:00",
	} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLayout(text)
		if err != nil {
			if !errors.Is(err, ErrInvalidLayout) || !l.IsZero() {
				t.Fatalf("%v, %q", err, l)
			}
			return
		}
		spec := l.String()
		if again, err := ParseLayout(spec); err != nil || again != l || again.String() != spec {
			t.Fatalf("%q comes back as %q, %v", spec, again, err)
		}
		var last Fields
		for f := range l.Fields() {
			last = append(last, Field{f.Name, f.Max})
		}
		id, err := l.Compose(last)
		if err != nil {
			t.Fatal(err)
		}
		at, err := l.Time(id)
		if err != nil || !at.Before(l.Ends()) || at.Before(l.Epoch()) {
			t.Fatalf("%s: the last ID %d is of %v, %v", spec, id, at, err)
		}
	})
}

func FuzzID(f *testing.F) {
	for _, text := range append(notIDs[:len(notIDs)-1:len(notIDs)-1],
		"0", "-1", "9223372036854775807", "-9223372036854775808", "null", `"1"`, `"`, `"\u0031"`) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		id, err := ParseID(string(text))
		var fromText, fromString, fromJSON ID
		textErr := fromText.UnmarshalText(text)
		stringErr := fromString.UnmarshalJSON([]byte(`"` + string(text) + `"`))
		switch {
		case err != nil && (!errors.Is(err, ErrInvalidID) || textErr == nil || stringErr == nil):
			t.Fatalf("%q is no ID (%v), yet: %v, %v", text, err, textErr, stringErr)
		case err == nil && (id.String() != string(text) || fromText != id || fromString != id):
			t.Fatalf("%q is %d, %d, %d", text, id, fromText, fromString)
		}
		// encoding/json takes the same texts, in quotes or bare.
		if bare := strings.Trim(string(text), " \t\r\n"); bare != "null" && json.Unmarshal(text, &fromJSON) == nil {
			if want := fromJSON.String(); bare != want && bare != `"`+want+`"` {
				t.Fatalf("%q as JSON is %d", text, fromJSON)
			}
		}
	})
}
