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
)

// provider returns what the pool's identity is configured as.
func (c PoolConfig) provider() (identity.Provider, error) {
	if c.Identity == "" {
		return identity.Pool{}, nil
	}
	return identity.Parse(c.Identity)
}

// split returns the parts of the pool's worker IDs, none if it is not configured.
func (c PoolConfig) split() (identity.Split, error) {
	if c.Split == "" {
		return nil, nil
	}
	return identity.ParseSplit(c.Split)
}

// checkIdentity checks what can be judged before the start: everything but what
// the host and the environment say.
func (c PoolConfig) checkIdentity() error {
	p, err := c.provider()
	if err != nil {
		return err
	}
	_, disposable := p.(identity.Disposable)
	if disposable && c.Cache {
		return outOfRange("cache", c.Cache, "false with the identity disposable, whose starts the store counts")
	}
	split, err := c.split()
	if err != nil {
		return err
	}
	layout, err := c.layout()
	if err != nil {
		return err
	}
	if !layout.IsZero() {
		if err := fits(split, layout); err != nil {
			return err
		}
	}
	switch p.(type) {
	case identity.Fixed, identity.List:
		ids, err := c.mayUse(layout, split)
		if err == nil {
			_, err = p.Choose(context.Background(), identity.Request{IDs: ids})
		}
		if err != nil {
			return err
		}
	}
	known := hapax.Fields{}
	for _, name := range slices.Sorted(maps.Keys(c.Parts)) {
		v, isNamed := split.Lowest(name), strings.HasPrefix(c.Parts[name], "env:") // judged at the start
		if !isNamed {
			if v, err = identity.ParseValue(c.Parts[name]); err != nil {
				return inSetting("parts", named(err, name))
			}
		}
		known = append(known, hapax.Field{Name: name, Value: v})
	}
	if len(known) == 0 {
		return nil
	}
	if disposable {
		return outOfRange("parts", known, "none with the identity disposable, which takes one worker ID after the other")
	}
	return split.Check(known)
}

// named makes name the field of an error about a value.
func named(err error, name string) error {
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		v.Field = name
	}
	return err
}

// fits reports whether a split covers the layout's worker field.
func fits(split identity.Split, layout hapax.Layout) error {
	if split != nil && 1<<split.Bits() != layout.Workers() {
		return outOfRange("split", fmt.Sprintf("%d bits wide", split.Bits()), fmt.Sprintf("as wide as the layout's worker field, which has %d worker IDs", layout.Workers()))
	}
	return nil
}

// CheckIdentities resolves the identity of every pool that needs no store for
// it, so that a server which was told nothing useful does not start. Errors name
// the setting.
func (o Options) CheckIdentities(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(o.Pools)) {
		c := o.Pools[name]
		layout, err := c.layout()
		if err == nil {
			_, err = c.choose(ctx, name, layout, nil)
		}
		if err != nil {
			return inSetting("pools."+name, err)
		}
	}
	return nil
}

// mayUse returns the worker IDs of the pool, as far as they are known: by its setting
// workers, its layout or its split.
func (c PoolConfig) mayUse(layout hapax.Layout, split identity.Split) (hapax.WorkerRange, error) {
	ids, err := parseWorkers(c.Workers)
	if err != nil || ids != (hapax.WorkerRange{}) {
		return ids, err
	}
	switch {
	case !layout.IsZero():
		ids.Hi = layout.Workers()
	case split != nil:
		ids.Hi = 1 << split.Bits()
	default:
		ids.Hi = 1 << 62
	}
	return ids, nil
}

// choose returns which worker IDs this node may use. Without a layout any number
// may be one; without a store Disposable is not asked.
func (c PoolConfig) choose(ctx context.Context, pool string, layout hapax.Layout, store hapax.SegmentStore) (identity.Choice, error) {
	var none identity.Choice
	split, err := c.split()
	if err != nil {
		return none, err
	}
	ids, err := c.mayUse(layout, split)
	if err != nil {
		return none, err
	}
	if !layout.IsZero() {
		if err := fits(split, layout); err != nil {
			return none, err
		}
	}
	provider, err := c.provider()
	if err != nil {
		return none, err
	}
	choice := identity.Choice{IDs: ids}
	if _, ok := provider.(identity.Disposable); !ok || store != nil {
		if choice, err = provider.Choose(ctx, identity.Request{Pool: pool, IDs: ids, Store: store}); err != nil {
			return none, err
		}
	}
	if split == nil || choice.Counted {
		return choice, nil
	}
	var parts hapax.Fields
	for _, name := range slices.Sorted(maps.Keys(c.Parts)) {
		v, err := identity.ParseValue(c.Parts[name])
		if err != nil {
			return none, inSetting("parts", named(err, name))
		}
		parts = append(parts, hapax.Field{Name: name, Value: v})
	}
	return split.Narrow(choice, parts)
}
