package sequences

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/hapax-id/hapax"
)

// maxURLBytes bounds a file with a URL.
const maxURLBytes = 4096

// IsReference reports whether a text names a URL that stands elsewhere, so that the text
// itself holds no password: env:NAME or file:PATH.
func IsReference(text string) bool {
	return strings.HasPrefix(text, "env:") || strings.HasPrefix(text, "file:")
}

// CheckReference refuses what is none.
func CheckReference(field, text string) error {
	_, rest, _ := strings.Cut(text, ":")
	if IsReference(text) && rest != "" {
		return nil
	}
	return &hapax.ValueError{Field: field, Value: "(not shown)", Allowed: "env:NAME, of a variable of the servers with the database's URL, or file:PATH, of a file with it", Err: hapax.ErrInvalidArgument}
}

// Resolve returns the URL that a text is or names. Errors do not show it.
func Resolve(text string) (string, error) {
	if name, ok := strings.CutPrefix(text, "env:"); ok {
		given := os.Getenv(name)
		if given == "" {
			return "", fmt.Errorf("%w: %s: the variable %s is not set", hapax.ErrInvalidArgument, text, name)
		}
		return given, nil
	}
	path, ok := strings.CutPrefix(text, "file:")
	if !ok {
		return text, nil
	}
	// Before it is read: the end of a pipe or a device may never come.
	info, err := os.Stat(path)
	if err == nil && (info.Size() > maxURLBytes || !info.Mode().IsRegular()) {
		err = fmt.Errorf("it is no file of at most %d bytes", maxURLBytes)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", hapax.ErrInvalidArgument, text, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", hapax.ErrInvalidArgument, text, err)
	}
	return strings.TrimSpace(string(data)), nil
}

// secretParams are parameters of URLs that hold secrets.
var secretParams = []string{"password", "passwd", "sslpassword", "secret", "token", "authmechanismproperties"}

// Shown returns a URL without what is secret in it, and a reference as it is.
func Shown(text string) string {
	if IsReference(text) {
		return text
	}
	u, err := url.Parse(text)
	// What cannot be read as a URL may be a password, or hold one.
	if err != nil || u.Host == "" && u.User == nil {
		return "(a URL that is not shown)"
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	query := u.Query()
	for name := range query {
		for _, secret := range secretParams {
			if strings.Contains(strings.ToLower(name), secret) {
				query.Del(name)
			}
		}
	}
	u.RawQuery = query.Encode()
	return u.String()
}
