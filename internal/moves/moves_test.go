package moves

import (
	"context"
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// What cannot be made natively is known from the plan on, since a row is closed before its tag is made.
func TestPlanJudgesNames(t *testing.T) {
	store := memstore.New()
	const there, decomposed = "nai\u0308ve", "cafe\u0301"
	def, err := hapax.Tag{Name: there}.WithDefaults()
	if err == nil {
		_, err = store.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := Plan(t.Context(), store, []hapax.Tag{{Name: "café"}, {Name: decomposed}, {Name: there}}, nil)
	if err != nil || len(all) != 3 || all[0].Reason != nil || !errors.Is(all[1].Reason, hapax.ErrInvalidTag) || all[2].Reason != nil {
		t.Fatalf("planned %+v, %v; want a reason for the name in pieces that is new", all, err)
	}
	var closed []string
	err = Apply(t.Context(), all, func(_ context.Context, m *Move) error { closed = append(closed, m.Tag.Name); return nil }, nil)
	if err != nil || len(closed) != 2 || closed[0] != "café" || closed[1] != there {
		t.Errorf("closed %q, %v", closed, err)
	}
}
