package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/identity"
	"github.com/hapax-id/hapax/store/driver"
)

// hasPool reports whether a pool of that name may be made in the store: one that
// is named in the options, or the default pool.
func (o Options) hasPool(name string) bool {
	_, ok := o.Pools[name]
	return ok || name == hapax.DefaultPool
}

// poolNamesInWords lists the pools for errors.
func (o Options) poolNamesInWords() string {
	return "a pool that is configured under pools (" + strings.Join(o.poolNames(), ", ") + ")"
}

// layoutOf returns the layout that a pool will be frozen with.
func (o Options) layoutOf(pool string) (hapax.Layout, error) {
	l, err := o.Pools[pool].layout()
	if err == nil && l.IsZero() {
		l, err = hapax.ParseLayout(hapax.LayoutLeaf)
	}
	return l, err
}

// CheckPools compares the pools of a store with the options. A pool whose layout
// is configured otherwise than it is frozen is ErrLayoutMismatch.
func (o Options) CheckPools(stored []driver.Pool) error {
	var errs []error
	for _, p := range stored {
		errs = append(errs, o.checkPool(p))
	}
	for _, name := range slices.Sorted(maps.Keys(o.Pools)) {
		errs = append(errs, o.Pools[name].checkFixed(name, stored))
	}
	return errors.Join(errs...)
}

// checkFixed refuses a worker ID that is told by its number and that the layout does not
// have, where the configuration names no layout: the one that the store has frozen, or
// the default, counts.
func (c PoolConfig) checkFixed(name string, stored []driver.Pool) error {
	if c.Layout != "" {
		return nil // judged before the start
	}
	provider, err := c.provider()
	if err != nil {
		return err
	}
	switch provider.(type) {
	case identity.Fixed, identity.List:
	default:
		return nil
	}
	text := hapax.LayoutLeaf
	if i := slices.IndexFunc(stored, func(p driver.Pool) bool { return p.Name == name }); i >= 0 {
		text = stored[i].Layout
	}
	layout, err := hapax.ParseLayout(text)
	if err == nil {
		_, err = c.choose(context.Background(), name, layout, nil)
	}
	if err != nil {
		return inSetting("pools."+name, err)
	}
	return nil
}

func (o Options) checkPool(stored driver.Pool) error {
	configured, err := o.Pools[stored.Name].layout()
	if err != nil || configured.IsZero() || configured.String() == stored.Layout {
		return err
	}
	frozen := stored.Layout
	if l, err := hapax.ParseLayout(frozen); err == nil {
		frozen = LayoutName(l)
	}
	return fmt.Errorf("%w: pools.%s.layout is %s, and the store has frozen the pool with %s; configure that one, or another pool",
		hapax.ErrLayoutMismatch, stored.Name, o.Pools[stored.Name].Layout, frozen)
}
