package service

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// A pool names a populator that a program has registered.
func TestRegisteredPopulator(t *testing.T) {
	even := func(free hapax.Grant, _ int64, _ int) (first, n int64) { return free.Lo + free.Lo&1, 1 }
	r := newStrategies(t)
	if err := r.RegisterPopulator("even", even); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]strategy.Populate{"even": even, "mutex": even, "none": nil, "": even} {
		if err := r.RegisterPopulator(name, p); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%q: %v; want ErrInvalidArgument", name, err)
		}
	}
	opts := Options{
		Strategies: r,
		Pools:      map[string]PoolConfig{"p": {Populator: "even"}},
		Tags:       map[string]TagConfig{"t": {Kind: hapax.KindSnowflake, Pool: "p"}},
	}
	s := open(t, memstore.New(), opts)
	for range 1000 {
		if id, err := s.Next(t.Context(), "t"); err != nil || id&1 == 1 {
			t.Fatalf("%d, %v; want an even one", id, err)
		}
	}
	opts.Pools = map[string]PoolConfig{"p": {Populator: "odd"}}
	if err := opts.Validate(); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("one that is not registered: %v", err)
	}
}
