package service

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/prometheus/client_golang/prometheus"
)

// However many tags and pools there are, the series are as many as for a hundred of
// each.
func TestSeriesAreBounded(t *testing.T) {
	series := func(n int) int {
		store := memstore.New()
		s, err := New(t.Context(), store, Options{Logger: slog.New(slog.DiscardHandler), MaxWait: patience.Long})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		for i := range n {
			if _, err := s.Next(t.Context(), fmt.Sprintf("tag%d", i)); err != nil {
				t.Fatal(err)
			}
			pool := fmt.Sprintf("pool%d", i)
			if _, err := store.CreatePool(t.Context(), pool, builtIn(t, hapax.LayoutLeaf)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "in " + pool, Kind: hapax.KindSnowflake, Pool: pool}, hapax.CreateExplicit); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Next(t.Context(), "in "+pool); err != nil {
				t.Fatal(err)
			}
		}
		counted := func() bool {
			for _, p := range s.openPools() {
				if p.use.Load() == nil {
					return false
				}
			}
			return true
		}
		patience.Until(t, "a count of the workers in use", func() bool {
			select {
			case s.opened <- struct{}{}: // it counts whenever one is opened
			default:
			}
			return counted()
		})
		r := prometheus.NewRegistry()
		r.MustRegister(s.Collector())
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, f := range families {
			count += len(f.GetMetric())
		}
		return count
	}
	few, many := series(health.MaxLabelled), series(2*health.MaxLabelled)
	if many > few+50 {
		t.Errorf("%d series for %d tags and pools, %d for twice as many", few, health.MaxLabelled, many)
	}
}

func builtIn(t *testing.T, name string) string {
	t.Helper()
	l, err := hapax.ParseLayout(name)
	if err != nil {
		t.Fatal(err)
	}
	return l.String()
}
