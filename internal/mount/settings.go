package mount

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// A ConfigError is a configuration that cannot be used, in words of its own.
type ConfigError struct {
	Text  string
	cause error // may be nil
}

// Errorf returns a ConfigError.
func Errorf(cause error, format string, args ...any) error {
	return &ConfigError{fmt.Sprintf(format, args...), cause}
}

func (e *ConfigError) Error() string {
	if e.cause == nil {
		return "hapax: " + e.Text
	}
	return "hapax: " + e.Text + ": " + hapax.Message(e.cause)
}

// Unwrap returns hapax.ErrInvalidArgument and the cause.
func (e *ConfigError) Unwrap() []error { return []error{hapax.ErrInvalidArgument, e.cause} }

// Invalid is the error for a value of compat.FIELD.
func Invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: "compat." + field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// Networks reads a list of networks.
func Networks(field string, list []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, Invalid(field, text, "a network such as 10.0.0.0/8")
		}
		all = append(all, p)
	}
	return all, nil
}

// Zone reads a time zone; empty is Local.
func Zone(field, name string) (*time.Location, error) {
	zone, err := time.LoadLocation(cmp.Or(name, "Local"))
	if err != nil {
		return nil, Invalid(field, name, "a time zone, such as Asia/Shanghai")
	}
	return zone, nil
}

// MaxSecretBytes bounds a file with passwords or a key.
const MaxSecretBytes = 4096

// Passwords returns the lines of a file with passwords, or what a variable holds, which
// is no flag, that every process of the machine could read, nor a key of the file.
func Passwords(field, file, variable string, env func(string) (string, bool)) ([]string, error) {
	given := ""
	if env != nil {
		given, _ = env(variable)
	}
	switch {
	case file == "" && given == "":
		return nil, nil
	case file == "":
		return []string{given}, nil
	case given != "":
		return nil, Errorf(nil, "the password is given twice: in $%s and in %s; leave one out", variable, field)
	}
	text, err := ReadBounded(file, MaxSecretBytes)
	if err != nil {
		return nil, Errorf(err, "%s", field)
	}
	all := strings.TrimSuffix(string(text), "\n") // a line may be empty: an account without a password
	if strings.Trim(all, "\r\n") == "" {
		return nil, Errorf(nil, "%s: %s is empty", field, file)
	}
	var lines []string
	for line := range strings.SplitSeq(all, "\n") {
		lines = append(lines, strings.TrimSuffix(line, "\r"))
	}
	return lines, nil
}

// WithPassword returns the URL of a database with the password that was given beside it.
func WithPassword(field, databaseURL, password string) (string, error) {
	if databaseURL == "" || password == "" {
		return databaseURL, nil
	}
	u, err := url.Parse(databaseURL)
	if err != nil || u.Host == "" {
		return "", Invalid(field, "(not a URL of a database)", "mysql://USER@HOST:3306/DATABASE")
	}
	if _, has := u.User.Password(); has {
		return "", Invalid(field, "(a URL with a password)", "one without, since the password is given beside it, too")
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String(), nil
}

// Unreadable returns the error for a file that a setting names and that cannot be read.
func Unreadable(setting, path, allowed string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return &hapax.ValueError{Field: setting, Value: path, Allowed: fmt.Sprintf("%s: %v", allowed, err), Err: errors.Join(hapax.ErrInvalidArgument, err)}
}

// ReadBounded reads a file of at most that many bytes.
func ReadBounded(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(data) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return data, err
}
