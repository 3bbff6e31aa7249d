package service

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

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
