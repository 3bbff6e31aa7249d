package moves

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/hapax-id/hapax"
)

const (
	maxPropertyBytes = 1 << 20 // length of a file
	maxProperties    = 10_000
)

// Properties reads a Java .properties file. Of a key that is given twice the last
// value counts.
func Properties(r io.Reader) (map[string]string, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxPropertyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: properties: %w", hapax.ErrInvalidArgument, err)
	}
	if len(raw) > maxPropertyBytes {
		return nil, &hapax.ValueError{Field: "properties", Value: "(more bytes)", Allowed: fmt.Sprintf("up to %d bytes", maxPropertyBytes), Err: hapax.ErrInvalidArgument}
	}
	// UTF-16 without a mark shows by its zeros.
	if bytes.HasPrefix(raw, []byte{0xFE, 0xFF}) || bytes.HasPrefix(raw, []byte{0xFF, 0xFE}) || bytes.IndexByte(raw, 0) >= 0 {
		return nil, &hapax.ValueError{Field: "properties", Value: "(UTF-16, or no text)", Allowed: "text in UTF-8 or ISO 8859-1", Err: hapax.ErrInvalidArgument}
	}
	all := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(newlines.Replace(strings.TrimPrefix(string(raw), "\uFEFF"))))
	// One line may fill the file: a scanner's own bound is 64 KiB.
	lines.Buffer(nil, maxPropertyBytes+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimLeft(lines.Text(), " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for continued(line) {
			line = line[:len(line)-1]
			if !lines.Scan() {
				break
			}
			n++
			line += strings.TrimLeft(lines.Text(), " \t\f")
		}
		key, value, err := entry(line)
		if err == nil && key == "" {
			err = errors.New("there is no key; want KEY=VALUE")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: properties, line %d: %w", hapax.ErrInvalidArgument, n, err)
		}
		if all[key] = value; len(all) > maxProperties {
			return nil, &hapax.ValueError{Field: "properties", Value: "(more entries)", Allowed: fmt.Sprintf("up to %d", maxProperties), Err: hapax.ErrInvalidArgument}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: properties: %w", hapax.ErrInvalidArgument, err)
	}
	return all, nil
}

// newlines makes one kind of line end of the three that Java knows.
var newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// continued reports whether a line ends in an odd number of backslashes.
func continued(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// entry splits a line at the first separator that is not escaped: =, : or a blank.
func entry(line string) (key, value string, err error) {
	end := len(line)
	for i := 0; i < len(line); i++ {
		if line[i] == '\\' {
			i++
		} else if strings.IndexByte("=: \t\f", line[i]) >= 0 {
			end = i
			break
		}
	}
	rest := strings.TrimLeft(line[end:], " \t\f")
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], " \t\f")
	}
	if key, err = unescape(line[:end]); err != nil {
		return "", "", err
	}
	value, err = unescape(rest)
	return key, strings.TrimRight(value, " \t\f"), err
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			r, err := escaped(s[i+1:])
			if err != nil {
				return "", err
			}
			i += 4
			if low, ok := strings.CutPrefix(s[i+1:], `\u`); ok && utf16.IsSurrogate(r) { // Java writes a letter beyond 16 bits as two
				second, err := escaped(low)
				if err != nil {
					return "", err
				}
				r = utf16.DecodeRune(r, second)
				i += 6
			}
			b.WriteRune(r)
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

// escaped reads the four digits of a letter.
func escaped(s string) (rune, error) {
	n, err := strconv.ParseUint(s[:min(4, len(s))], 16, 16)
	if err != nil || len(s) < 4 {
		return 0, errors.New(`\u wants four hexadecimal digits`)
	}
	return rune(n), nil
}

// A Secret is a text that formatting hides.
type Secret string

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(secret)"
}

// Reveal returns the secret.
func (s Secret) Reveal() string { return string(s) }

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// SplitPassword takes the password out of a URL.
func SplitPassword(field, rawURL string) (string, Secret, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "mysql" {
		return "", "", &hapax.ValueError{Field: field, Value: "(not shown)", Allowed: "mysql://user@host:port/database", Err: hapax.ErrInvalidArgument}
	}
	password, ok := u.User.Password()
	if ok {
		u.User = url.User(u.User.Username())
	}
	return u.String(), Secret(password), nil
}

// JoinPassword puts a password into a URL.
func JoinPassword(rawURL string, password Secret) string {
	u, err := url.Parse(rawURL)
	if err != nil || password == "" {
		return rawURL
	}
	u.User = url.UserPassword(u.User.Username(), string(password))
	return u.String()
}

// Quote returns a text as YAML takes it, in double quotes.
func Quote(s string) string { return strconv.QuoteToASCII(s) }
