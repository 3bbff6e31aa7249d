package service

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// A teller is an issuer that tells whether it can issue, and values.
type teller struct {
	tens
	ready error
}

func (i *teller) Ready() error { return i.ready }

func (i *teller) Measure() map[string]float64 {
	values := map[string]float64{"reserve": 12}
	for k := range 40 {
		values[fmt.Sprint("x", k)] = 1
	}
	return values
}

// What a strategy's issuer tells of itself is in the readiness and in the metrics, and
// so is that it cannot be opened.
func TestStrategyTells(t *testing.T) {
	i := &teller{}
	opens := fmt.Errorf("%w: the account may not", hapax.ErrStoreUnsafe)
	r := newStrategies(t)
	err := r.Register("teller", strategy.Func(func(context.Context, hapax.Tag) (hapax.Issuer, error) {
		if opens != nil {
			return nil, opens
		}
		return i, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), memstore.New(), Options{Strategies: r, Tags: map[string]TagConfig{"t": {Strategy: "teller"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	cannot := func() string { return fmt.Sprint(s.Readiness(t.Context()).Cannot) }
	if _, err := s.Next(t.Context(), "t"); err == nil || !strings.Contains(cannot(), "store_unsafe") {
		t.Errorf("it cannot be opened, %v: %s", err, cannot())
	}
	opens = nil
	s.mu.Lock()
	clear(s.refused) // as after a second
	s.mu.Unlock()
	if _, err := s.Next(t.Context(), "t"); err != nil || cannot() != "[]" {
		t.Errorf("it is open, %v: %s", err, cannot())
	}
	i.ready = hapax.ErrStoreUnavailable
	if !strings.Contains(cannot(), "store_unavailable") {
		t.Errorf("it says that it cannot issue: %s", cannot())
	}
	values, _ := gather(t, s)
	told := 0
	for name := range values {
		if strings.HasPrefix(name, "hapax_strategy{") {
			told++
		}
	}
	if told != 16 {
		t.Errorf("%d values are told: %v", told, values)
	}
}
