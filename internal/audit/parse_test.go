package audit

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
)

// told is what reading a text gave: numbers, and lines that hold none, each with
// its line.
type told struct {
	Numbers []at
	Invalid []int64
	Broken  string
}

type at struct {
	ID   hapax.ID
	Line int64
}

// read reads one text as standard input, in blocks of a size.
func read(t contextual, text string, size int, opts Options) told {
	a, err := newAudit([]string{"-"}, iotest.DataErrReader(strings.NewReader(text)), opts)
	if err != nil {
		t.Fatal(err)
	}
	a.blockSize, a.cores = size, 1
	var got told
	invalid := func(_ int, line int64, _ []byte) { got.Invalid = append(got.Invalid, line) }
	r := &reader{stdin: a.stdin, invalid: func(int, int64, []byte) {}, broken: func(_ int, _ int64, err error) { got.Broken = err.Error() }}
	var fromReader []int64
	r.invalid = func(_ int, line int64, _ []byte) { fromReader = append(fromReader, line) }
	err = a.readAll(t.Context(), r, func(blocks <-chan *block, done func(*block)) error {
		s := scanner{
			number:  func(key uint64, line int64) { got.Numbers = append(got.Numbers, at{idOf(key), line}) },
			invalid: func(line int64, text []byte) { invalid(0, line, text) },
		}
		for b := range blocks {
			if err := s.scan(b); err != nil {
				return err
			}
			done(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got.Invalid = append(got.Invalid, fromReader...)
	slices.Sort(got.Invalid)
	return got
}

// reference reads text in the plainest way.
func reference(text string, size int) (want told) {
	text = strings.TrimPrefix(text, "\uFEFF")
	all := strings.Split(text, "\n")
	for i, line := range all {
		trimmed := strings.TrimSpace(line)
		most := size - 1 // and a newline
		if i == len(all)-1 {
			most = size
		}
		id, err := hapax.ParseID(trimmed)
		switch {
		case len(line) > most || trimmed != "" && err != nil:
			want.Invalid = append(want.Invalid, int64(i+1))
		case trimmed != "":
			want.Numbers = append(want.Numbers, at{id, int64(i + 1)})
		}
	}
	return want
}

var lines = []string{
	"0", "-0", "00", "7", "-7", "+7", "07", "-07", "123456789", "12345678", "1234567", "1234567890123456", "12345678901234567",
	"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615",
	"18446744073709551616", "99999999999999999999", "123456789012345678901234", "-", "", " ", "\t5", "5 ", " 5 6 ", "5,6", "1e3", "0x10",
	"１２", "1_000", "5\x00", "\x00", "\xff\xfe", "NULL", "\"5\"", "5\r", "\r", "5\r\r", "5\rx", "--5", "5-", strings.Repeat("9", 100), strings.Repeat(" ", 70) + "5",
}

// Every line alone, and behind and before another, is read as the plain way reads
// it, whatever the size of the blocks.
func TestTextLines(t *testing.T) {
	for _, a := range lines {
		for _, b := range lines {
			for _, text := range []string{a + "\n" + b, a + "\n" + b + "\n", a + "\r\n" + b + "\r\n"} {
				size := 64 + len(text)
				if got, want := read(t, text, size, Options{}), reference(text, size); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%q gave %v, want %v", text, got, want)
				}
			}
		}
	}
}

func TestTextProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.OneOf(
			rapid.SampledFrom(lines),
			rapid.Map(rapid.Int64(), func(v int64) string { return strconv.FormatInt(v, 10) }),
			rapid.String(),
		)).Draw(t, "lines"), rapid.SampledFrom([]string{"\n", "\r\n", "\n\n"}).Draw(t, "end"))
		size := rapid.IntRange(24, 200).Draw(t, "size")
		if got, want := read(t, text, size, Options{}), reference(text, size); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q in blocks of %d gave %v, want %v", text, size, got, want)
		}
	})
}

// What a writer of CSV writes is read back.
func TestCSVProperty(t *testing.T) {
	cell := rapid.OneOf(rapid.StringMatching(`[a-z ,"\n0-9]{0,8}`), rapid.Just(""), rapid.Just("12"))
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 4).Draw(t, "columns")
		column := rapid.IntRange(0, columns-1).Draw(t, "column")
		separator := rapid.SampledFrom([]rune{',', ';', '\t'}).Draw(t, "separator")
		header := make([]string, columns)
		for i := range header {
			header[i] = fmt.Sprintf("c%d", i)
		}
		var text bytes.Buffer
		w := csv.NewWriter(&text)
		w.Comma = separator
		w.UseCRLF = rapid.Bool().Draw(t, "CRLF")
		opts := Options{Column: strconv.Itoa(column + 1), Separator: byte(separator)}
		if rapid.Bool().Draw(t, "named") {
			opts.Column = header[column]
			w.Write(header)
		}
		var want told
		for range rapid.IntRange(0, 20).Draw(t, "records") {
			w.Flush()
			line := int64(bytes.Count(text.Bytes(), newline)) + 1
			record := rapid.SliceOfN(cell, columns, columns).Draw(t, "record")
			if rapid.Bool().Draw(t, "number") {
				record[column] = strconv.FormatInt(rapid.Int64().Draw(t, "id"), 10)
			}
			w.Write(record)
			id, err := hapax.ParseID(strings.TrimSpace(record[column]))
			switch {
			case err == nil:
				want.Numbers = append(want.Numbers, at{id, line})
			case columns > 1 || record[0] != "": // an empty line is no record
				want.Invalid = append(want.Invalid, line)
			}
		}
		w.Flush()
		size := rapid.IntRange(200, 400).Draw(t, "size")
		if got := read(t, text.String(), size, opts); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q, column %s, in blocks of %d gave %v, want %v", text.String(), opts.Column, size, got, want)
		}
	})
}

func TestCSV(t *testing.T) {
	for _, test := range []struct {
		name, text, column string
		want               string
	}{
		{"spaces", " 1 , 2 \n3,\t4\n", "2", "{[{2 1} {4 2}] [] }"},
		{"quoted", "\"1\",\"2\"\n", "2", "{[{2 1}] [] }"},
		{"short record", "1,2\n3\n", "2", "{[{2 1}] [2] }"},
		{"quoted newline", "\"a\nb\",2\nx,3\n", "2", "{[{2 1} {3 3}] [] }"},
		{"quote within a field", "5\" disk,2\nx,3\n", "2", "{[{2 1} {3 2}] [] }"},
		{"text behind a quote", "\"a\"b,2\nx,3\n", "2", "{[{2 1} {3 2}] [] }"},
		{"quotes that do not end", "x,1\n\"x,2\nx,3\nx,4\n", "2", "{[{1 1} {3 3} {4 4}] [2] }"},
		{"empty lines", "\n1,2\r\n\r\n", "2", "{[{2 2}] [] }"},
		{"header only", "a,id", "id", "{[] [] }"},
		{"nothing", "", "id", "{[] [] }"},
		{"mark of UTF-8", "\uFEFFid\n5\n", "id", "{[{5 2}] [] }"},
		{"quoted header", "\"x\",\"id\"\n1,2\n", "id", "{[{2 2}] [] }"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, size := range []int{16, 64, blockSize} {
				if got := fmt.Sprint(read(t, test.text, size, Options{Column: test.column})); got != test.want {
					t.Errorf("in blocks of %d: %s, want %s", size, got, test.want)
				}
			}
		})
	}
}

func FuzzText(f *testing.F) {
	f.Add(strings.Join(lines, "\n"), uint8(0))
	f.Add(strings.Join(lines, "\r\n"), uint8(100))
	f.Add("0"+strings.Repeat(" ", 23), uint8(0)) // just fits, without a newline
	f.Fuzz(func(t *testing.T, text string, more uint8) {
		if strings.HasPrefix(text, "\x1f\x8b") {
			t.Skip("gzip")
		}
		size := 24 + int(more)
		if got, want := read(t, text, size, Options{}), reference(text, size); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q in blocks of %d gave %v, want %v", text, size, got, want)
		}
	})
}

// However broken a CSV is, each line is read or reported, and the size of the
// blocks makes no difference unless a record is longer.
func FuzzCSV(f *testing.F) {
	f.Add("a,\"b\n\",1\n", uint8(2))
	f.Add("\"\"\"\n\"a\"\"b\",\n", uint8(1))
	f.Fuzz(func(t *testing.T, text string, column uint8) {
		if strings.HasPrefix(text, "\x1f\x8b") || len(text) > 1<<16 {
			t.Skip()
		}
		opts := Options{Column: strconv.Itoa(int(column%4) + 1)}
		got, want := read(t, text, len(text)+64, opts), read(t, text, blockSize, opts)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q gave %v, and %v in larger blocks", text, got, want)
		}
		read(t, text, 16, opts)
	})
}

// contextual is a test, a benchmark or a property.
type contextual interface {
	Context() context.Context
	Fatal(args ...any)
}
