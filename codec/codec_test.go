package codec

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the same rules on every machine

	"github.com/hapax-id/hapax"
	"pgregory.net/rapid"
)

// epoch is some instant.
var epoch = time.Date(2026, time.November, 21, 12, 0, 0, 0, time.UTC)

// keys holds key 1 and key 2 of 32 bytes.
var keys = map[string][]byte{
	"k1": []byte("0123456789abcdef0123456789abcdef"),
	"k2": []byte("fedcba9876543210fedcba9876543210"),
}

func options() Options {
	return Options{Tag: "orders", Keys: keys, Key: "k1", Zone: "Europe/Berlin"}
}

func mustParse(t testing.TB, spec string) *Codec {
	t.Helper()
	c, err := Parse(spec, options())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustAppend(t testing.TB, c *Codec, p Period, id hapax.ID) string {
	t.Helper()
	text, err := c.AppendPeriod(nil, p, id)
	if err != nil {
		t.Fatalf("%s of %s, %d: %v", c, p, id, err)
	}
	return string(text)
}

// TestTexts has a code of each kind. What it shows has been checked by hand.
func TestTexts(t *testing.T) {
	for _, tt := range []struct {
		spec string
		id   hapax.ID
		want string
	}{
		{"{id:6}", 42, "000042"},
		{"{id:19}", math.MaxInt64, "9223372036854775807"},
		{"{id:3+}", 42, "042"},
		{"{id:3+}", 1000, "1000"},
		{"{id:1+}", math.MaxInt64, "9223372036854775807"},
		{"{id:4:16}", 0xbeef, "beef"},
		{"{id:13:crockford32}", math.MaxInt64, "7ZZZZZZZZZZZZ"},
		{"{type:user}{id:13:crockford32-lower}", 1<<40 + 31, "user_000010000000z"},
		{"{id:3:36}", 36*36*36 - 1, "ZZZ"},
		{"{id:3:58}", 58, "121"},
		{"{id:3:62}", 61, "00z"},
		{"{id:3:=ab}", 5, "bab"},
		{"{id:8:group=4}", 12345678, "1234-5678"},
		{"{id:7:group=4}{check}", 1234567, "1234-5671"},
		{"{{{id:2}}}", 7, "{07}"},
		{"№ {id:2} €", 7, "№ 07 €"},
		{"{id:3}{check}", 572, "5724"},                     // Damm's example
		{"{id:10}{check:luhn}", 7992739871, "79927398713"}, // the usual example of Luhn's
		{"{id:3}{check:mod97}", 794, "79444"},              // ISO 7064's example
		{"{id:4}{check:iso7064}", 794, "07945"},            // ISO 7064's example of MOD 11,10
		{"{id:4:36}{check}", 13368, "0ABC8"},
		{"{uuid}", 0, "00000000-0000-8000-8" + mustParse(t, "{uuid}").uuidTail()},
	} {
		c := mustParse(t, tt.spec)
		if got := mustAppend(t, c, Period{}, tt.id); got != tt.want {
			t.Errorf("%s of %d is %q, want %q", tt.spec, tt.id, got, tt.want)
		}
		if got, err := c.Decode(tt.want); err != nil || got != tt.id {
			t.Errorf("%s of %q is %d, %v, want %d", tt.spec, tt.want, got, err, tt.id)
		}
	}
}

// uuidTail returns the last 15 digits, which show nothing but the tag, and the
// hyphen in them.
func (c *Codec) uuidTail() string {
	text := string(c.number.uuid.append(nil, 0))
	return text[len("00000000-0000-8000-8"):]
}

func TestGRid(t *testing.T) {
	// The example of the Global Release Identifier, which uses MOD 37,36.
	var values []uint8
	for _, c := range []byte("A12425GABC1234002") {
		values = append(values, uint8(builtinAlphabets[4].values[c]))
	}
	if got := builtinAlphabets[4].chars[iso7064(values, 36)]; got != 'M' {
		t.Errorf("the check is %c, want M", got)
	}
}

// TestNewCheck has {check} alone mean gf in a new spec, and what it always meant in one
// that codes were made by.
func TestNewCheck(t *testing.T) {
	for _, tt := range []struct{ spec, frozen, fresh string }{
		{"{id:8}{check}", "{id:8}{check}", "{id:8}{check}"},
		{"{id:8:16}{check}", "{id:8:16}{check:iso7064}", "{id:8:16}{check:gf}"},
		{"{id:8:16}{check:iso7064}", "{id:8:16}{check:iso7064}", "{id:8:16}{check:iso7064}"},
		{"{id:15:16}{check}", "{id:15:16}{check:iso7064}", "{id:15:16}{check:iso7064}"}, // gf covers 14
		{"{id:14+:16}{check}", "{id:14+:16}{check:iso7064}", "{id:14+:16}{check:iso7064}"},
		{"{id:8:crockford32}{check}", "{id:8:crockford32}{check:gf}", "{id:8:crockford32}{check:gf}"},
		{"{id:8:36}{check}", "{id:8:36}{check}", "{id:8:36}{check}"},
	} {
		for fresh, want := range map[bool]string{false: tt.frozen, true: tt.fresh} {
			o := options()
			o.New = fresh
			c, err := Parse(tt.spec, o)
			if err != nil {
				t.Error(err)
				continue
			}
			if c.String() != want {
				t.Errorf("%s, new %t, is %s, want %s", tt.spec, fresh, c, want)
			}
			for _, o.New = range []bool{false, true} {
				if again, err := Parse(want, o); err != nil || again.String() != want {
					t.Errorf("%s, new %t, is read as %s, %v", want, o.New, again, err)
				}
			}
		}
	}
}

// TestKeyWithLineBreak refuses a key as a file ends: a server leaves the line break out,
// and would write other codes.
func TestKeyWithLineBreak(t *testing.T) {
	const key = "0123456789abcdef"
	for _, end := range []string{"\n", "\r\n", "\r", "\n\n"} {
		_, err := Parse("{id:6:feistel}", Options{Tag: "t", Keys: map[string][]byte{"k": []byte(key + end)}})
		if !errors.Is(err, ErrInvalidSpec) || !strings.Contains(err.Error(), "line break") || strings.Contains(err.Error(), key) {
			t.Errorf("%q: %v", end, err)
		}
	}
	if _, err := Parse("{id:6:feistel}", Options{Tag: "t", Keys: map[string][]byte{"k": []byte(key + "\n.")}}); err != nil {
		t.Error(err)
	}
}

func TestCanonicalSpec(t *testing.T) {
	for _, tt := range []struct{ spec, want string }{
		{"{id:6}", ""},
		{"{id:6:10}", "{id:6}"},
		{"{id:6:=0123456789}", "{id:6}"},
		{"{id:6:=abc}{{}}", ""},
		{"{id:8:crockford32:feistel}{check:gf}", "{id:8:crockford32:feistel=k1}{check:gf}"},
		{"{id:8:16}{check}", "{id:8:16}{check:iso7064}"},
		{"{id:8:36}{check:iso7064}", "{id:8:36}{check}"},
		{"{key}-{id:8:58:feistel=k2:group=3}{check:iso7064}", "{key}-{id:8:58:feistel=k2:group=3}{check}"},
		{"{id:6}{check:luhn}", ""},
		{"{yyyy}{MM}-{seq:3+}", "{zone:Europe/Berlin}{yyyy}{MM}-{seq:3+}"},
		{"{GGGG}{seq:3}{fiscal:04}", "error"},
		{"A{yy}{Q}{fiscal:10:end}{zone:UTC}{seq:3}", "{zone:UTC}{fiscal:10:end}A{yy}{Q}{seq:3}"},
		{"{uuid:base32:feistel}", "{uuid:base32:feistel=k1}"},
		{"{type:a_b}{uuid:multiply}", ""},
	} {
		c, err := Parse(tt.spec, options())
		if tt.want == "error" {
			if !errors.Is(err, ErrInvalidSpec) {
				t.Errorf("%s: %v", tt.spec, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if tt.want == "" {
			tt.want = tt.spec
		}
		again := mustParse(t, c.String())
		if c.String() != tt.want || again.String() != tt.want {
			t.Errorf("%s becomes %s, then %s, want %s", tt.spec, c, again, tt.want)
		}
	}
}

func TestSpecErrors(t *testing.T) {
	for _, tt := range []struct {
		spec string
		pos  int // of the error, from 0
		want string
	}{
		{"", 0, "a number"},
		{"INV-", 4, "a number"},
		{"INV-{id}", 5, "{id:6}"},
		{"{id:0}", 4, "1 to 19"},
		{"{id:20}", 4, "1 to 19"},
		{"{id:06}", 4, "1 to 19"},
		{"{id:+6}", 4, "1 to 19"},
		{"{id:6++}", 4, "1 to 19"},
		{"{id:14:crockford32}", 4, "1 to 13"},
		{"{id:6:64}", 6, "an alphabet"},
		{"{id:6:=aa}", 6, "an alphabet"},
		{"{id:6:=a}", 6, "an alphabet"},
		{"{id:6:=a b}", 6, "an alphabet"},
		{"{id:6:=é}", 6, "an alphabet"},
		{"{id:6:16:shuffle}", 9, "feistel"},
		{"{id:6:multiply:reverse}", 15, "in this order"},
		{"{id:6:multiply=3}", 6, "feistel"},
		{"{id:6:reverse}", 6, "fixed width"},
		{"{id:6+:16:reverse}", 10, "fixed width"},
		{"{id:6:feistel=}", 6, "key's ID"},
		{"{id:6:feistel=k 1}", 6, "key's ID"},
		{"{id:6:feistel=k9}", 6, "missing"},
		{"{id:6:group=0}", 6, "1 to 19"},
		{"{id:6:group=04}", 6, "1 to 19"},
		{"{id:6:=a-:group=2}", 10, "hyphen"},
		{"{id:6:group=2:16}", 14, "in this order"},
		{"{id:6}{id:6}", 7, "once"},
		{"{id:6}{uuid}", 7, "one number"},
		{"{check}{id:6}", 1, "before {check}"},
		{"{id:6}{check:crc}", 13, "damm"},
		{"{id:6}{check:}", 13, "damm"},
		{"{id:6}{check:damm:}", 18, "at most one"},
		{"{id:6:16}{check:damm}", 16, "has 16"},
		{"{id:6:=abc}{check}", 12, "has 3"},
		{"{id:15:16}{check:gf}", 17, "covers 14"},
		{"{yyyy}{seq:6:=abcd}{check}", 20, "10 or more"},
		{"{seq:6}{check}{yyyy}", 15, "before {check}"},
		{"{uuid}{check}", 7, "no room"},
		{"{uuid:base64}", 6, "feistel"},
		{"{uuid:group=4}", 6, "base32"},
		{"{id:6}{", 6, "closing"},
		{"{id:6", 0, "closing"},
		{"{id:{6}", 0, "closing"},
		{"}{id:6}", 0, "}}"},
		{"{id:6}{date}", 7, "one of"},
		{"{Yyyy}{id:6}", 1, "one of"},
		{"{yyyy:4}{seq:6}", 6, "nothing"},
		{"{key}{id:6}", 1, "feistel"},
		{"{key:1}{id:6:feistel}", 5, "nothing"},
		{"x{type:a}{id:6}", 2, "before all"},
		{"{type:_a}{id:6}", 1, "a-z"},
		{"{type}{id:6}", 1, "a-z"},
		{"a\nb{id:6}", 1, "control"},
		{"a\xffb{id:6}", 1, "UTF-8"},
		{"{seq:6}", 1, "{id:"},
		{"{yyyy}{id:6}", 7, "{seq:"},
		{"{yyyy}{uuid}", 7, "{seq:"},
		{"{zone:UTC}{id:6}", 11, "a period"},
		{"{zone:Local}{yyyy}{seq:6}", 1, "IANA"},
		{"{zone:../x y}{yyyy}{seq:6}", 1, "IANA"},
		{"{zone:Mars/Base}{yyyy}{seq:6}", 6, "there is none with this name"},
		{"{MM}{dd}{seq:6}", 9, "{yyyy}"},
		{"{yyyy}{dd}{seq:6}", 11, "{MM}"},
		{"{yyyy}{MM}{HH}{seq:6}", 15, "{dd}"},
		{"{yyyy}{yy}{seq:6}", 11, "either"},
		{"{GGGG}{seq:6}", 7, "{ww}"},
		{"{yyyy}{ww}{seq:6}", 11, "{GGGG}"},
		{"{GGGG}{ww}{MM}{seq:6}", 15, "no other"},
		{"{fiscal:1}{yyyy}{seq:6}", 1, "02 to 12"},
		{"{fiscal:01}{yyyy}{seq:6}", 8, "02 to 12"},
		{"{fiscal:13}{yyyy}{seq:6}", 8, "02 to 12"},
		{"{fiscal:04:start}{yyyy}{seq:6}", 1, ":end"},
		{strings.Repeat("x", 300), 0, "256 bytes"},
	} {
		_, err := Parse(tt.spec, options())
		e, ok := errors.AsType[*SpecError](err)
		if !ok || !errors.Is(err, ErrInvalidSpec) {
			t.Errorf("%q: %v", tt.spec, err)
			continue
		}
		if e.Pos != tt.pos || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: position %d, %v; want %d, %q", tt.spec, e.Pos, err, tt.pos, tt.want)
		}
	}
}

func TestOptions(t *testing.T) {
	secret := []byte("secret secret 1!")
	for _, tt := range []struct {
		name, spec string
		opts       Options
		want       string // in the error, empty if there is none
	}{
		{"no tag to scramble for", "{id:6:feistel}", Options{Keys: keys, Key: "k1"}, "Tag"},
		{"no tag for a UUID", "{uuid}", Options{}, "Tag"},
		{"a long tag", "{id:6}", Options{Tag: strings.Repeat("x", 129)}, "128"},
		{"no key", "{id:6:feistel}", Options{Tag: "t"}, "none is given"},
		{"two keys", "{id:6:feistel}", Options{Tag: "t", Keys: keys}, "several keys: k1, k2"},
		{"two keys, one named", "{id:6:feistel=k2}", Options{Tag: "t", Keys: keys}, ""},
		{"the only key", "{id:6:feistel}", Options{Tag: "t", Keys: map[string][]byte{"a": secret}}, ""},
		{"a short key", "{id:6:feistel}", Options{Tag: "t", Keys: map[string][]byte{"a": secret[:15]}}, "of 15 bytes"},
		{"a long key", "{id:6:feistel}", Options{Tag: "t", Keys: map[string][]byte{"a": make([]byte, 65)}}, "of 65 bytes"},
		{"no zone", "{yyyy}{seq:6}", Options{}, "Zone"},
		{"a zone in the spec", "{zone:UTC}{yyyy}{seq:6}", Options{Zone: "Europe/Berlin"}, ""},
	} {
		_, err := Parse(tt.spec, tt.opts)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !errors.Is(err, ErrInvalidSpec) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), string(secret[:8])) {
			t.Errorf("%s: the error shows a key: %v", tt.name, err)
		}
	}
}

func TestTextErrors(t *testing.T) {
	const grouped = "{id:6:crockford32:group=3}{check}"
	for _, tt := range []struct {
		spec, text string
		pos        int
		check      bool
	}{
		{"INV-{id:6}", "", 0, false},
		{"INV-{id:6}", "INV", 3, false},
		{"INV-{id:6}", "INV-00042", 9, false},
		{"INV-{id:6}", "INV-0000042", 10, false},
		{"INV-{id:6}", "IMV-000042", 1, false},
		{"INV-{id:6}", "INX-000042", 2, false},
		{"INV-{id:6}", "INV-00O042", 6, false},
		{"INV-{id:6}", "INV-00é42", 6, false},
		{"INV-{id:6}!", "INV-000042.", 10, false},
		{"{id:6}{check}", "0000429", 6, true},
		{"{id:6}{check}", "000042x", 6, false},
		{grouped, "000-01A0", 7, true},
		{grouped, "000001A0", 3, false},
		{grouped, "000-01a0", 6, false},
		{"{id:3+}", "0100", 0, false},  // is 100
		{"{id:3+}", "00100", 0, false}, // likewise
		{"{id:3+}", "12", 2, false},    // is 012
		{"{id:19}", "9223372036854775808", 0, false},
		{"{id:19}", "9999999999999999999", 0, false},
		{"{id:13:crockford32}", "8000000000000", 0, false},
		{"{id:13:crockford32}", "ZZZZZZZZZZZZZ", 0, false},
		{"{id:13:crockford32}", "G000000000001", 0, false}, // 1 modulo 2^64
		{"{uuid}", "00000000-0000-8000-8", 20, false},
		{"{uuid}", mustAppend(t, mustParse(t, "{uuid}"), Period{}, 5)[:35] + "g", 35, false},
		{"{zone:UTC}{yyyy}{MM}{dd}-{seq:2}", "20261321-01", 4, false},
		{"{zone:UTC}{yyyy}{MM}{dd}-{seq:2}", "20260021-01", 4, false},
		{"{zone:UTC}{yyyy}{MM}{dd}-{seq:2}", "00001121-01", 0, false},
		{"{zone:UTC}{yyyy}{MM}{dd}-{seq:2}", "20260229-01", 6, false},
		{"{zone:UTC}{yyyy}{MM}{dd}-{seq:2}", "2026022x-01", 7, false},
		{"{zone:UTC}{dd}.{MM}.{yyyy} {seq:2}", "31.04.2026 01", 0, false},
		{"{zone:UTC}{GGGG}-W{ww} {seq:2}", "2025-W53 01", 6, false},
		{"{zone:UTC}{Q}{MM}{yyyy} {seq:2}", "1112026 01", 0, false},
		{"{zone:UTC}{yyyy}{MM}{dd}{HH}{seq:2}", "202602282401", 8, false},
	} {
		c := mustParse(t, tt.spec)
		p, id, err := c.DecodePeriod(tt.text)
		e, ok := errors.AsType[*TextError](err)
		if !ok || !errors.Is(err, ErrInvalidText) || p != (Period{}) || id != 0 {
			t.Errorf("%s of %q: %v, %d, %v", tt.spec, tt.text, p, id, err)
			continue
		}
		if e.Pos != tt.pos || errors.Is(err, ErrCheck) != tt.check {
			t.Errorf("%s of %q: position %d, %v; want %d, check %v", tt.spec, tt.text, e.Pos, err, tt.pos, tt.check)
		}
	}
}

func TestRange(t *testing.T) {
	for _, tt := range []struct {
		spec string
		max  hapax.ID
		len  int
	}{
		{"{id:6}", 999_999, 6},
		{"{id:6+}", math.MaxInt64, 19},
		{"{id:8:crockford32:feistel:group=4}{check}", 1<<40 - 1, 10},
		{"{id:1+:=ab:multiply:group=7}", math.MaxInt64, 71},
		{"x{uuid}", math.MaxInt64, 37},
		{"{uuid:base32}", math.MaxInt64, 26},
	} {
		c := mustParse(t, tt.spec)
		if c.Max() != tt.max || c.MaxLen() != tt.len {
			t.Errorf("%s goes to %d in %d bytes, want %d, %d", tt.spec, c.Max(), c.MaxLen(), tt.max, tt.len)
		}
		dst := []byte("x")
		for _, id := range []hapax.ID{-1, math.MinInt64, tt.max + 1} {
			if id == math.MinInt64+1 {
				continue
			}
			if got, err := c.Append(dst, id); !errors.Is(err, ErrRange) || string(got) != "x" {
				t.Errorf("%s of %d: %q, %v", tt.spec, id, got, err)
			}
		}
		if text := mustAppend(t, c, Period{}, tt.max); len(text) != tt.len {
			t.Errorf("%s of %d is %q", tt.spec, tt.max, text)
		}
	}
}

func TestNormalize(t *testing.T) {
	for _, tt := range []struct{ spec, text, want string }{
		{"{id:8:crockford32:group=4}", "abco efgi", "ABC0-EFG1"},
		{"{id:8:crockford32:group=4}", " ab-co-ef-gl\t", "ABC0-EFG1"},
		{"{id:8:crockford32:group=4}", "abcu-efgi", "3"}, // U is none of Crockford's
		{"{id:8:crockford32-lower}", "ABCOEFGL", "abc0efg1"},
		{"INV-{id:6}", "inv 1O O0l 2", "INV-100012"},
		{"INV-{id:6}", "1nv100012", "INV-100012"},
		{"INV-{id:6}", "iMv100012", "1"},
		{"INV-{id:6}", "inv12345", "8"},
		{"INV-{id:6}", "inv 12345 678", "11"},
		{"{id:4:16}", "BEEF", "beef"},
		{"{id:4:16}", "OlIi", "0111"},
		{"{id:4:36}", "beoi", "BEOI"}, // has O and I
		{"{id:4:58}", "bEeF", "bEeF"}, // case tells letters apart
		{"{id:4:58}", "bE0F", "2"},
		{"{id:3+:group=2}", "1234", "12-34"},
		{"{id:2:=a-}", "-A", "-a"}, // hyphen is a digit
		{"{uuid}", "00000000000080008" + strings.ToUpper(strings.ReplaceAll(mustParse(t, "{uuid}").uuidTail(), "-", "")), "00000000-0000-8000-8" + mustParse(t, "{uuid}").uuidTail()},
		{"{yyyy}{MM}-{seq:2}", "2O26l1O1", "202611-01"},
		{"{id:2}", strings.Repeat(" ", 2000), "1024"},
	} {
		c := mustParse(t, tt.spec)
		got, err := c.Normalize(tt.text)
		if e, ok := errors.AsType[*TextError](err); ok {
			got = hapax.ID(e.Pos).String()
		} else if again, err := c.Normalize(got); err != nil || again != got {
			t.Errorf("%s: %q is normalized again to %q, %v", tt.spec, got, again, err)
		}
		if got != tt.want {
			t.Errorf("%s: %q is normalized to %q, %v, want %q", tt.spec, tt.text, got, err, tt.want)
		}
	}
}

func TestSorts(t *testing.T) {
	for _, a := range builtinAlphabets {
		c := mustParse(t, "{id:11:"+a.name+":group=5}")
		rapid.Check(t, func(t *rapid.T) {
			x := rapid.Int64Range(0, int64(c.Max())).Draw(t, "x")
			y := rapid.Int64Range(0, int64(c.Max())).Draw(t, "y")
			if a, b := mustAppend2(t, c, x), mustAppend2(t, c, y); (x < y) != (a < b) {
				t.Fatalf("%d and %d are %s and %s", x, y, a, b)
			}
		})
	}
}

func mustAppend2(t *rapid.T, c *Codec, id int64) string {
	text, err := c.Append(nil, hapax.ID(id))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDisjoint(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"{id:8:crockford32:feistel=k1}", "{id:8:crockford32:feistel=k2}", false},
		{"{key}{id:8:crockford32:feistel=k1}", "{key}{id:8:crockford32:feistel=k2}", true},
		{"{id:8}", "{id:9}", true},
		{"{id:8+}", "{id:9}", false},
		{"A{id:8}", "{id:9}", true},
		{"A{id:8}", "{id:9:36}", false},
		{"{id:4:=abcd}", "{id:4}", true},
		{"{id:8:group=4}", "{id:9}", true},
	} {
		a, b := mustParse(t, tt.a), mustParse(t, tt.b)
		if Disjoint(a, b) != tt.want || Disjoint(b, a) != tt.want {
			t.Errorf("%s and %s: disjoint is %v", tt.a, tt.b, !tt.want)
		}
	}
}

func TestAllocations(t *testing.T) {
	for _, spec := range []string{"INV-{yyyy}{MM}{dd}-{seq:6}{check}", "{zone:UTC}{yyyy}{seq:8:crockford32:feistel:group=4}{check}"} {
		c := mustParse(t, spec)
		p, err := c.Period(epoch)
		if err != nil {
			t.Fatal(err)
		}
		text := mustAppend(t, c, p, 42)
		room := make([]byte, 0, c.MaxLen())
		if n := testing.AllocsPerRun(100, func() {
			_, err1 := c.AppendPeriod(room, p, 42)
			_, id, err2 := c.DecodePeriod(text)
			if err1 != nil || err2 != nil || id != 42 {
				t.Errorf("%v, %v, %d", err1, err2, id)
			}
		}); n >= 1 { // the garbage collector may empty the pool
			t.Errorf("%s: %v allocations", spec, n)
		}
	}
}

func toID(n int) hapax.ID { return hapax.ID(n) }

// TestDocs compares the first table of docs/codes.md with the specs.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/codes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "`") // | `spec` | `text` |
		opts := options()
		opts.Tag = "coupons"
		c, err := Parse(cells[1], opts)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Period(epoch)
		if err != nil {
			t.Fatal(err)
		}
		if got := mustAppend(t, c, p, 428); got != cells[3] {
			t.Errorf("%s shows %s, and the table %s", c, got, cells[3])
		}
		rows++
	}
	if rows < 6 {
		t.Errorf("the table has %d rows", rows)
	}
}
