package service

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/strategy"
)

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
