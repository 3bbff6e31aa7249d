package zkstore

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/hapax-id/hapax"
)

const hexDigits = "0123456789ABCDEF"

// escape turns a name into the name of a node. Letters, digits and "-_:@+=,"
// stay, dots too unless they come first; every other byte is percent-encoded.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			strings.IndexByte("-_:@+=,", c) >= 0, c == '.' && i > 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

// unescape is the reverse of escape, and refuses what escape does not return.
func unescape(node string) (string, error) {
	name, err := url.PathUnescape(node)
	if err != nil || escape(name) != node {
		return "", fmt.Errorf("%w: node %q is not named as hapax names nodes", hapax.ErrStoreCorrupt, node)
	}
	return name, nil
}
