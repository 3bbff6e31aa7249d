package redismongo

import (
	"net/url"
	"strings"
)

// splitURL takes apart what may be before the hosts of a store's URL, which may be several.
func splitURL(raw string) (scheme, user, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(raw, "://")
	end := len(rest)
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		end = i
	}
	// The last: a password may have one that is not escaped.
	if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
		user, rest = rest[:at], rest[at+1:]
	}
	return scheme, user, rest, ok
}

// splitPassword takes the password out of the URL of a store.
func splitPassword(raw string) (without, password string) {
	scheme, user, rest, ok := splitURL(raw)
	name, password, _ := strings.Cut(user, ":")
	if !ok || password == "" {
		return raw, ""
	}
	if plain, err := url.PathUnescape(password); err == nil {
		password = plain
	}
	if name != "" {
		name += "@"
	}
	return scheme + "://" + name + rest, password
}

// joinPassword puts a password into the URL of a store that has none.
func joinPassword(raw, password string) string {
	scheme, user, rest, ok := splitURL(raw)
	if !ok || password == "" {
		return raw
	}
	name, _, _ := strings.Cut(user, ":")
	// QueryEscape makes a plus sign of a space, which is a plus sign in a password.
	return scheme + "://" + name + ":" + strings.ReplaceAll(url.QueryEscape(password), "+", "%20") + "@" + rest
}
