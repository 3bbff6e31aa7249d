package dubbo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Bounds on requests. One is a few hundred bytes in practice.
const (
	maxDepth   = 32  // how deep values may be nested
	maxClasses = 64  // class definitions in one body
	maxMembers = 256 // fields of one class
)

// The tags of Hessian 2 that stand for a range of bytes begin and end here; the
// others are spelt out where they are read.
const (
	tagString0    = 0x00 // 0x00 to 0x1f: a string of 0 to 31 characters
	tagBinary0    = 0x20 // 0x20 to 0x2f: 0 to 15 bytes
	tagString2    = 0x30 // 0x30 to 0x33: a string of up to 1,023 characters
	tagBinary2    = 0x34 // 0x34 to 0x37: up to 1,023 bytes
	tagLong3      = 0x38 // 0x38 to 0x3f: a long of three bytes
	tagObject0    = 0x60 // 0x60 to 0x6f: an object of one of the first 16 classes
	tagTypedList0 = 0x70 // 0x70 to 0x77: a typed list of 0 to 7 values
	tagList0      = 0x78 // 0x78 to 0x7f: an untyped list of 0 to 7 values
	tagInt1       = 0x80 // 0x80 to 0xbf: an int of one byte
	tagInt2       = 0xc0 // 0xc0 to 0xcf: an int of two bytes
	tagInt3       = 0xd0 // 0xd0 to 0xd7: an int of three bytes
	tagLong1      = 0xd8 // 0xd8 to 0xef: a long of one byte
	tagLong2      = 0xf0 // 0xf0 to 0xff: a long of two bytes
)

var (
	errTruncated = errors.New("the body ends within a value")
	errTooDeep   = fmt.Errorf("values are nested more than %d deep", maxDepth)
)

// A decoder reads the values of one body. It allocates nothing for values that it reads
// but the strings that are asked for: values it has no use for are passed over.
type decoder struct {
	data    []byte
	at      int
	members []int // the number of fields of each class, in the order of definition
}

func (d *decoder) left() int { return len(d.data) - d.at }

// take returns the next n bytes.
func (d *decoder) take(n int) ([]byte, error) {
	if n < 0 || n > d.left() {
		return nil, errTruncated
	}
	b := d.data[d.at : d.at+n]
	d.at += n
	return b, nil
}

func (d *decoder) tag() (byte, error) {
	b, err := d.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// peek returns the next byte, or 0 at the end, where no value begins.
func (d *decoder) peek() byte {
	if d.left() == 0 {
		return 0
	}
	return d.data[d.at]
}

// number reads n bytes, highest first, as a signed number.
func (d *decoder) number(n int) (int64, error) {
	b, err := d.take(n)
	if err != nil {
		return 0, err
	}
	v := int64(int8(b[0]))
	for _, c := range b[1:] {
		v = v<<8 | int64(c)
	}
	return v, nil
}

// compact reads n more bytes of a number whose highest part is in the tag.
func (d *decoder) compact(high int64, n int) (int64, error) {
	b, err := d.take(n)
	if err != nil {
		return 0, err
	}
	for _, c := range b {
		high = high<<8 | int64(c)
	}
	return high, nil
}

// long reads a long, or an int, which Java's readers take for one as well.
func (d *decoder) long() (int64, error) {
	tag, err := d.tag()
	if err != nil {
		return 0, err
	}
	v, ok, err := d.integer(tag)
	if err == nil && !ok {
		err = fmt.Errorf("byte %#02x begins no long", tag)
	}
	return v, err
}

// integer reads the rest of an int or a long, and reports whether the tag begins one.
func (d *decoder) integer(tag byte) (v int64, ok bool, err error) {
	t := int64(tag)
	switch {
	case tag >= tagLong2:
		v, err = d.compact(t-0xf8, 1)
	case tag >= tagLong1:
		v = t - 0xe0
	case tag >= tagInt3:
		v, err = d.compact(t-0xd4, 2)
	case tag >= tagInt2:
		v, err = d.compact(t-0xc8, 1)
	case tag >= tagInt1:
		v = t - 0x90
	case tag >= tagLong3 && tag <= 0x3f:
		v, err = d.compact(t-0x3c, 2)
	case tag == 'I' || tag == 'Y':
		v, err = d.number(4)
	case tag == 'L':
		v, err = d.number(8)
	default:
		return 0, false, nil
	}
	return v, true, err
}

// text reads a string of at most limit bytes. Null is the empty string.
func (d *decoder) text(limit int) (string, error) {
	tag, err := d.tag()
	if err != nil || tag == 'N' {
		return "", err
	}
	start := d.at + headOf(tag)
	plain, err := d.runString(tag)
	switch {
	case err != nil:
		return "", err
	case !plain:
		return "", errors.New("a string in several chunks")
	case d.at-start > limit:
		return "", fmt.Errorf("a string of more than %d bytes", limit)
	}
	return string(d.data[start:d.at]), nil
}

// headOf returns how many bytes of length follow the tag of a string.
func headOf(tag byte) int {
	switch {
	case tag < tagBinary0:
		return 0
	case tag < tagBinary2:
		return 1
	default:
		return 2
	}
}

// runString passes over a string, and reports whether it is one chunk.
func (d *decoder) runString(tag byte) (plain bool, err error) {
	plain = true
	for {
		var chars int64
		switch {
		case tag < tagBinary0:
			chars = int64(tag)
		case tag >= tagString2 && tag < tagBinary2:
			chars, err = d.compact(int64(tag-tagString2), 1)
		case tag == 'R' || tag == 'S':
			chars, err = d.compact(0, 2)
		default:
			return false, fmt.Errorf("byte %#02x begins no string", tag)
		}
		if err == nil {
			err = d.runChars(chars)
		}
		if err != nil || tag != 'R' {
			return plain, err
		}
		plain = false
		if tag, err = d.tag(); err != nil {
			return false, err
		}
	}
}

// runChars passes over characters in UTF-8. Their number counts those beyond 16 bits
// twice, as Java does; most writers spell them as two of three bytes each.
func (d *decoder) runChars(n int64) error {
	for n > 0 {
		c, err := d.tag()
		if err != nil {
			return err
		}
		more, units := 0, int64(1)
		switch {
		case c < 0x80:
		case c >= 0xc0 && c < 0xe0:
			more = 1
		case c >= 0xe0 && c < 0xf0:
			more = 2
		case c >= 0xf0 && c < 0xf8:
			more, units = 3, 2
		default:
			return fmt.Errorf("byte %#02x begins no character", c)
		}
		if _, err := d.take(more); err != nil {
			return err
		}
		n -= units
	}
	return nil
}

// raw passes over one value and returns its bytes.
func (d *decoder) raw() ([]byte, error) {
	start := d.at
	err := d.skip(maxDepth)
	return d.data[start:d.at], err
}

// skip passes over one value, whatever it is.
func (d *decoder) skip(depth int) error {
	if depth == 0 {
		return errTooDeep
	}
	tag, err := d.tag()
	if err != nil {
		return err
	}
	if _, ok, err := d.integer(tag); ok || err != nil {
		return err
	}
	switch {
	case tag < tagBinary0, tag >= tagString2 && tag < tagBinary2, tag == 'R', tag == 'S':
		_, err = d.runString(tag)
		return err
	case tag < tagString2, tag >= tagBinary2 && tag < tagLong3, tag == 'A', tag == 'B':
		return d.skipBinary(tag)
	case tag >= tagTypedList0 && tag < tagList0:
		return d.skipList(true, int64(tag-tagTypedList0), depth)
	case tag >= tagList0 && tag < tagInt1:
		return d.skipList(false, int64(tag-tagList0), depth)
	case tag >= tagObject0 && tag < tagTypedList0:
		return d.skipObject(int64(tag-tagObject0), depth)
	}
	switch tag {
	case 'N', 'T', 'F', '[', '\\': // null, true, false, 0.0, 1.0
		return nil
	case ']': // a double of one byte
		_, err = d.take(1)
	case '^': // of two
		_, err = d.take(2)
	case '_', 'K': // of four; a date in minutes
		_, err = d.take(4)
	case 'D', 'J': // of eight; a date in milliseconds
		_, err = d.take(8)
	case 'Q': // an earlier value once more
		_, err = d.long()
	case 'H', 'M', 'U', 'W': // maps and lists of any length
		return d.skipOpen(tag == 'M' || tag == 'U', depth)
	case 'V', 'X':
		return d.skipSizedList(tag == 'V', depth)
	case 'C':
		if err := d.class(); err != nil {
			return err
		}
		return d.skip(depth - 1) // the object that the definition is for
	case 'O':
		class, err := d.long()
		if err != nil {
			return err
		}
		return d.skipObject(class, depth)
	default:
		return fmt.Errorf("byte %#02x begins no value", tag)
	}
	return err
}

func (d *decoder) skipBinary(tag byte) error {
	for {
		var n int64
		var err error
		switch {
		case tag >= tagBinary0 && tag < tagString2:
			n = int64(tag - tagBinary0)
		case tag >= tagBinary2 && tag < tagLong3:
			n, err = d.compact(int64(tag-tagBinary2), 1)
		case tag == 'A' || tag == 'B':
			n, err = d.compact(0, 2)
		default:
			return fmt.Errorf("byte %#02x begins no binary data", tag)
		}
		if err == nil {
			_, err = d.take(int(n))
		}
		if err != nil || tag != 'A' {
			return err
		}
		if tag, err = d.tag(); err != nil {
			return err
		}
	}
}

// skipType passes over the name of a type, or the number of an earlier one.
func (d *decoder) skipType() error {
	tag, err := d.tag()
	if err != nil {
		return err
	}
	if _, ok, err := d.integer(tag); ok || err != nil {
		return err
	}
	_, err = d.runString(tag)
	return err
}

// skipOpen passes over the values of a map or a list up to its end mark.
func (d *decoder) skipOpen(typed bool, depth int) error {
	if typed {
		if err := d.skipType(); err != nil {
			return err
		}
	}
	// At the end of the body peek returns 0, and skip the error.
	for d.peek() != 'Z' {
		if err := d.skip(depth - 1); err != nil {
			return err
		}
	}
	_, err := d.tag()
	return err
}

func (d *decoder) skipSizedList(typed bool, depth int) error {
	if typed {
		if err := d.skipType(); err != nil {
			return err
		}
	}
	n, err := d.long()
	if err != nil {
		return err
	}
	return d.skipList(false, n, depth)
}

// skipList passes over the n values of a list. Each is a byte at least, so that the body
// bounds them.
func (d *decoder) skipList(typed bool, n int64, depth int) error {
	if typed {
		if err := d.skipType(); err != nil {
			return err
		}
	}
	if n < 0 {
		return fmt.Errorf("a list of %d values", n)
	}
	for range n {
		if err := d.skip(depth - 1); err != nil {
			return err
		}
	}
	return nil
}

// class reads the definition of a class.
func (d *decoder) class() error {
	if err := d.skipType(); err != nil {
		return err
	}
	n, err := d.long()
	switch {
	case err != nil:
		return err
	case n < 0 || n > maxMembers:
		return fmt.Errorf("a class of %d fields; allowed are up to %d", n, maxMembers)
	case len(d.members) == maxClasses:
		return fmt.Errorf("more than %d classes", maxClasses)
	}
	for range n {
		if err := d.skipType(); err != nil {
			return err
		}
	}
	d.members = append(d.members, int(n))
	return nil
}

func (d *decoder) skipObject(class int64, depth int) error {
	if class < 0 || class >= int64(len(d.members)) {
		return fmt.Errorf("an object of class %d, of which there are %d", class, len(d.members))
	}
	for range d.members[class] {
		if err := d.skip(depth - 1); err != nil {
			return err
		}
	}
	return nil
}

// appendLong writes a long in its shortest form.
func appendLong(dst []byte, v int64) []byte {
	switch {
	case v >= -8 && v <= 15:
		return append(dst, byte(v+0xe0))
	case v >= -1<<11 && v < 1<<11:
		return append(dst, byte(v>>8+0xf8), byte(v))
	case v >= -1<<18 && v < 1<<18:
		return append(dst, byte(v>>16+0x3c), byte(v>>8), byte(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		return binary.BigEndian.AppendUint32(append(dst, 'Y'), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 'L'), uint64(v))
	}
}

// appendDate writes an instant in Unix milliseconds as a java.util.Date.
func appendDate(dst []byte, ms int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 'J'), uint64(ms))
}

// appendText writes a string, cut to 1,023 characters. Characters beyond 16 bits
// become question marks: readers differ in how they are to be spelt.
func appendText(dst []byte, s string) []byte {
	const most = 1023
	chars := make([]byte, 0, min(len(s), 3*most))
	n := 0
	for _, r := range s {
		if n == most {
			break
		}
		if r > 0xffff {
			r = '?'
		}
		chars = append(chars, string(r)...)
		n++
	}
	if n < tagBinary0 {
		dst = append(dst, byte(n))
	} else {
		dst = append(dst, byte(tagString2+n>>8), byte(n))
	}
	return append(dst, chars...)
}

// appendObject writes an object of a class whose fields are longs. It is the first
// object of its body.
func appendObject(dst []byte, class string, names []string, values []int64) []byte {
	dst = append(dst, 'C')
	dst = appendText(dst, class)
	dst = append(dst, byte(0x90+len(names))) // an int of one byte
	for _, name := range names {
		dst = appendText(dst, name)
	}
	dst = append(dst, tagObject0)
	for _, v := range values {
		dst = appendLong(dst, v)
	}
	return dst
}
