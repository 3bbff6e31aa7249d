package respapi

import (
	"bytes"
	"strconv"
	"strings"
)

// A protocolError ends a connection, after its text was sent.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

// The errors of frames, in the words of Redis where it has some.
const (
	errArgCount    = protocolError("invalid multibulk length")
	errArgLength   = protocolError("invalid bulk length")
	errNoArg       = protocolError("expected '$'")
	errTLS         = protocolError("TLS is not spoken here")
	errNoCommand   = protocolError("expected '*' before '$'")
	errNoEnd       = protocolError("expected CRLF after a bulk string")
	errTooSlow     = protocolError("the rest of a command did not come in time")
	errTooBig      = protocolError("too big request, allowed are 65536 bytes")
	errTooBigYet   = protocolError("too big request before AUTH, allowed are 4096 bytes")
	errHalves      = protocolError("too many connections have sent half a command")
	errQuotes      = protocolError("unbalanced quotes in request")
	errHTTP        = protocolError("this is not an HTTP server") // never sent
	lengthDigits   = 10                                          // enough for every length that is allowed
	unknownOutcome = -1
)

// parse takes one command off the front of buf: an array of bulk strings, or an
// inline command of one line. It returns the command's arguments, appended to
// args, and how many bytes it has: 0 if it is not all there yet. A command without
// arguments is to be skipped. The arguments of an array are parts of buf.
//
// Nothing is allocated for data that a frame only announces: an array's arguments are
// appended as they come, and none of more than MaxFrame bytes is waited for.
func parse(buf []byte, args [][]byte) ([][]byte, int, error) {
	if len(buf) == 0 {
		return args, 0, nil
	}
	switch buf[0] {
	case '*':
	case '$': // no command begins so, and what comes after it is out of step
		return args, 0, errNoCommand
	case tlsHandshake:
		return args, 0, errTLS
	default:
		return parseInline(buf, args)
	}
	count, pos := parseLength(buf[1:])
	switch {
	case pos == 0:
		return args, 0, nil
	case pos == unknownOutcome, count > MaxArgs:
		return args, 0, errArgCount
	}
	pos++
	for range count {
		if pos == len(buf) {
			return args, 0, tooBig(buf)
		}
		if buf[pos] != '$' {
			return args, 0, errNoArg + protocolError(", got "+strconv.QuoteRune(rune(buf[pos])))
		}
		size, n := parseLength(buf[pos+1:])
		switch {
		case n == 0:
			return args, 0, tooBig(buf)
		case n == unknownOutcome, size < 0, size > MaxFrame:
			return args, 0, errArgLength
		}
		pos += 1 + n
		end := pos + size
		if end+2 > MaxFrame {
			return args, 0, errTooBig
		}
		if end+2 > len(buf) {
			if end < len(buf) && buf[end] != '\r' {
				return args, 0, errNoEnd
			}
			return args, 0, nil
		}
		if buf[end] != '\r' || buf[end+1] != '\n' {
			return args, 0, errNoEnd
		}
		// Capped, so that nothing that is appended to it runs into the next one.
		args = append(args, buf[pos:end:end])
		pos = end + 2
	}
	return args, pos, nil
}

// tooBig refuses to wait for the rest of a command that has begun with buf.
func tooBig(buf []byte) error {
	if len(buf) >= MaxFrame {
		return errTooBig
	}
	return nil
}

// parseLength reads a decimal number and the CRLF after it, and returns how many
// bytes they are: 0 if there must be more, or unknownOutcome if that is no number
// or one of more than lengthDigits digits. Every negative number is -1.
func parseLength(b []byte) (v, n int) {
	i := 0
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		i = 1
	}
	first := i
	for ; i < len(b) && '0' <= b[i] && b[i] <= '9'; i++ {
		if i-first == lengthDigits {
			return 0, unknownOutcome
		}
		v = 10*v + int(b[i]-'0')
	}
	switch {
	case i == len(b):
		return 0, 0
	case b[i] != '\r' || i == first:
		return 0, unknownOutcome
	case i+1 == len(b):
		return 0, 0
	case b[i+1] != '\n':
		return 0, unknownOutcome
	}
	if negative {
		v = -1
	}
	return v, i + 2
}

// parseInline takes a command that is a line of words, as people type it.
func parseInline(buf []byte, args [][]byte) ([][]byte, int, error) {
	end := bytes.IndexByte(buf[:min(len(buf), MaxFrame)], '\n')
	if end < 0 {
		if len(buf) >= MaxFrame {
			return args, 0, protocolError("too big inline request")
		}
		return args, 0, nil
	}
	args, err := splitLine(bytes.TrimSuffix(buf[:end], []byte{'\r'}), args)
	if err != nil {
		return args, 0, err
	}
	if isHTTP(args) {
		return args, 0, errHTTP
	}
	return args, end + 1, nil
}

// tlsHandshake begins a client's first record of TLS, and no command. A page that has a
// browser open https to loopback chooses what stands in it, with lines among it that are
// commands.
const tlsHandshake = 0x16

// isHTTP reports whether a line is the first of an HTTP request. A web page can
// have a browser send one to loopback, with commands in its body.
func isHTTP(line [][]byte) bool {
	if len(line) == 0 {
		return false
	}
	return len(line) > 1 && bytes.EqualFold(line[0], []byte("GET")) && bytes.HasPrefix(line[1], []byte("/")) ||
		bytes.HasPrefix(line[len(line)-1], []byte("HTTP/")) || isHTTPWord(line[0])
}

// isHTTPWord reports whether a command's name is what HTTP requests begin with, or
// a header line.
func isHTTPWord(name []byte) bool {
	return bytes.EqualFold(name, []byte("POST")) || bytes.EqualFold(name, []byte("Host:"))
}

// splitLine splits a line into words, which may be quoted: "\x41\n" or 'it\'s'.
func splitLine(line []byte, args [][]byte) ([][]byte, error) {
	for i := 0; ; {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		switch {
		case i == len(line):
			return args, nil
		case len(args) == MaxArgs:
			return args, errArgCount
		}
		word, n := splitWord(line[i:])
		if n == unknownOutcome {
			return args, errQuotes
		}
		args = append(args, word)
		i += n
	}
}

func isSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// splitWord returns the word at the front of a line and its length there, or
// unknownOutcome if its quotes do not match.
func splitWord(line []byte) (word []byte, n int) {
	if line[0] != '"' && line[0] != '\'' {
		end := 0
		for end < len(line) && !isSpace(line[end]) {
			end++
		}
		return line[:end:end], end
	}
	quote := line[0]
	word = []byte{}
	for i := 1; i < len(line); i++ {
		switch c := line[i]; {
		case c == quote:
			if i+1 < len(line) && !isSpace(line[i+1]) {
				return nil, unknownOutcome
			}
			return word, i + 1
		case c != '\\' || i+1 == len(line):
			word = append(word, c)
		case quote == '\'':
			if line[i+1] == '\'' {
				i++
			}
			word = append(word, line[i])
		default:
			var size int
			c, size = unescape(line[i+1:])
			word = append(word, c)
			i += size
		}
	}
	return nil, unknownOutcome
}

// unescape returns what a backslash and the bytes after it stand for, and how
// many bytes those are.
func unescape(after []byte) (c byte, size int) {
	if after[0] == 'x' && len(after) >= 3 {
		if v, err := strconv.ParseUint(string(after[1:3]), 16, 8); err == nil {
			return byte(v), 3
		}
	}
	if i := strings.IndexByte("nrtba", after[0]); i >= 0 {
		return "\n\r\t\b\a"[i], 1
	}
	return after[0], 1
}
