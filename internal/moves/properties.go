package moves

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

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
	all := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(strings.TrimPrefix(string(raw), "\uFEFF")))
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
	return key, strings.TrimRight(value, " \t\f\r"), err
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
			if len(s) < i+5 {
				return "", fmt.Errorf(`\u wants four hexadecimal digits`)
			}
			n, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
			if err != nil {
				return "", fmt.Errorf(`\u wants four hexadecimal digits`)
			}
			b.WriteRune(rune(n))
			i += 4
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
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
