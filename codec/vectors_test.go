package codec

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew; frozen codes depend on it, so only add to it")

// vectors are known answers for every part, for whoever writes a codec in
// another language. Numbers are strings, because JavaScript loses large ones.
type vectors struct {
	Keys      map[string]string `json:"keys"` // by ID, in hexadecimal
	Alphabets map[string]string `json:"alphabets"`
	Checks    []checkVector     `json:"checks"`
	Mixers    []mixerVector     `json:"mixers"`
	Codes     []codeVector      `json:"codes"`
	Refused   []refusedVector   `json:"refused"`
}

type checkVector struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`   // of the alphabet
	Values []int  `json:"values"` // of the digits
	Sum    int    `json:"sum"`
}

type mixerVector struct {
	Name  string      `json:"name"` // feistel, multiply or reverse
	Key   string      `json:"key,omitempty"`
	Tag   string      `json:"tag,omitempty"`
	Tweak string      `json:"tweak,omitempty"`
	N     string      `json:"n"`
	Pairs [][2]string `json:"pairs"`
}

type codeVector struct {
	Spec  string     `json:"spec"`
	Tag   string     `json:"tag"`
	Cases []codeCase `json:"cases"`
}

type codeCase struct {
	Period string `json:"period"`
	Number string `json:"number"`
	Text   string `json:"text"`
}

type refusedVector struct {
	Spec  string `json:"spec"`
	Tag   string `json:"tag"`
	Text  string `json:"text"`
	Pos   int    `json:"pos"`
	Check bool   `json:"check"` // only the check characters do not fit
}

var vectorSpecs = []string{
	"{id:6}", "{id:19}", "{id:3+}", "{id:8:16}", "{id:8:crockford32:group=4}{check}",
	"{id:13:crockford32}{check}", "{id:8:36}{check}", "{id:6:58}{check}", "{id:6:62}{check}", "{id:8:16}{check}", "{id:8:16}{check:gf}",
	"{id:9}{check}", "{id:9}{check:luhn}", "{id:9}{check:mod97}", "{id:9}{check:iso7064}",
	"{id:6:=acdefhjkmnprtwxy}{check}", "{id:63:=01}", "{id:5:=ab-}",
	"{id:8:crockford32:feistel=k1:group=4}{check}", "{key}-{id:6:58:feistel=k2}", "{id:4+:crockford32:feistel=k1}", "{id:5:feistel=k1}",
	"{id:19:feistel=k1}", "{id:8:crockford32:multiply}", "{id:6:multiply}", "{id:2+:36:multiply}", "{id:13:crockford32:reverse}", "{id:8:16:reverse}",
	"{type:user}{id:13:crockford32-lower}", "{uuid}", "{uuid:feistel=k1}", "{uuid:base32}", "{type:user}{uuid:base32:multiply}", "{{{id:3}}}№",
	"{zone:Europe/Berlin}INV-{yyyy}{MM}{dd}-{seq:6}{check}", "{zone:UTC}{yy}{Q}-{seq:3+:36}{check}", "{zone:UTC}{GGGG}-W{ww}-{seq:4}",
	"{zone:UTC}{dd}.{MM}.{yyyy} {HH}/{seq:4:crockford32:feistel=k1}{check}", "{zone:UTC}{fiscal:04}{yyyy}{Q}{MM}{seq:2+:multiply}",
	"{zone:America/New_York}{fiscal:10:end}FY{yyyy}/{seq:5:feistel=k1}",
	"{id:8:crockford32:feistel=k2}{check:gf}", "{id:8:16:multiply}{check:gf}",
}

// numbersBelow returns small, large and some other numbers up to a limit.
func numbersBelow(random *rand.Rand, last uint64) []uint64 {
	all := []uint64{0, 1, 2, 9, 10, 99, 100, 999, 1000, 46_655, 1 << 20, 123_456_789, 1 << 53, last - 1, last}
	for range 4 {
		all = append(all, random.Uint64N(last+1))
	}
	var fit []uint64
	for _, x := range all {
		if x <= last {
			fit = append(fit, x)
		}
	}
	return fit
}

func decimalOf(x uint64) string { return strconv.FormatUint(x, 10) }

func makeVectors(t *testing.T) vectors {
	random := rand.New(rand.NewPCG(15, 2026))
	v := vectors{Keys: map[string]string{}, Alphabets: map[string]string{}}
	for id, key := range keys {
		v.Keys[id] = hex.EncodeToString(key)
	}
	for _, a := range builtinAlphabets {
		v.Alphabets[a.name] = a.chars
	}
	for i := range checks {
		for size := minAlphabet; size <= maxAlphabet; size++ {
			c := &checks[i]
			if !c.fits(size) || c.name == checkISO && size != 2 && size != 10 && size != 26 && size != 36 && size != 58 && size != 62 {
				continue
			}
			for _, length := range []int{1, 2, 7, 14} {
				word, values := make([]uint8, length), make([]int, length)
				for j := range word {
					values[j] = random.IntN(size)
					word[j] = uint8(values[j])
				}
				v.Checks = append(v.Checks, checkVector{c.name, size, values, c.sum(word, size)})
			}
		}
	}
	for _, n := range []uint64{2, 3, 10, 1000, 100_000, smallDomain - 1, smallDomain, 1e9 + 7, 1 << 40, 1e15, 1<<62 + 1, maxNumbers} {
		mixers := []mixerVector{
			{Name: "feistel", Key: "k1", Tag: "orders"},
			{Name: "feistel", Key: "k2", Tag: "订单", Tweak: "2026112113"},
			{Name: "multiply"},
		}
		if n&(n-1) == 0 {
			mixers = append(mixers, mixerVector{Name: "reverse"})
		}
		for _, m := range mixers {
			var tweak uint64
			var mix mixer
			switch m.Name {
			case "feistel":
				if m.Tweak != "" {
					tweak = 2026112113
				}
				mix = newFeistel(keys[m.Key], m.Tag, m.Key, n)
			case "multiply":
				mix = newMultiplication(n)
			default:
				k := 0
				for n>>k > 1 {
					k++
				}
				mix = reversal{k}
			}
			m.N = decimalOf(n)
			for _, x := range numbersBelow(random, n-1) {
				m.Pairs = append(m.Pairs, [2]string{decimalOf(x), decimalOf(mix.mix(x, tweak))})
			}
			v.Mixers = append(v.Mixers, m)
		}
	}
	for _, spec := range vectorSpecs {
		c := mustParse(t, spec)
		if c.String() != spec && !strings.HasSuffix(spec, "{check}") { // as specs were frozen before gf was named
			t.Errorf("%s is not canonical, which is %s", spec, c)
		}
		code := codeVector{Spec: spec, Tag: "orders"}
		instants := []string{"2026-11-21T12:00:00Z"}
		if c.Unit() != None {
			instants = append(instants, "2026-01-01T00:30:00Z", "2024-02-29T23:59:59Z")
		}
		for _, at := range instants {
			p, err := c.Period(utc(at))
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range numbersBelow(random, uint64(c.Max())) {
				code.Cases = append(code.Cases, codeCase{p.String(), decimalOf(id), mustAppend(t, c, p, hapax.ID(id))})
			}
		}
		v.Codes = append(v.Codes, code)
		// One changed character and one that is missing.
		text := []byte(code.Cases[len(code.Cases)-1].Text)
		for i := range text {
			wrong := bytes.Clone(text)
			wrong[i] ^= 1
			refuse(t, &v, spec, string(wrong))
		}
		refuse(t, &v, spec, string(text[:len(text)-1]))
		refuse(t, &v, spec, "")
	}
	return v
}

// refuse adds a text if the codec refuses it and it is ASCII, whose positions
// are the same in all languages.
func refuse(t *testing.T, v *vectors, spec, text string) {
	for i := range len(text) {
		if text[i] > '~' {
			return
		}
	}
	_, _, err := mustParse(t, spec).DecodePeriod(text)
	if e, ok := errors.AsType[*TextError](err); ok {
		v.Refused = append(v.Refused, refusedVector{spec, "orders", text, e.Pos, e.Check})
	}
}

// TestVectors compares the committed vectors with the code's results.
func TestVectors(t *testing.T) {
	path := filepath.Join("testdata", "vectors.json")
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(makeVectors(t)); err != nil {
		t.Fatal(err)
	}
	// A line for each entry: small, and readable where it changes.
	text := bytes.ReplaceAll(buf.Bytes(), []byte("},{"), []byte("},\n{"))
	text = bytes.ReplaceAll(text, []byte(":[{"), []byte(":[\n{"))
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("%s differs from what the code computes; codes that are out there would not be decoded any more", path)
	}
}

// TestVectorsDecode reads the committed texts, whatever makeVectors does.
func TestVectorsDecode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Codes) < 30 || len(v.Refused) < 100 {
		t.Fatalf("%d specs, %d refused", len(v.Codes), len(v.Refused))
	}
	for _, code := range v.Codes {
		c := mustParse(t, code.Spec)
		for _, tt := range code.Cases {
			p, id, err := c.DecodePeriod(tt.Text)
			if err != nil || p.String() != tt.Period || id.String() != tt.Number {
				t.Errorf("%s: %q is %d of %s, %v, want %s of %s", c, tt.Text, id, p, err, tt.Number, tt.Period)
			}
		}
	}
}
