package driver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// TestKeptRows: a handle remembers as many rows as have room, and those that it used last.
func TestKeptRows(t *testing.T) {
	k := &kept{most: 100 * (slotSize + 110)}
	value := bytes.Repeat([]byte("v"), 100)
	first := k.slot(Key{"t", "first"})
	k.keep(first, held{Cell: Cell{Value: value, Known: true}})
	for i := range 1000 {
		s := k.slot(Key{"t", fmt.Sprintf("%04d", i)})
		k.keep(s, held{Cell: Cell{Value: value, Known: true}})
		if k.slot(Key{"t", "first"}) != first {
			t.Fatalf("after %d others the row that is used all the time is forgotten", i+1)
		}
		if k.bytes > k.most || len(k.slots) != k.used.Len() {
			t.Fatalf("%d bytes of at most %d are kept, of %d rows and %d", k.bytes, k.most, len(k.slots), k.used.Len())
		}
	}
	if n := len(k.slots); n < 90 || n > 110 {
		t.Errorf("%d rows are kept; want about 100", n)
	}
	if s := k.slot(Key{"t", "0999"}); !s.row.Known {
		t.Error("the last row is forgotten")
	}
	if s := k.slot(Key{"t", "0000"}); s.row.Known {
		t.Error("the oldest row is still kept")
	}
	k.keep(first, held{Cell: Cell{Value: bytes.Repeat([]byte("v"), maxValue+1), Known: true}})
	if first.row.Known {
		t.Error("a large row is kept")
	}
	sum := 0
	for _, s := range k.slots {
		sum += s.size
	}
	if sum != k.bytes {
		t.Errorf("the rows take %d bytes; %d are counted", sum, k.bytes)
	}
}

func tags() []Tag {
	full := Tag{Tag: hapax.Tag{
		Name: "t", Kind: hapax.KindSegment, Start: 1, Step: 2, MinStep: 1, MaxStep: 3, Delta: 10, Remainder: 4, Mark: 1<<53 + 1, Token: 7, Extra: "x", Deleted: true,
	}, KeyHash: "0f", Run: 20}
	flake := Tag{Tag: hapax.Tag{Name: "t", Kind: hapax.KindSnowflake, Pool: "p"}}
	all := []Tag{full, flake}
	for _, text := range []string{"", "ü", `"`, `\`, "<&>", "\x00", "a\nb", "\u2028", "\xff", "日本", "~\x7f", strings.Repeat("long ", 300)} {
		full.Extra = text
		all = append(all, full)
	}
	return all
}

// TestTagCodec: a tag's row is what encoding/json makes of it, and is read back without it.
func TestTagCodec(t *testing.T) {
	for _, tag := range tags() {
		want, err := json.Marshal(tagRow{
			tag.Kind, tag.Start, tag.Step, tag.MinStep, tag.MaxStep, tag.Delta, tag.Remainder, tag.Mark, tag.Token, tag.Run, tag.KeyHash, tag.Pool, tag.Extra, tag.Deleted,
		})
		if got := encodeTag(tag); err != nil || string(got) != string(want) {
			t.Errorf("%s; want %s, error %v", got, want, err)
		}
		got, err := decodeTag("t", want)
		if tag.Extra = strings.ToValidUTF8(tag.Extra, "\uFFFD"); err != nil || got != tag {
			t.Errorf("%s is read as %+v, error %v", want, got, err)
		}
	}
	if _, ok := scanTag(encodeTag(tags()[0])); !ok {
		t.Error("a row of the usual form takes encoding/json")
	}
}

// FuzzTagRow: the quick reader takes nothing for another row than encoding/json does.
func FuzzTagRow(f *testing.F) {
	for _, tag := range tags() {
		f.Add(encodeTag(tag))
	}
	for _, raw := range []string{
		`{"kind":"segment","start":01}`, `{"kind":"segment","start":-1}`, `{"kind":"segment","start":0}`, `{"kind":"segment","start":}`, `{"kind":"segment"} `,
		`{"kind":"segment","start":9223372036854775808}`, `{"kind":"segment","start":1,"start":2}`, `{"kind":"segment","start":1.0}`, `{"kind":"a` + "\x01" + `"}`, `{"kind":"segment","start":`,
		`{"kind":"segment","deleted":false}`, `{"kind":"segment","KEY_HASH":"x"}`, "{\"kind\":\"\xff\"}",
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		quick, ok := scanTag(raw)
		if !ok {
			return
		}
		var strict tagRow
		if err := DecodeRow("tags", "t", raw, &strict); err != nil || quick != strict {
			t.Errorf("%q is read as %+v; encoding/json says %+v, error %v", raw, quick, strict, err)
		}
	})
}

func BenchmarkTagRow(b *testing.B) {
	tag := tags()[0]
	raw := encodeTag(tag)
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			encodeTag(tag)
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if _, err := decodeTag("t", raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode strictly", func(b *testing.B) {
		for b.Loop() {
			var r tagRow
			if err := DecodeRow("tags", "t", raw, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
