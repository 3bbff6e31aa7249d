package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/strategy"
)

func (hk *hooks) registerBuiltIn() error {
	for _, kind := range []hapax.Kind{hapax.KindSegment, hapax.KindSnowflake} {
		if err := hk.strategies.Register(string(kind), ownKind(kind)); err != nil {
			return err
		}
	}
	return nil
}

// freeze returns the definition of a tag to be created with the plugins that replace
// its numbers from the first one on.
func (hk *hooks) freeze(t define.Tag) (define.Tag, error) {
	if name := t.Says.Strategy; name != "" {
		if !slices.Contains(hk.strategies.Strategies(), name) {
			return t, fmt.Errorf("%w: tag %q: strategy %q; there are %s: correct it, or use a server that has it", strategy.ErrUnknownStrategy, t.Name, name, strings.Join(hk.strategies.Strategies(), ", "))
		}
		if c, err := hk.opts.keys().Code(t); err != nil || c.HasPeriod() {
			return t, cmp.Or(err, outOfRange("code", t.Says.Spec, "a code without a period, because the tag has a custom strategy"))
		}
	}
	return t.Frozen(hk.strategies.Frozen(t.StrategyName(), t.Name))
}

// checkFrozen refuses a tag whose numbers would be replaced otherwise than they were
// from the first one on.
func (hk *hooks) checkFrozen(t define.Tag) error {
	return t.CheckFrozen(hk.strategies.Frozen(t.StrategyName(), t.Name))
}

// mayLease refuses to lease numbers of a tag whose strategy or plugins a client would
// go round, and asks the plugins about the rest.
func (hk *hooks) mayLease(ctx context.Context, t define.Tag, n int64) error {
	// What this build cannot read may make other numbers of those that are granted.
	if t.Unread != nil {
		return t.Unread
	}
	name := t.StrategyName()
	if name != string(hapax.KindSegment) {
		return fmt.Errorf("%w: %q has strategy %q, whose numbers cannot be leased: ask a server for each", hapax.ErrKindMismatch, t.Name, name)
	}
	// Either is enough: the tag was made with a plugin that this node may lack, or this node has one
	// that the tag was not made with.
	if here := hk.strategies.Frozen(name, t.Name); len(t.Says.Replaced) > 0 || len(here) > 0 {
		return fmt.Errorf("%w: a plugin replaces the numbers of %q, so they cannot be leased", strategy.ErrRejected, t.Name)
	}
	return hk.strategies.Ask(ctx, name, t.Name, n)
}

// mayLeaseWorkers refuses to lease the workers of a pool where a plugin applies to the
// numbers of one of its tags: a worker's numbers are of all of them.
func (hk *hooks) mayLeaseWorkers(ctx context.Context, pool string) error {
	for _, p := range hk.strategies.Plugins() {
		if p.Off || p.Before == nil && p.Replace == nil || len(p.Strategies) > 0 && !slices.Contains(p.Strategies, string(hapax.KindSnowflake)) {
			continue
		}
		refused := len(p.Tags) == 0
		for _, name := range p.Tags {
			t, err := admin(ctx, hk.core, func(ctx context.Context) (hapax.Tag, error) { return hk.store.Tag(ctx, name) })
			if err != nil && !errors.Is(err, hapax.ErrTagNotFound) {
				return err
			}
			refused = refused || err == nil && !t.Deleted && t.Kind == hapax.KindSnowflake && t.Pool == pool
		}
		if refused {
			return fmt.Errorf("%w: plugin %q applies to numbers of pool %q, so its workers cannot be leased", strategy.ErrRejected, p.Name, pool)
		}
	}
	return nil
}

// maxUsages bounds how many counts of plugins one answer tells.
const maxUsages = 1000

func newPlugin(p strategy.Plugin) api.Plugin {
	st := api.Plugin{
		Name: p.Name, Order: p.Order, On: !p.Off, Strategies: p.Strategies, Tags: p.Tags,
		Vetoes: p.Vetoes(), Failures: p.Failures(),
	}
	for _, hook := range []struct {
		name string
		has  bool
	}{{"Before", p.Before != nil}, {"After", p.After != nil}, {"Replace", p.Replace != nil}, {"OnError", p.OnError != nil}} {
		if hook.has {
			st.Hooks = append(st.Hooks, hook.name)
		}
	}
	return st
}

// Plugins returns the plugins of this node in the order in which they are called.
func (hk *hooks) Plugins() []api.Plugin {
	var all []api.Plugin
	for _, p := range hk.strategies.Plugins() {
		all = append(all, newPlugin(p))
	}
	return all
}

// SetPlugin switches a plugin of this node on or off, and orders it, as far as that
// is given, until the service closes. ErrInvalidArgument for a plugin that is not
// there, and for one that replaces the numbers of a tag in use.
func (hk *hooks) SetPlugin(ctx context.Context, name string, on *bool, order *int) (api.Plugin, error) {
	st, err := hk.setPlugin(name, on, order)
	about := []any{"plugin", name}
	if on != nil {
		about = append(about, "on", *on)
	}
	if order != nil {
		about = append(about, "order", *order)
	}
	hk.Attempted(ctx, "set plugin", err, about...)
	return st, err
}

func (hk *hooks) setPlugin(name string, on *bool, order *int) (api.Plugin, error) {
	if on == nil && order == nil {
		return api.Plugin{}, outOfRange("plugin", name, "one with something to change: on, or an order")
	}
	if on != nil {
		if err := hk.strategies.Switch(name, *on); err != nil {
			return api.Plugin{}, err
		}
	}
	if order != nil {
		if err := hk.strategies.Reorder(name, *order); err != nil {
			return api.Plugin{}, err
		}
	}
	for _, st := range hk.Plugins() {
		if st.Name == name {
			return st, nil
		}
	}
	return api.Plugin{}, fmt.Errorf("%w: plugin %q was removed meanwhile", hapax.ErrInvalidArgument, name)
}

// Usage returns what the plugins of this node have counted, of one tag or, for "", of
// everything: those with the largest counts if there are too many, by plugin.
func (hk *hooks) Usage(tag string) []api.Usage { return hk.usage(tag, maxUsages) }

// usageOf asks one plugin, which may be the program's.
func (hk *hooks) usageOf(p strategy.Plugin) (all []strategy.Usage) {
	defer func() {
		if v := recover(); v != nil {
			all = nil
			if pass, dropped := hk.throttle.pass("usage"); pass {
				hk.log.Error("a plugin failed", "plugin", p.Name, "hook", "Usage", "panic", v, "stack", string(debug.Stack()), "suppressed", dropped)
			}
		}
	}()
	return p.Usage()
}

func (hk *hooks) usage(tag string, most int) []api.Usage {
	var all []api.Usage
	for _, p := range hk.strategies.Plugins() {
		if p.Usage == nil {
			continue
		}
		for _, u := range hk.usageOf(p) {
			if tag == "" || u.Tag == tag {
				all = append(all, newUsage(p.Name, u))
			}
		}
	}
	if len(all) <= most {
		return all
	}
	kept := slices.Clone(all)
	slices.SortStableFunc(kept, func(a, b api.Usage) int { return int(min(1, max(-1, b.Current-a.Current))) })
	least := kept[most-1].Current
	kept = kept[:0]
	for _, u := range all { // in the order of their names again
		if u.Current >= least && len(kept) < most {
			kept = append(kept, u)
		}
	}
	return kept
}

func newUsage(plugin string, u strategy.Usage) api.Usage {
	return api.Usage{
		Plugin: plugin, Tag: u.Tag, Caller: u.Caller, Window: api.Window(u.Window),
		Current: hapax.ID(u.Current), Previous: hapax.ID(u.Previous), Limit: hapax.ID(u.Limit),
	}
}
