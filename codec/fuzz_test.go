package codec

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
)

var fuzzSpecs = []string{
	"INV-{yyyy}{MM}{dd}-{seq:6}{check}",
	"{id:8:crockford32:feistel:group=4}{check}",
	"{type:user}{uuid:base32:multiply}",
	"{uuid}",
	"{{{id:3+:=abc-}}}{check:iso7064}",
	"{key}{id:1+:58:feistel=k2}",
	"{zone:America/New_York}{fiscal:10:end}{Q}.{yy} {seq:2+:36:group=1}",
	"{GGGG}W{ww}{seq:4:16:reverse}",
	"{dd}.{MM}.{yyyy} {HH}h {seq:2}{check:mod97}",
}

func FuzzParse(f *testing.F) {
	for _, spec := range fuzzSpecs {
		f.Add(spec)
	}
	for _, spec := range []string{"", "{", "}", "{}", "{:}", "{id", "{id:", "{id:6:=", "{{}}", "{zone:}{yyyy}{seq:1}", "{id:1}{check:}", "\xff{id:1}"} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		c, err := Parse(spec, options())
		if err != nil {
			if !errors.Is(err, ErrInvalidSpec) || c != nil {
				t.Fatalf("%v, %v", err, c)
			}
			return
		}
		again, err := Parse(c.String(), options())
		if err != nil || again.String() != c.String() {
			t.Fatalf("%q is %q, which is %v, %v", spec, c, again, err)
		}
		p, err := c.Period(epoch)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []hapax.ID{0, 1, c.Max() / 2, c.Max()} {
			text, err := c.AppendPeriod(nil, p, id)
			if err != nil || len(text) > c.MaxLen() {
				t.Fatalf("%s: %q, %v", c, text, err)
			}
			if q, got, err := again.DecodePeriod(string(text)); err != nil || q != p || got != id {
				t.Fatalf("%s: %d is %q, which is %d, %v", c, id, text, got, err)
			}
			if got, err := c.Normalize(string(text)); err != nil || got != string(text) {
				t.Fatalf("%s: %q is normalized to %q, %v", c, text, got, err)
			}
		}
	})
}

// FuzzDecode reads any text: what is accepted is what Append writes.
func FuzzDecode(f *testing.F) {
	codecs := make([]*Codec, len(fuzzSpecs))
	for i, spec := range fuzzSpecs {
		codecs[i] = mustParse(f, spec)
		p, err := codecs[i].Period(epoch)
		if err != nil {
			f.Fatal(err)
		}
		for _, id := range []hapax.ID{0, 7, codecs[i].Max()} {
			f.Add(uint8(i), mustAppend(f, codecs[i], p, id))
		}
	}
	f.Add(uint8(0), "")
	f.Fuzz(func(t *testing.T, i uint8, text string) {
		c := codecs[int(i)%len(codecs)]
		p, id, err := c.DecodePeriod(text)
		if err == nil {
			if again := mustAppend(t, c, p, id); again != text {
				t.Fatalf("%s: %q is %d of %s, which is %q", c, text, id, p, again)
			}
		} else if e, ok := errors.AsType[*TextError](err); !ok || e.Pos < 0 || e.Pos > len(text) || e.Error() == "" {
			t.Fatalf("%s: %q: %v", c, text, err)
		}
		if normal, err := c.Normalize(text); err == nil {
			if again, err := c.Normalize(normal); err != nil || again != normal {
				t.Fatalf("%s: %q is normalized to %q, then to %q, %v", c, text, normal, again, err)
			}
		}
	})
}
