package service

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// The store may have another definition of a tag than the configuration; what issuing and
// a stop that hands numbers back have changed is none.
func TestOtherDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var logged bytes.Buffer
		log := slog.New(slog.NewTextHandler(&logged, nil))
		use := func(step int64) (told bool) {
			t.Helper()
			logged.Reset()
			opts := Options{Logger: log, Tags: map[string]TagConfig{"orders": {Step: step}}}
			s, err := New(t.Context(), store, opts)
			if err != nil {
				t.Fatal(err)
			}
			mustNext(t, s, "orders")
			if err := s.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			return strings.Contains(logged.String(), "the store defines a tag otherwise")
		}
		for i := range 3 {
			if use(50) {
				t.Errorf("start %d with the same definition: %s", i, &logged)
			}
		}
		if tag, err := store.Tag(t.Context(), "orders"); err != nil || tag.Token == 0 {
			t.Fatalf("nothing was handed back: %+v, %v", tag, err)
		}
		if !use(60) {
			t.Error("another step is not told")
		}
	})
}

// Two regions that share a tag by delta and remainder must not meet because one store has it
// otherwise; a configuration that says nothing of them takes what is stored.
func TestOtherRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := func(stored, configured TagConfig) error {
			t.Helper()
			store := memstore.New()
			for _, c := range []TagConfig{stored, configured} {
				s, err := New(t.Context(), store, Options{Tags: map[string]TagConfig{"orders": c}})
				if err != nil {
					t.Fatal(err)
				}
				_, err = s.Next(t.Context(), "orders")
				if err2 := s.Close(context.Background()); err2 != nil {
					t.Fatal(err2)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
		for _, c := range []struct {
			stored, configured TagConfig
			refused            bool
		}{
			{TagConfig{}, TagConfig{Delta: 2, Remainder: 1}, true},
			{TagConfig{Delta: 2}, TagConfig{Delta: 2, Remainder: 1}, true},
			{TagConfig{Delta: 4, Remainder: 1}, TagConfig{Delta: 2, Remainder: 1}, true},
			{TagConfig{Delta: 2, Remainder: 1}, TagConfig{Delta: 2, Remainder: 1}, false},
			{TagConfig{Delta: 2, Remainder: 1}, TagConfig{}, false},
			{TagConfig{Delta: 2, Remainder: 1}, TagConfig{Step: 50}, false},
		} {
			if err := next(c.stored, c.configured); errors.Is(err, hapax.ErrKindMismatch) != c.refused || !c.refused && err != nil {
				t.Errorf("stored %+v, configured %+v: %v; want it refused: %v", c.stored, c.configured, err, c.refused)
			}
		}
	})
}

// A tag whose Extra a later version has written, with a field that this one does not know, issues
// nothing here, and is neither given another code nor revived. It stays as it is.
func TestTagOfLaterVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const extra = `{"code":1,"spec":"{id:6}","shuffled":true}`
		store := memstore.New()
		s := open(t, store, Options{Tags: map[string]TagConfig{"orders": {Code: "{id:6}"}}})
		if _, err := store.CreateTag(t.Context(), hapax.Tag{Name: "orders", Extra: extra}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		code := define.CodeExtra("A{id:8}", "")
		refused := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Errorf("%s: %v, want invalid_argument", what, err)
			}
		}
		_, err := s.Next(t.Context(), "orders")
		refused("Next", err)
		_, err = s.NextCodes(t.Context(), "orders", 1)
		refused("NextCodes", err)
		_, err = s.ParseCode(t.Context(), "orders", "000001")
		refused("ParseCode", err)
		_, err = s.Line(t.Context(), "orders")
		refused("Line", err)
		_, err = s.Next(t.Context(), "orders@@2026")
		refused("Next of what may be its line", err)
		_, err = s.UpdateTag(t.Context(), "orders", driver.TagUpdate{Extra: &code})
		refused("UpdateTag", err)
		if tag, err := s.UpdateTag(t.Context(), "orders", driver.TagUpdate{Step: new(int64(77))}); err != nil || tag.Step != 77 || tag.Extra != extra {
			t.Errorf("another step: %+v, %v", tag, err)
		}
		if tag, err := s.DeleteTag(t.Context(), "orders"); err != nil || !tag.Deleted || tag.Extra != extra {
			t.Errorf("DeleteTag: %+v, %v", tag, err)
		}
		_, err = s.CreateTag(t.Context(), hapax.Tag{Name: "orders", Extra: code}, hapax.CreateExplicit)
		refused("CreateTag", err)
		if tag, err := s.Tag(t.Context(), "orders"); err != nil || tag.Extra != extra {
			t.Errorf("Tag: %+v, %v", tag, err)
		}
	})
}
