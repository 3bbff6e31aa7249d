package coordtest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// EditedByHand writes what is no definition over the row of a tag, past the store, and expects an error
// of this tag alone.
func EditedByHand(t *testing.T, s driver.Store, edit func(tag, value string) error) {
	t.Helper()
	for _, name := range []string{"bad", "good"} {
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: name}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
	}
	for what, value := range map[string]string{"empty": "", "no UTF-8": "\xff\x00", "a megabyte": strings.Repeat("x", 1_000_000)} {
		if err := edit("bad", value); err != nil {
			t.Fatal(err)
		}
		_, errTag := s.Tag(t.Context(), "bad")
		_, errGrant := s.Allocate(t.Context(), "bad", 1, "")
		_, errFirst := s.CreateTag(t.Context(), hapax.Tag{Name: "bad"}, hapax.CreateFirstUse)
		for call, err := range map[string]error{"Tag": errTag, "Allocate": errGrant, "CreateTag": errFirst} {
			if _, ok := errors.AsType[*driver.UnreadableError](err); !ok || len(err.Error()) > 2000 {
				t.Errorf("%s: %s: %.300v; want an error of this tag alone", what, call, err)
			}
		}
		if tags, err := s.Tags(t.Context(), "", 10); err != nil || len(tags) != 2 || !slices.Contains(tags, hapax.Tag{Name: "bad", Kind: hapax.KindUnreadable}) {
			t.Errorf("%s: the tags are %.300v, %v", what, tags, err)
		}
		if _, err := s.Allocate(t.Context(), "good", 1, ""); err != nil {
			t.Errorf("%s: the other tag: %v", what, err)
		}
	}
}
