package strategy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/hapax-id/hapax"
)

var _ hapax.Issuer = (*Line)(nil)

// A Line issues the numbers of one tag by one strategy, with the plugins that
// serve it. Its methods are safe for concurrent use.
//
// Numbers ascend as the strategy's issuer has them ascend, unless a plugin
// replaces them.
type Line struct {
	lineName

	registry *Registry
	issuer   hapax.Issuer
	chain    atomic.Pointer[chain] // nil without plugins; written by the registry
}

// A chain is the plugins of a line that are on, in their order. It never changes.
type chain struct {
	plugins  []*Plugin
	befores  []*Plugin // those with a Before hook
	afters   []*Plugin // those with an After hook
	replaces bool      // one has a Replace hook
	strict   bool      // one may keep numbers from the caller
}

func (ch *chain) add(p *Plugin) {
	ch.plugins = append(ch.plugins, p)
	if p.Before != nil {
		ch.befores = append(ch.befores, p)
	}
	if p.After != nil {
		ch.afters = append(ch.afters, p)
	}
	ch.replaces = ch.replaces || p.Replace != nil
	ch.strict = ch.strict || p.Replace != nil || p.Strict
}

// Strategy returns the name of the line's strategy.
func (l *Line) Strategy() string { return l.strategy }

// Tag returns the name of the line's tag.
func (l *Line) Tag() string { return l.tag }

// Plain reports whether no plugin serves the line at this moment.
func (l *Line) Plain() bool { return l.chain.Load() == nil }

// Replaces reports whether a plugin replaces the line's numbers.
func (l *Line) Replaces() bool {
	ch := l.chain.Load()
	return ch != nil && ch.replaces
}

// Issuer returns what to issue with at this moment: the strategy's own issuer
// where no plugin serves the line, and the line itself otherwise. Ask anew for
// each call, so that plugins added later count. What the strategy's own issuer
// refuses is for the caller to report, with Refused.
func (l *Line) Issuer() hapax.Issuer {
	if l.chain.Load() == nil {
		return l.issuer
	}
	return l
}

// Next issues one number.
func (l *Line) Next(ctx context.Context) (hapax.ID, error) {
	ch := l.chain.Load()
	if ch == nil {
		id, err := l.issuer.Next(ctx)
		if err != nil {
			l.Refused(ctx, 1, err)
		}
		return id, err
	}
	return l.next(ctx, ch)
}

// next issues one number through the plugins. It does what fill does, with one
// deferred call for all hooks, which knows as little as it can: its work is most of
// what plugins cost.
func (l *Line) next(ctx context.Context, ch *chain) (id hapax.ID, err error) {
	if ch.strict {
		var ids [1]hapax.ID
		_, err := l.fill(ctx, ch, ids[:], l.issuer)
		return ids[0], err
	}
	c := Call{&l.lineName, 1}
	running := 0 // which hook does, counted from 1: the Before hooks and then the After hooks
	defer func() {
		if running != 0 { // still, so that it has panicked
			id, err = l.rescue(ctx, ch, running-1, id, recover())
		}
	}()
	for i, p := range ch.befores {
		running = i + 1
		if veto := p.Before(ctx, c); veto != nil {
			// No hook runs from here on: those that are told of the veto have a rescue of their own.
			running = 0
			return 0, l.failed(ctx, ch, c, p.rejected(veto))
		}
	}
	running = 0
	if id, err = l.issuer.Next(ctx); err != nil {
		return 0, l.failed(ctx, ch, c, err)
	}
	for i, p := range ch.afters {
		running = len(ch.befores) + i + 1
		if err := p.After(ctx, c, Numbers{one: id, count: 1}); err != nil {
			l.report(ctx, ch, c, p.failed("After", err))
		}
	}
	running = 0
	return id, nil
}

// rescue goes on where a hook has panicked in next.
func (l *Line) rescue(ctx context.Context, ch *chain, hook int, id hapax.ID, value any) (hapax.ID, error) {
	c := Call{&l.lineName, 1}
	if hook < len(ch.befores) {
		return 0, l.failed(ctx, ch, c, ch.befores[hook].panicked("Before", value))
	}
	rest := ch.afters[hook-len(ch.befores):]
	l.report(ctx, ch, c, rest[0].panicked("After", value))
	_ = l.after(ctx, ch, rest[1:], c, Numbers{one: id, count: 1}) // none of them replaces
	return id, nil
}

// NextN fills dst; see hapax.Issuer.
func (l *Line) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	return l.fill(ctx, l.chain.Load(), dst, l.issuer)
}

// A filler fills dst as hapax.Issuer's NextN does.
type filler interface {
	NextN(ctx context.Context, dst []hapax.ID) (int, error)
}

type fillFunc func(ctx context.Context, dst []hapax.ID) (int, error)

func (f fillFunc) NextN(ctx context.Context, dst []hapax.ID) (int, error) { return f(ctx, dst) }

// Around is NextN with issue in the place of the strategy's issuer; it must issue
// numbers of the line.
func (l *Line) Around(ctx context.Context, dst []hapax.ID, issue func(ctx context.Context, dst []hapax.ID) (int, error)) (int, error) {
	return l.fill(ctx, l.chain.Load(), dst, fillFunc(issue))
}

// InARow takes n numbers of the line that have equal distances, as reserve gives
// them: see hapax.Segment's Reserve. Where a plugin replaces numbers there are none
// in a row: [ErrRejected].
func (l *Line) InARow(ctx context.Context, n int64, reserve func(ctx context.Context) (hapax.Grant, error)) (hapax.Grant, error) {
	ch := l.chain.Load()
	if ch == nil {
		g, err := reserve(ctx)
		if err != nil {
			l.Refused(ctx, int(n), err)
		}
		return g, err
	}
	c := Call{&l.lineName, int(n)}
	if ch.replaces {
		return hapax.Grant{}, l.failed(ctx, ch, c, errNotInARow(l.tag))
	}
	if err := ch.before(ctx, c); err != nil {
		return hapax.Grant{}, l.failed(ctx, ch, c, err)
	}
	g, err := reserve(ctx)
	if err != nil {
		return g, l.failed(ctx, ch, c, err)
	}
	if err := l.after(ctx, ch, ch.afters, c, Numbers{one: hapax.ID(g.Lo), count: int(n), step: hapax.ID((g.Hi - g.Lo) / n)}); err != nil {
		return hapax.Grant{}, l.failed(ctx, ch, c, err)
	}
	return g, nil
}

func errNotInARow(tag string) error {
	return fmt.Errorf("%w: a plugin replaces the numbers of %q, so that none are in a row", ErrRejected, tag)
}

// fill is NextN with the plugins of a chain, which may be nil.
func (l *Line) fill(ctx context.Context, ch *chain, dst []hapax.ID, from filler) (int, error) {
	if ch == nil {
		n, err := from.NextN(ctx, dst)
		if err != nil {
			l.Refused(ctx, len(dst), err)
		}
		return n, err
	}
	if len(dst) == 0 {
		return 0, nil
	}
	c := Call{&l.lineName, len(dst)}
	if err := ch.before(ctx, c); err != nil {
		return 0, l.failed(ctx, ch, c, err)
	}
	n, err := from.NextN(ctx, dst)
	if n > 0 {
		if failure := l.after(ctx, ch, ch.plugins, c, newNumbers(dst[:n]...)); failure != nil {
			// They are burnt: a caller that looks at dst in spite of the error must find none.
			clear(dst[:n])
			n, err = 0, errors.Join(failure, err)
		}
	}
	if err != nil {
		return n, l.failed(ctx, ch, c, err)
	}
	return n, nil
}

// Close closes the strategy's issuer.
func (l *Line) Close(ctx context.Context) error {
	l.registry.drop(l)
	return l.issuer.Close(ctx)
}

// Refused tells the strategy's rejection handler of a call that failed. The
// line's own methods do that themselves.
func (l *Line) Refused(ctx context.Context, n int, err error) {
	l.registry.Refused(ctx, Refusal{l.strategy, l.tag, n, err})
}

// failed tells the plugins and the handler of a call that failed.
func (l *Line) failed(ctx context.Context, ch *chain, c Call, err error) error {
	l.tell(ctx, ch, c, err)
	l.Refused(ctx, c.N, err)
	return err
}

// tell calls the OnError hooks.
func (l *Line) tell(ctx context.Context, ch *chain, c Call, err error) {
	for _, p := range ch.plugins {
		if p.OnError == nil {
			continue
		}
		if f := onError(ctx, p, c, err); f != nil {
			l.registry.logFailure(ctx, l.tag, f)
		}
	}
}

func onError(ctx context.Context, p *Plugin, c Call, err error) (f *PluginError) {
	defer func() {
		if v := recover(); v != nil {
			f = p.panicked("OnError", v)
		}
	}()
	p.OnError(ctx, c, err)
	return nil
}

// before asks the plugins, and returns the first veto or failure.
func (ch *chain) before(ctx context.Context, c Call) (err error) {
	i := 0
	defer func() {
		if i < len(ch.befores) && err == nil {
			err = ch.befores[i].panicked("Before", recover())
		}
	}()
	for ; i < len(ch.befores); i++ {
		if err := ch.befores[i].Before(ctx, c); err != nil {
			return ch.befores[i].rejected(err)
		}
	}
	return nil
}

// after shows the plugins, some of the chain's, what was issued. It returns the
// failure of a Replace hook or a strict plugin, after which the numbers must not be
// used, and reports others.
func (l *Line) after(ctx context.Context, ch *chain, plugins []*Plugin, c Call, ids Numbers) error {
	for {
		failed, f := show(ctx, plugins, c, ids)
		if f == nil {
			return nil
		}
		if f.Hook == "Replace" || plugins[failed].Strict {
			return f
		}
		l.report(ctx, ch, c, f)
		plugins = plugins[failed+1:]
	}
}

// report tells the hooks and the log of a failure that the caller does not see.
func (l *Line) report(ctx context.Context, ch *chain, c Call, f *PluginError) {
	l.tell(ctx, ch, c, f)
	l.registry.logFailure(ctx, l.tag, f)
}

// show calls the hooks of the plugins up to the first failure, and returns whose it
// is.
func show(ctx context.Context, plugins []*Plugin, c Call, ids Numbers) (failed int, failure *PluginError) {
	i, hook := 0, ""
	defer func() {
		if hook != "" && failure == nil {
			failed, failure = i, plugins[i].panicked(hook, recover())
		}
	}()
	for ; i < len(plugins); i++ {
		p := plugins[i]
		if p.Replace != nil {
			hook = "Replace"
			if err := p.Replace(ctx, c, unsafe.Slice(ids.many, ids.count)); err != nil {
				return i, p.failed(hook, err)
			}
		}
		if p.After != nil {
			hook = "After"
			if err := p.After(ctx, c, ids); err != nil {
				return i, p.failed(hook, err)
			}
		}
	}
	hook = ""
	return i, nil
}
