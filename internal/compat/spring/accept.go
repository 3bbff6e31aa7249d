package spring

import (
	"maps"
	"mime"
	"path"
	"slices"
	"strconv"
	"strings"
)

const maxAcceptBytes = 4 << 10

const (
	plain    = "text/plain"
	anObject = "application/json"
)

// suffixes are the endings of a path that choose the content type, whatever the client
// accepts.
var suffixes = map[string]string{
	".json": anObject, ".xml": "application/xml", ".txt": plain, ".html": "text/html", ".htm": "text/html",
}

// ranges are what is sent to clients that accept any type, or any of a kind.
var ranges = map[string]string{"*/*": plain, "*": plain, "text/*": plain, "application/*": anObject}

// TextType returns the content type in which a plain text is sent: the one that the
// path's ending names, or else the one that the header Accept prefers, whatever that is.
func TextType(urlPath, accept string) string {
	kind, ok := suffixes[path.Ext(urlPath)]
	if !ok {
		kind = preferred(accept)
	}
	return kind + ";charset=UTF-8"
}

// Suffixes returns the endings of a path that choose the content type.
func Suffixes() []string { return slices.Sorted(maps.Keys(suffixes)) }

// takesObject reports whether an object may be sent: the path's ending names JSON, or else
// the header Accept has a type that includes it, or none that can be read.
func takesObject(urlPath, accept string) bool {
	if kind, ok := suffixes[path.Ext(urlPath)]; ok {
		return kind == anObject
	}
	if len(accept) > maxAcceptBytes {
		return true
	}
	readable := false
	for part := range strings.SplitSeq(accept, ",") {
		name, _, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		readable = true
		if ranges[name] != "" && name != "text/*" || name == anObject || strings.HasPrefix(name, "application/") && strings.HasSuffix(name, "+json") {
			return true
		}
	}
	return !readable
}

// WantsHTML reports whether the client is a browser.
func WantsHTML(accept string) bool { return preferred(accept) == "text/html" }

// preferred returns the type of the highest quality in a header Accept, and of these the
// first. A range of types counts after the types.
func preferred(accept string) string {
	if accept == "" || accept == "*/*" || len(accept) > maxAcceptBytes {
		return plain
	}
	best, bestQuality := "", 0.0
	inRange, rangeQuality := plain, 0.0
	for part := range strings.SplitSeq(accept, ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if v, ok := params["q"]; ok {
			// In this form, NaN is refused, too.
			if q, err = strconv.ParseFloat(v, 64); err != nil || !(q >= 0 && q <= 1) {
				continue
			}
		}
		switch kind := ranges[name]; {
		case kind != "":
			if q > rangeQuality {
				inRange, rangeQuality = kind, q
			}
		case strings.Contains(name, "*"), !strings.Contains(name, "/"):
		case q > bestQuality:
			best, bestQuality = name, q
		}
	}
	if bestQuality > 0 && bestQuality >= rangeQuality {
		return best
	}
	return inRange
}
