package server

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
)

// storePasswordEnv holds the password of the store. It is not a flag, which every
// process of the machine could read, nor a key of the file.
const storePasswordEnv = "HAPAX_STORE_PASSWORD" //nolint:gosec // no password

// storeSchemes are the schemes of stores that are reached by a URL with "://".
var storeSchemes = []string{
	"mysql", "postgres", "postgresql",
	"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "unix",
	"mongodb", "mongodb+srv", "etcd", "etcds", "zk", "zks",
}

// storeHost is one address of a store's URL.
var storeHost = regexp.MustCompile(`^([A-Za-z0-9._%-]+|\[[0-9A-Fa-f:.]+(%25[A-Za-z0-9._-]+)?\])?(:[0-9]{1,5})?$`)

// A storeURL is a store's URL, taken apart where passwords can be.
type storeURL struct {
	scheme   string
	user     string // escaped, with the password; without the @ behind it
	hasUser  bool
	hosts    string
	path     string // with the slash
	query    string // with the question mark
	password bool   // the user has one
}

// parseStoreURL takes a URL apart that can be read in one way only. What is
// wrong is told in words: a part of the text could be a part of the password.
func parseStoreURL(text string) (storeURL, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || !slices.Contains(storeSchemes, scheme) {
		return storeURL{}, &hapax.ValueError{Field: "store", Value: "(not a URL of a store)", Allowed: storeForms(), Err: hapax.ErrInvalidArgument}
	}
	wrong := func(what string) error {
		return &hapax.ValueError{
			Field: "store", Value: "(" + what + ")",
			Allowed: scheme + "://USER:PASSWORD@HOST:PORT/… with ? # / @ and % in names and passwords written as %3F %23 %2F %40 and %25; or give the password in store_password_file or $" + storePasswordEnv,
			Err:     hapax.ErrInvalidArgument,
		}
	}
	u := storeURL{scheme: scheme}
	if strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' }) {
		return storeURL{}, wrong("a " + scheme + " URL with a #, a space or a control character")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	switch strings.Count(authority, "@") {
	case 0:
		u.hosts = authority
	case 1:
		u.user, u.hosts, _ = strings.Cut(authority, "@")
		u.hasUser = true
	default:
		return storeURL{}, wrong("a " + scheme + " URL with more than one @")
	}
	if authority != "" && strings.Contains(tail, "@") {
		return storeURL{}, wrong("a " + scheme + " URL with an @ behind a / or ?")
	}
	if _, err := url.PathUnescape(u.user + u.hosts + tail); err != nil {
		return storeURL{}, wrong("a " + scheme + " URL with a % that encodes nothing")
	}
	for host := range strings.SplitSeq(u.hosts, ",") {
		if !storeHost.MatchString(host) {
			return storeURL{}, wrong("a " + scheme + " URL whose hosts are not HOST or HOST:PORT")
		}
	}
	_, _, u.password = strings.Cut(u.user, ":")
	u.path = tail
	if i := strings.IndexByte(tail, '?'); i >= 0 {
		u.path, u.query = tail[:i], tail[i:]
	}
	return u, nil
}

func (u storeURL) String() string {
	user := u.user
	if u.hasUser {
		user += "@"
	}
	return u.scheme + "://" + user + u.hosts + u.path + u.query
}

// isSecret reports whether a parameter of a URL, such as sslpassword, is not shown.
func isSecret(key string) bool {
	// An escaped name is the same one to the driver.
	if name, err := url.QueryUnescape(key); err == nil {
		key = name
	}
	key = strings.ToLower(key)
	return slices.ContainsFunc([]string{"password", "passwd", "secret", "token", "authmechanismproperties"}, func(word string) bool {
		return strings.Contains(key, word)
	})
}

// isLocal reports whether a store is named without "://".
func isLocal(store string) bool { return strings.HasPrefix(store, "bolt:") || isVolatile(store) }

// checkStore refuses what names no store, or could be read in two ways.
func checkStore(store string) error {
	if isLocal(store) {
		return nil
	}
	_, err := parseStoreURL(store)
	return err
}

// withPassword returns the store's URL with the password that was given beside it.
func withPassword(store, password string) (string, error) {
	if password == "" {
		return store, nil
	}
	u, err := parseStoreURL(store)
	switch {
	case isLocal(store):
		return "", mount.Errorf(nil, "the store %s takes no password, but one is given in store_password_file or $%s", store, storePasswordEnv)
	case err != nil:
		return "", err
	case u.password:
		return "", mount.Errorf(nil, "the store's password is given twice: in its URL, and in store_password_file or $%s; leave one out", storePasswordEnv)
	}
	// QueryEscape writes a space as +, which before the host stands for itself.
	u.user, u.hasUser = u.user+":"+strings.ReplaceAll(url.QueryEscape(password), "+", "%20"), true
	return u.String(), nil
}

// redacted stands where a password was.
const redacted = "xxxxx"

// redact replaces what is secret in a store's URL, all of it where it cannot be read.
func redact(store string) string {
	if isLocal(store) {
		return store
	}
	u, err := parseStoreURL(store)
	if err != nil {
		return redacted
	}
	if user, _, ok := strings.Cut(u.user, ":"); ok {
		u.user = user + ":" + redacted
	}
	if u.query != "" {
		params := strings.Split(u.query[1:], "&")
		for i, p := range params {
			if key, _, _ := strings.Cut(p, "="); isSecret(key) {
				params[i] = key + "=" + redacted
			}
		}
		u.query = "?" + strings.Join(params, "&")
	}
	return u.String()
}
