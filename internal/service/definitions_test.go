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
