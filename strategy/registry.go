package strategy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
)

// Limits of a registry.
const (
	MaxStrategies = 1000
	MaxPlugins    = 1000
)

// A Refusal is a call that a line did not serve in full.
type Refusal struct {
	Strategy string
	Tag      string
	N        int   // numbers asked for
	Err      error // why
}

// A RejectionHandler is told of refusals, in the goroutine of the caller. It must
// return soon.
type RejectionHandler func(ctx context.Context, r Refusal)

// Options are the settings of a registry; the zero value is useful.
type Options struct {
	Logger *slog.Logger // for refusals and plugins that fail; default slog.Default()
}

// A Registry holds strategies and plugins by their names. Its methods are safe for
// concurrent use.
type Registry struct {
	log *limitedLog

	mu         sync.Mutex // guards what follows, and the writing of lines' chains
	strategies map[string]*entry
	populators map[string]Populate
	plugins    []*Plugin // by order and name; never changed in place
	lines      map[*Line]struct{}
}

// A Populate produces tick and sequence of a pool's numbers: see
// hapax.SnowflakeOptions.Populate.
type Populate = func(free hapax.Grant, most int64, sequenceBits int) (first, n int64)

type entry struct {
	strategy Strategy
	onReject atomic.Pointer[RejectionHandler]
}

// NewRegistry returns an empty registry.
func NewRegistry(opts Options) *Registry {
	return &Registry{
		log:        &limitedLog{logger: opts.Logger},
		strategies: map[string]*entry{},
		populators: map[string]Populate{},
		lines:      map[*Line]struct{}{},
	}
}

// Register adds a strategy. ErrInvalidArgument for a name that is taken by another.
func (r *Registry) Register(name string, s Strategy) error {
	if err := checkName("strategy", name); err != nil {
		return err
	}
	if s == nil {
		return invalid("strategy", name, "a strategy that is not nil")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, taken := r.strategies[name]; taken {
		// Two services of one process may register the same strategy.
		if v, w := reflect.ValueOf(e.strategy), reflect.ValueOf(s); v.Type() == w.Type() && v.Comparable() && w.Comparable() && v.Equal(w) {
			return nil
		}
		return invalid("strategy", name, "a name that is not taken")
	}
	if len(r.strategies) >= MaxStrategies {
		return invalid("strategy", name, fmt.Sprintf("at most %d strategies", MaxStrategies))
	}
	r.strategies[name] = &entry{strategy: s}
	return nil
}

// RegisterPopulator adds a populator, which the setting populator of pools can name.
// ErrInvalidArgument for a name that is taken.
func (r *Registry) RegisterPopulator(name string, p Populate) error {
	if err := checkName("populator", name); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, taken := r.populators[name]
	switch {
	case p == nil:
		return invalid("populator", name, "a populator that is not nil")
	// These two the setting knows as its own.
	case taken, name == "atomic", name == "mutex":
		return invalid("populator", name, "a name that is not taken")
	case len(r.populators) >= MaxStrategies:
		return invalid("populator", name, fmt.Sprintf("at most %d populators", MaxStrategies))
	}
	r.populators[name] = p
	return nil
}

// Populator returns a populator; nil if there is none of that name.
func (r *Registry) Populator(name string) Populate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.populators[name]
}

// Strategies returns the names of the strategies, sorted.
func (r *Registry) Strategies() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make([]string, 0, len(r.strategies))
	for name := range r.strategies {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// OnReject sets the rejection handler of a strategy; nil stands for the default,
// which logs, at most once a second for the whole registry.
func (r *Registry) OnReject(strategy string, h RejectionHandler) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.strategies[strategy]
	if !ok {
		return unknown("strategy", strategy)
	}
	if h == nil {
		e.onReject.Store(nil)
	} else {
		e.onReject.Store(&h)
	}
	return nil
}

// Open returns the line of a tag. The strategy's name is by default the tag's
// kind. [ErrUnknownStrategy] for one that is not registered; other errors are the
// strategy's.
func (r *Registry) Open(ctx context.Context, strategy string, tag hapax.Tag) (*Line, error) {
	strategy = cmp.Or(strategy, string(tag.Kind), string(hapax.KindSegment))
	issuer, err := r.Issuer(ctx, strategy, tag)
	if err != nil {
		return nil, err
	}
	return r.Line(strategy, tag.Name, issuer), nil
}

// Issuer returns what the strategy opens for a tag, without plugins, for a program that
// issues through more than that: Line puts the plugins around it.
func (r *Registry) Issuer(ctx context.Context, strategy string, tag hapax.Tag) (hapax.Issuer, error) {
	if err := hapax.ValidateName("tag", tag.Name); err != nil {
		return nil, err
	}
	r.mu.Lock()
	e, ok := r.strategies[strategy]
	r.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%w: tag %q has strategy %q, and there are %s", ErrUnknownStrategy, tag.Name, strategy, cmp.Or(strings.Join(r.Strategies(), ", "), "none"))
	}
	issuer, err := e.strategy.Open(ctx, tag)
	if err != nil {
		r.Refused(ctx, Refusal{strategy, tag.Name, 0, err})
	}
	return issuer, err
}

// Line returns the line of a tag whose issuer is at hand, with the plugins that serve it.
// Closing it closes the issuer.
func (r *Registry) Line(strategy, tag string, issuer hapax.Issuer) *Line {
	l := &Line{lineName: lineName{strategy, tag}, registry: r, issuer: issuer}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Under the same lock as its chain: a plugin that is added meanwhile finds the line, or is in the chain.
	r.lines[l] = struct{}{}
	l.chain.Store(r.chainLocked(l))
	return l
}

func (r *Registry) drop(l *Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lines, l)
}

// Use adds a plugin. Calls that begin from then on go through it.
// ErrInvalidArgument for a name that is taken, and for one that replaces the
// numbers of a line that is open.
func (r *Registry) Use(p Plugin) error {
	if err := checkName("plugin", p.Name); err != nil {
		return err
	}
	p.Strategies, p.Tags = slices.Clone(p.Strategies), slices.Clone(p.Tags)
	p.counts = new(pluginCounts)
	return r.change(p.Name, func(old *Plugin) (*Plugin, error) {
		if old != nil {
			return nil, invalid("plugin", p.Name, "a name that is not taken")
		}
		return &p, nil
	})
}

// Remove removes a plugin. A call that has begun may still go through it.
func (r *Registry) Remove(name string) error {
	return r.edit(name, func(*Plugin) *Plugin { return nil })
}

// Switch switches a plugin on or off.
func (r *Registry) Switch(name string, on bool) error {
	return r.edit(name, func(p *Plugin) *Plugin { p.Off = !on; return p })
}

// Reorder changes the order of a plugin.
func (r *Registry) Reorder(name string, order int) error {
	return r.edit(name, func(p *Plugin) *Plugin { p.Order = order; return p })
}

// Plugins returns the plugins in the order in which they are called.
func (r *Registry) Plugins() []Plugin {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Plugin, len(r.plugins))
	for i, p := range r.plugins {
		all[i] = *p
		all[i].Strategies, all[i].Tags = slices.Clone(p.Strategies), slices.Clone(p.Tags)
	}
	return all
}

// edit replaces a plugin by the copy that f has changed; nil removes it.
func (r *Registry) edit(name string, f func(*Plugin) *Plugin) error {
	return r.change(name, func(old *Plugin) (*Plugin, error) {
		if old == nil {
			return nil, unknown("plugin", name)
		}
		p := *old
		return f(&p), nil
	})
}

// change replaces the plugin of a name, nil for none, in the list and in the
// chains of all lines.
func (r *Registry) change(name string, f func(old *Plugin) (*Plugin, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var old *Plugin
	next := make([]*Plugin, 0, len(r.plugins)+1)
	for _, p := range r.plugins {
		if p.Name == name {
			old = p
		} else {
			next = append(next, p)
		}
	}
	p, err := f(old)
	if err != nil {
		return err
	}
	// The old one, too: without it numbers change as much as with a new one.
	for _, changed := range []*Plugin{old, p} {
		if err := r.frozenLocked(changed); err != nil {
			return err
		}
	}
	if p != nil {
		next = append(next, p)
	}
	if len(next) > MaxPlugins {
		return invalid("plugin", name, fmt.Sprintf("at most %d plugins", MaxPlugins))
	}
	slices.SortFunc(next, func(a, b *Plugin) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), strings.Compare(a.Name, b.Name))
	})
	r.plugins = next
	for l := range r.lines {
		l.chain.Store(r.chainLocked(l))
	}
	return nil
}

// frozenLocked refuses a change of a plugin that replaces the numbers of an open
// line: those with it and those without it could be the same.
func (r *Registry) frozenLocked(p *Plugin) error {
	if p == nil || p.Replace == nil {
		return nil
	}
	for l := range r.lines {
		if p.serves(l.strategy, l.tag) {
			return invalid("plugin", p.Name, fmt.Sprintf("one that replaces numbers of no tag in use, as it does those of %q", l.tag))
		}
	}
	return nil
}

// Ask asks the plugins of a tag, without issuing, whether n of its numbers may be
// taken, as a call of a line does: for numbers granted in one piece, to be issued
// elsewhere. The tag need not be open.
func (r *Registry) Ask(ctx context.Context, strategy, tag string, n int64) error {
	l := &Line{lineName: lineName{strategy, tag}, registry: r}
	ch := r.chain(l)
	if ch == nil {
		return nil
	}
	c := Call{&l.lineName, int(n)}
	if err := ch.before(ctx, c); err != nil {
		return l.failed(ctx, ch, c, err)
	}
	return nil
}

// Frozen returns what the numbers of a tag would be replaced by, as Plugin.Frozen
// says it, in the plugins' order.
func (r *Registry) Frozen(strategy, tag string) []string {
	ch := r.chain(&Line{lineName: lineName{strategy, tag}})
	if ch == nil {
		return nil
	}
	var frozen []string
	for _, p := range ch.plugins {
		if p.Replace != nil {
			frozen = append(frozen, cmp.Or(p.Frozen, p.Name))
		}
	}
	return frozen
}

// Original returns the number that the plugins of a tag show as another one; the
// same where none replaces numbers, and false where one cannot tell.
func (r *Registry) Original(strategy, tag string, shown hapax.ID) (id hapax.ID, ok bool) {
	ch := r.chain(&Line{lineName: lineName{strategy, tag}})
	if ch == nil {
		return shown, true
	}
	for _, p := range slices.Backward(ch.plugins) {
		switch {
		case p.Replace == nil:
			continue
		case p.Original == nil:
			return 0, false
		}
		id, err := p.Original(tag, shown)
		if err != nil {
			return 0, false
		}
		shown = id
	}
	return shown, true
}

// Records reports whether the history that is among the plugins sees what is issued of
// a tag. With an empty tag it reports whether that holds for all tags of the strategy.
func (r *Registry) Records(strategy, tag string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.plugins {
		if p.history != nil && !p.Off && (tag != "" || len(p.Tags) == 0) && p.serves(strategy, tag) {
			return true
		}
	}
	return false
}

// History returns the history that is among the plugins; nil if there is none.
func (r *Registry) History() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.plugins {
		if p.history != nil {
			return p.history
		}
	}
	return nil
}

func (r *Registry) chain(l *Line) *chain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chainLocked(l)
}

func (r *Registry) chainLocked(l *Line) *chain {
	ch := &chain{}
	for _, p := range r.plugins {
		if !p.Off && p.serves(l.strategy, l.tag) {
			ch.add(p)
		}
	}
	if len(ch.plugins) == 0 {
		return nil
	}
	return ch
}

// Refused tells the strategy's rejection handler of a call, or of a tag that could not
// be opened, where the registry does not see that itself.
func (r *Registry) Refused(ctx context.Context, f Refusal) {
	r.mu.Lock()
	e := r.strategies[f.Strategy]
	r.mu.Unlock()
	var h *RejectionHandler
	if e != nil {
		h = e.onReject.Load()
	}
	if h == nil {
		r.log.warn(ctx, "a number was refused", "strategy", f.Strategy, "tag", f.Tag, "n", f.N, "code", string(hapax.CodeOf(f.Err)), "err", f.Err)
		return
	}
	// The call has failed already: a handler that panics must not end its process as well.
	defer func() {
		if v := recover(); v != nil {
			r.log.warn(ctx, "a rejection handler panicked", "strategy", f.Strategy, "panic", v)
		}
	}()
	(*h)(ctx, f)
}

// logFailure reports a failure that the caller does not see.
func (r *Registry) logFailure(ctx context.Context, tag string, f *PluginError) {
	r.log.warn(ctx, "a plugin failed", "plugin", f.Plugin, "hook", f.Hook, "tag", tag, "err", f.Err, "stack", string(f.Stack))
}

// limitedLog writes one line a second at most, lest a caller that asks too much fills the
// log.
type limitedLog struct {
	logger *slog.Logger // nil: slog.Default()
	last   atomic.Int64 // when the last line was written, in ns
	left   atomic.Int64 // lines left out since
}

func (l *limitedLog) warn(ctx context.Context, msg string, args ...any) {
	now, last := time.Now().UnixNano(), l.last.Load()
	// A negative age writes too: a clock that was set back would silence the log until it caught up.
	if age := now - last; age >= 0 && age < int64(time.Second) || !l.last.CompareAndSwap(last, now) {
		l.left.Add(1)
		return
	}
	if n := l.left.Swap(0); n > 0 {
		args = append(args, "left_out", n)
	}
	logger := l.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.WarnContext(ctx, msg, args...)
}

func checkName(what, name string) error {
	if err := hapax.ValidateName(what, name); err != nil {
		return invalid(what, name, "valid UTF-8 of 1 to 128 bytes without control characters")
	}
	return nil
}

func invalid(field, value, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

func unknown(what, name string) error {
	return &hapax.ValueError{Field: what, Value: name, Allowed: "the name of a registered " + what, Err: hapax.ErrInvalidArgument}
}
