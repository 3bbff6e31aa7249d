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
	synctest.Test(t, otherRemainder)
}

func otherRemainder(t *testing.T) {
	allocate := func(s *Service, tag string) error {
		_, err := s.Allocate(t.Context(), tag, 1, "")
		return err
	}
	ways := map[string]func(s *Service, tag string) error{
		"next":  func(s *Service, tag string) error { _, err := s.Next(t.Context(), tag); return err },
		"lease": allocate,
		"take":  func(s *Service, tag string) error { _, err := s.Take(t.Context(), tag, 1, true, ""); return err },
		"lease of a known tag": func(s *Service, tag string) error {
			if _, err := s.UpdateTag(t.Context(), tag, driver.TagUpdate{Step: new(int64(7))}); err != nil {
				return err
			}
			return allocate(s, tag)
		},
	}
	for way, take := range ways {
		for _, line := range []bool{false, true} {
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
				store, tag := memstore.New(), "orders"
				if line {
					c.stored.Code, c.stored.Zone, tag = "{yyyy}-{seq:6}", "UTC", "orders@@2000" // when time begins here
				}
				var err error
				for _, step := range []struct {
					of   TagConfig
					take func(s *Service, tag string) error
					tag  string
				}{{c.stored, ways["next"], "orders"}, {c.configured, take, tag}} {
					s, newErr := New(t.Context(), store, Options{Tags: map[string]TagConfig{"orders": step.of}})
					if newErr != nil {
						t.Fatal(newErr)
					}
					err = step.take(s, step.tag)
					if err := s.Close(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				if errors.Is(err, hapax.ErrKindMismatch) != c.refused || !c.refused && err != nil {
					t.Errorf("%s of %s, stored %+v, configured %+v: %v; want it refused: %v", way, tag, c.stored, c.configured, err, c.refused)
				}
			}
		}
	}
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
		_, err = s.Allocate(t.Context(), "orders", 1, "")
		refused("Allocate", err)
		_, err = s.Take(t.Context(), "orders", 1, true, "")
		refused("Take", err)
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
