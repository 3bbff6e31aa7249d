package driver_test

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// TestExtraOfWhatWasRead: an Extra that was made of another one is written where that still stands,
// or where it is written already, as after a lost answer.
func TestExtraOfWhatWasRead(t *testing.T) {
	for name, c := range map[string]struct {
		was  *string
		next string
		ok   bool
	}{
		"no condition":         {nil, "next", true},
		"as it was read":       {new("first"), "next", true},
		"changed since":        {new(""), "next", false},
		"written already":      {new(""), "first", true},
		"nothing was there":    {new("none"), "", false},
		"to nothing, as it is": {new("first"), "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := memstore.New(), t.Context()
			was, err := s.CreateTag(ctx, hapax.Tag{Name: "t", Extra: "first"}, hapax.CreateExplicit)
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.UpdateTag(ctx, "t", driver.TagUpdate{Step: new(int64(7)), Extra: &c.next, ExtraWas: c.was})
			if errors.Is(err, driver.ErrExtraChanged) == c.ok || c.ok && err != nil {
				t.Errorf("the error is %v; want the change made: %t", err, c.ok)
			}
			got, err := s.Tag(ctx, "t")
			if err != nil || !c.ok && got != was || c.ok && (got.Extra != c.next || got.Step != 7) {
				t.Errorf("the tag is %+v, %v", got, err)
			}
		})
	}
}
