package codec

import (
	"crypto/sha256"
	"encoding/binary"
)

// A uuidForm shows a number as a UUID of version 8 (RFC 9562): its 63 bits from
// the highest bit down, around the version and the variant, then 59 bits that
// tell the tag. UUIDs of one tag sort as their numbers do.
type uuidForm struct {
	mark   uint64 // the tag's 59 bits
	base32 bool   // 26 characters, as in a TypeID
}

const (
	uuidLen    = len("00000000-0000-8000-8000-000000000000")
	base32Len  = 26
	markBits   = 59
	lowBits    = 3 // of the number, above the mark
	midBits    = 12
	uuidDashes = 1<<8 | 1<<13 | 1<<18 | 1<<23
)

// newUUIDForm marks UUIDs with the first bits of SHA-256 of the tag.
func newUUIDForm(tag string, base32 bool) *uuidForm {
	sum := sha256.Sum256([]byte("hapax uuid 1" + tag))
	return &uuidForm{mark: binary.BigEndian.Uint64(sum[:8]) >> (64 - markBits), base32: base32}
}

func (u *uuidForm) length() int {
	if u.base32 {
		return base32Len
	}
	return uuidLen
}

func (u *uuidForm) alphabet() *alphabet {
	if u.base32 {
		return lowerBase
	}
	return hexLower
}

// bits returns the UUID of a number.
func (u *uuidForm) bits(shown uint64) (hi, lo uint64) {
	hi = shown>>(midBits+lowBits)<<16 | 8<<midBits | shown>>lowBits&(1<<midBits-1)
	lo = 0b10<<62 | shown&(1<<lowBits-1)<<markBits | u.mark
	return hi, lo
}

func (u *uuidForm) append(dst []byte, shown uint64) []byte {
	hi, lo := u.bits(shown)
	step, digits := 4, 32
	if u.base32 {
		step, digits = 5, base32Len
	}
	chars := u.alphabet().chars
	for i := range digits {
		if !u.base32 && (i == 8 || i == 12 || i == 16 || i == 20) {
			dst = append(dst, separator)
		}
		shift := (digits - 1 - i) * step
		// 26 digits of base32 have two bits more than a UUID: the first one stands for three.
		v := hi >> max(shift-64, 0)
		if shift < 64 {
			v = lo>>shift | hi<<(64-shift)
		}
		dst = append(dst, chars[v&(1<<step-1)])
	}
	return dst
}

// read takes the number's bits and compares the text with that of the number,
// which finds everything that does not belong there.
func (u *uuidForm) read(text string, pos int) (uint64, error) {
	text = text[:pos+u.length()]
	a := u.alphabet()
	step := uint(4)
	if u.base32 {
		step = 5
	}
	var hi, lo uint64
	for i := pos; i < len(text); i++ {
		if !u.base32 && uuidDashes>>(i-pos)&1 == 1 {
			if text[i] != separator {
				return 0, textError(text, i, `"-"`)
			}
			continue
		}
		v := a.values[text[i]]
		if v < 0 {
			return 0, textError(text, i, "a character of "+a.chars)
		}
		// Two bits that a first digit may have too many fall out here, and show in the comparison below.
		hi = hi<<step | lo>>(64-step)
		lo = lo<<step | uint64(v)
	}
	shown := hi>>16<<(midBits+lowBits)&(maxNumbers-1) | hi&(1<<midBits-1)<<lowBits | lo>>markBits&(1<<lowBits-1)
	var room [uuidLen]byte
	for i, want := range u.append(room[:0], shown) {
		if text[pos+i] != want {
			return 0, textError(text, pos+i, "the UUID of a number of this tag, which has "+string(want)+" there")
		}
	}
	return shown, nil
}
