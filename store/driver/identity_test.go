package driver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A store of another format is told from one that is damaged, whatever else it says.
func TestDecodeIdentity(t *testing.T) {
	type identity struct {
		ID     string `json:"id"`
		Format int64  `json:"format"`
	}
	var row identity
	id, err := driver.DecodeIdentity("here", "n", []byte(`{"id":"a","format":3}`), 3, &row)
	if err != nil || id != "a" || row != (identity{"a", 3}) {
		t.Errorf("%q, %+v, %v", id, row, err)
	}
	for value, want := range map[string]string{
		`{"id":"a","format":4}`: "here says format 4", `{"id":5,"format":4,"more":[]}`: "here says format 4", `{"id":"a"}`: "format 0",
		`{"format":3}`: "here: id is missing", `{"id":"","format":3}`: "here: id is missing",
		`{"id":5,"format":3}`: `row "n" of table "store"`, `{"id":"a","format":3,"more":1}`: "more", `{"id":"a","format":3}}`: "something follows", "": "EOF",
	} {
		id, err := driver.DecodeIdentity("here", "n", []byte(value), 3, &identity{})
		if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want) || id != "" {
			t.Errorf("%s: %q, %v; want %q", value, id, err, want)
		}
	}
}

// Without data a server is not called another store's.
func TestOtherStore(t *testing.T) {
	for found, want := range map[string]string{"": "without its data", "b": `now holds store "b", not "a"`} {
		if err := driver.OtherStore("redis", found, "a"); !errors.Is(err, hapax.ErrStoreReplaced) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", found, err)
		}
	}
}
