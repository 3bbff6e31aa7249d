package respapi

import "strconv"

// The replies, appended to dst. RESP2 has no maps and no null of its own.

func appendSimple(dst []byte, text string) []byte {
	dst = append(dst, '+')
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// maxErrorText is how many bytes of an error's text are sent.
const maxErrorText = 1024

// appendError appends an error, on one line whatever the text holds.
func appendError(dst []byte, text string) []byte {
	dst = append(dst, '-')
	for i := range min(len(text), maxErrorText) {
		c := text[i]
		if c < ' ' || c == 0x7f {
			c = ' '
		}
		dst = append(dst, c)
	}
	return append(dst, '\r', '\n')
}

func appendInt(dst []byte, v int64) []byte {
	dst = append(dst, ':')
	dst = strconv.AppendInt(dst, v, 10)
	return append(dst, '\r', '\n')
}

// maxSafe is the largest integer that a client keeps whole which has floating point
// numbers alone.
const maxSafe = 1<<53 - 1

func isSafe(v int64) bool { return -maxSafe <= v && v <= maxSafe }

// appendNumber appends a number as a bulk string or as an integer.
func appendNumber(dst []byte, v int64, text bool) []byte {
	if !text {
		return appendInt(dst, v)
	}
	var digits [20]byte
	return appendBulk(dst, strconv.AppendInt(digits[:0], v, 10))
}

func appendBulk[T string | []byte](dst []byte, text T) []byte {
	dst = appendHeader(dst, '$', len(text))
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// appendText appends a text for people to read.
func appendText(dst []byte, text string, resp3 bool) []byte {
	if !resp3 {
		return appendBulk(dst, text)
	}
	dst = appendHeader(dst, '=', len(text)+4)
	dst = append(dst, "txt:"...)
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

func appendArray(dst []byte, n int) []byte { return appendHeader(dst, '*', n) }

// appendMap begins a map of n pairs, which RESP2 has as an array of 2n.
func appendMap(dst []byte, n int, resp3 bool) []byte {
	if resp3 {
		return appendHeader(dst, '%', n)
	}
	return appendHeader(dst, '*', 2*n)
}

func appendNull(dst []byte, resp3 bool) []byte {
	if resp3 {
		return append(dst, "_\r\n"...)
	}
	return append(dst, "$-1\r\n"...)
}

func appendHeader(dst []byte, kind byte, n int) []byte {
	dst = append(dst, kind)
	dst = strconv.AppendInt(dst, int64(n), 10)
	return append(dst, '\r', '\n')
}
