package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
	"github.com/hapax-id/hapax/internal/mount"
)

// CodeKeyBytes returns the keys of codes, by key ID. They are secret.
func (c Config) CodeKeyBytes() map[string][]byte { return c.keys }

// readKeys reads the keys of codes from where they are said to be. Its errors
// repeat none.
func readKeys(places map[string]string, env func(string) (string, bool)) (map[string][]byte, error) {
	keys := map[string][]byte{}
	for _, id := range slices.Sorted(maps.Keys(places)) {
		field := keysKey + "." + id
		form, place, _ := strings.Cut(places[id], ":")
		var text string
		switch {
		case form == "env" && place != "":
			given := false
			if env != nil {
				text, given = env(place)
			}
			if !given {
				return nil, &hapax.ValueError{Field: field, Value: places[id], Allowed: fmt.Sprintf("a variable that is set; $%s is not", place), Err: hapax.ErrInvalidArgument}
			}
		case form == "file" && place != "":
			data, err := mount.ReadBounded(place, mount.MaxSecretBytes)
			if err != nil {
				return nil, mount.Errorf(err, "%s", field)
			}
			text = string(data)
		default:
			return nil, &hapax.ValueError{Field: field, Value: showable(keysKey, nil), Allowed: "file:PATH or env:VARIABLE", Err: hapax.ErrInvalidArgument}
		}
		// Editors end a file with a line feed, which is no part of a key.
		key := strings.TrimRight(text, "\r\n")
		if len(key) < codec.MinKeyBytes || len(key) > codec.MaxKeyBytes {
			return nil, &hapax.ValueError{
				Field: field, Value: fmt.Sprintf("%d bytes, from %s", len(key), places[id]), Err: hapax.ErrInvalidArgument,
				Allowed: fmt.Sprintf("a key of %d to %d bytes, such as openssl rand -hex 16 prints", codec.MinKeyBytes, codec.MaxKeyBytes),
			}
		}
		keys[id] = []byte(key)
	}
	return keys, nil
}

// textsOf returns a mapping as YAML shows it, which is never nil.
func textsOf(texts map[string]string) map[string]string {
	if texts == nil {
		return map[string]string{}
	}
	return texts
}
