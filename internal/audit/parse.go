package audit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"

	"github.com/hapax-id/hapax"
)

// A key is a number with its sign bit turned over, so that keys have the order
// of their numbers.
const signBit = 1 << 63

func keyOf(id hapax.ID) uint64 { return uint64(id) ^ signBit }
func idOf(key uint64) hapax.ID { return hapax.ID(key ^ signBit) }

// slack is how many bytes must be readable behind a text for parseKey, which
// reads eight at a time.
const slack = 8

var powers = [8]uint64{1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000}

// parseKey reads the number that text[i:] begins with, and returns its key and
// where it ends. It accepts exactly what hapax.ParseID accepts, followed by
// anything but a digit. The text has slack bytes behind the number's end.
func parseKey(text []byte, i int) (key uint64, end int, ok bool) {
	var negative uint64
	if text[i] == '-' {
		negative = 1
		i++
	}
	start := i
	var v uint64
	for {
		// A digit becomes its value; the first byte that is none gets its high
		// bit set. Bytes behind that one do not matter.
		x := binary.LittleEndian.Uint64(text[i:]) ^ 0x3030303030303030
		n := bits.TrailingZeros64((x+0x7676767676767676|x)&0x8080808080808080) / 8
		if n == 8 {
			v = v*100_000_000 + eightDigits(x)
			if i += 8; i-start > 19 {
				return 0, i, false
			}
			continue
		}
		v = v*powers[n] + eightDigits(x<<(64-8*n))
		i += n
		break
	}
	n := i - start
	// Nineteen digits fit 64 bits without a sign.
	if n == 0 || n > 19 || v > signBit-1+negative || text[start] == '0' && (n > 1 || negative == 1) {
		return 0, i, false
	}
	if negative == 1 {
		v = -v
	}
	return v ^ signBit, i, true
}

// eightDigits joins eight digits, the first in the lowest byte.
func eightDigits(x uint64) uint64 {
	x = x*10 + x>>8
	return (x&0x000000FF000000FF*0x000F424000000064 + x>>16&0x000000FF000000FF*0x0000271000000001) >> 32
}

// parseField reads a whole text as a number, white space around it left aside.
// The array that the text lies in has slack bytes behind it.
func parseField(text []byte) (key uint64, ok bool) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return 0, false
	}
	key, end, ok := parseKey(text[:len(text)+slack], 0)
	return key, ok && end == len(text)
}

// A form tells how numbers stand in a file.
type form struct {
	csv       bool
	separator byte
	column    int // counted from 0
}

// A scanner takes blocks apart. The functions are called with the line that a
// number or a text stands in.
type scanner struct {
	keys    []uint64                     // collected until full; nil: number is asked about each
	flush   func(keys []uint64) error    // takes the keys when they are as many as their capacity
	number  func(key uint64, line int64) // takes each key, instead
	invalid func(line int64, text []byte)
	taken   int64 // how many keys were
}

func (s *scanner) take(key uint64, line int64) error {
	s.taken++
	if s.number != nil {
		s.number(key, line)
		return nil
	}
	s.keys = append(s.keys, key)
	if len(s.keys) < cap(s.keys) {
		return nil
	}
	err := s.flush(s.keys)
	s.keys = s.keys[:0]
	return err
}

// scan goes through a block.
func (s *scanner) scan(b *block) error {
	if b.form.csv {
		return s.scanCSV(b)
	}
	return s.scanText(b)
}

// objectKeys reads a line of JSON, as the command and the servers print numbers: an
// object with id, or ids.
func objectKeys(line []byte) (keys []uint64, ok bool) {
	var object struct {
		ID  *hapax.ID   `json:"id"`
		IDs []*hapax.ID `json:"ids"`
	}
	if len(line) == 0 || line[0] != '{' || json.Unmarshal(line, &object) != nil {
		return nil, false
	}
	if object.ID != nil {
		object.IDs = append(object.IDs, object.ID)
	}
	for _, id := range object.IDs {
		if id == nil {
			return nil, false
		}
		keys = append(keys, keyOf(*id))
	}
	return keys, len(keys) > 0
}

// scanText reads the numbers of each line. Empty lines are skipped.
func (s *scanner) scanText(b *block) error {
	text := b.text[:len(b.text)+slack]
	line := b.line - 1
	for i := 0; i < len(b.text); {
		line++
		key, end, ok := parseKey(text, i)
		if ok && text[end] == '\r' {
			end++
		}
		if !ok || text[end] != '\n' {
			end = i + bytes.IndexByte(text[i:], '\n')
			field := text[i:end]
			if key, ok = parseField(field); !ok {
				i = end + 1
				field = bytes.TrimSpace(field)
				keys, ok := objectKeys(field)
				if !ok && len(field) > 0 {
					s.invalid(line, field)
				}
				for _, key := range keys {
					if err := s.take(key, line); err != nil {
						return err
					}
				}
				continue
			}
		}
		i = end + 1
		if err := s.take(key, line); err != nil {
			return err
		}
	}
	return nil
}

// scanCSV reads the column of each record. Empty lines are skipped.
func (s *scanner) scanCSV(b *block) error {
	line := b.line
	for i := 0; i < len(b.text); {
		end := i + recordEnd(b.text[i:], b.form.separator)
		record := b.text[i : end-1]
		at := line
		line += int64(bytes.Count(b.text[i:end], newline))
		i = end
		record = bytes.TrimSuffix(record, []byte{'\r'})
		if len(record) == 0 {
			continue
		}
		field, found := fieldOf(record, b.form)
		key, ok := parseField(field)
		if !found || !ok {
			if !found {
				field = record
			}
			s.invalid(at, field)
			continue
		}
		if err := s.take(key, at); err != nil {
			return err
		}
	}
	return nil
}

var newline = []byte{'\n'}

// recordEnd returns where the first record of the text ends, behind its newline,
// or -1 if it does not end. A newline between quotes belongs to the field; only
// quotes that a field begins with count.
func recordEnd(text []byte, separator byte) int {
	end := bytes.IndexByte(text, '\n')
	if end < 0 {
		return -1
	}
	if bytes.IndexByte(text[:end], '"') < 0 {
		return end + 1
	}
	for i := 0; i < len(text); {
		i = fieldEnd(text, i, separator)
		if i < len(text) && text[i] == '\n' {
			return i + 1
		}
		i++
	}
	return -1
}

// fieldEnd returns where the field that begins at text[i] ends: at a separator, a
// newline, or the end of the text.
func fieldEnd(text []byte, i int, separator byte) int {
	if i < len(text) && text[i] == '"' {
		for i++; i < len(text); i++ {
			if text[i] != '"' {
				continue
			}
			if i++; i == len(text) || text[i] != '"' {
				break
			}
		}
	}
	for i < len(text) && text[i] != separator && text[i] != '\n' {
		i++
	}
	return i
}

// fieldOf returns the column of a record, without the quotes around it.
func fieldOf(record []byte, f form) (field []byte, found bool) {
	for i, column := 0, 0; i <= len(record); column++ {
		end := fieldEnd(record, i, f.separator)
		if column == f.column {
			return unquote(record[i:end]), true
		}
		i = end + 1
	}
	return nil, false
}

func unquote(field []byte) []byte {
	if n := len(field); n >= 2 && field[0] == '"' && field[n-1] == '"' {
		return field[1 : n-1]
	}
	return field
}
