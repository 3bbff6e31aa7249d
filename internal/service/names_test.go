package service

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// A name that looks like another one is refused before it becomes a line.
func TestNamesAreInNormalForm(t *testing.T) {
	s, err := New(t.Context(), memstore.New(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	composed, decomposed := "caf\u00e9", "cafe\u0301"
	if _, err := s.Next(t.Context(), composed); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context(), decomposed); !errors.Is(err, hapax.ErrInvalidTag) {
		t.Errorf("first use: %v", err)
	}
	if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: decomposed}, hapax.CreateExplicit); !errors.Is(err, hapax.ErrInvalidTag) {
		t.Errorf("create: %v", err)
	}
	for _, opts := range []Options{{Tags: map[string]TagConfig{decomposed: {}}}, {Pools: map[string]PoolConfig{decomposed: {}}}} {
		if err := opts.Validate(); !errors.Is(err, hapax.ErrInvalidTag) {
			t.Errorf("configured: %v", err)
		}
	}
}
