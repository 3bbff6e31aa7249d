package strategy

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hapax-id/hapax"
)

// A Plugin stands around what issuers do. Its hooks are optional and are called
// from many goroutines at the same time. They get the context of the call, so
// that [CallerOf] tells the caller's name.
//
// A hook that panics has failed: the failure is reported with the plugin's name.
type Plugin struct {
	Name  string // 1 to 128 bytes, unique in its registry
	Order int    // smaller first; equal ones in the order of their names
	Off   bool   // registered, and not called

	// Strategies and Tags choose the lines that the plugin serves: those whose
	// strategy and tag are among them. Default: all.
	Strategies, Tags []string

	// Before may veto a call. The error's text is what the caller reads; if it has
	// a method RetryAt() time.Time, the VetoError carries that. No later plugin is
	// asked, and nothing is issued.
	Before func(ctx context.Context, c Call) error

	// After sees what was issued. If it fails the numbers are issued all the same,
	// and the failure is reported.
	After func(ctx context.Context, c Call, ids Numbers) error

	// Strict has the call fail where After does: the numbers are burnt then.
	Strict bool

	// Replace puts other numbers in the place of those that were issued, and must
	// be injective; see the package's documentation. If it fails the call fails,
	// and the numbers are burnt. It must not keep the slice.
	Replace func(ctx context.Context, c Call, ids []hapax.ID) error

	// Frozen says in one word what Replace depends on, such as the ID of its key. A
	// server stores it with each tag, and refuses a tag that is stored with
	// another one. Default: the plugin's name.
	Frozen string

	// Original is the reverse of Replace, for tracing a number: it returns the
	// one that is shown as another. Optional.
	Original func(tag string, shown hapax.ID) (hapax.ID, error)

	// OnError is told of a call that failed and of hooks that failed.
	OnError func(ctx context.Context, c Call, err error)

	// Usage, if it is set, tells what the plugin has counted. A server shows it.
	Usage func() []Usage

	history *History // whose plugin it is

	counts *pluginCounts // set by the registry; copies share it
}

// Usage is what was issued or asked for in windows of time: of one caller of a tag, of
// a tag or of a caller.
type Usage struct {
	Tag, Caller string // empty where it is of all
	Window      time.Duration
	Current     int64 // numbers since the current window began
	Previous    int64 // numbers in the whole window before it, where that is counted
	Limit       int64 // what a window may hold; 0 for no limit
}

// compare orders usages.
func (u Usage) compare(v Usage) int {
	return cmp.Or(strings.Compare(u.Tag, v.Tag), strings.Compare(u.Caller, v.Caller), cmp.Compare(u.Window, v.Window))
}

type pluginCounts struct{ vetoes, failures atomic.Int64 }

// Vetoes returns how many calls the plugin has vetoed since it was added.
func (p *Plugin) Vetoes() int64 {
	if p.counts == nil {
		return 0
	}
	return p.counts.vetoes.Load()
}

// Failures returns how many of its hooks have failed since it was added.
func (p *Plugin) Failures() int64 {
	if p.counts == nil {
		return 0
	}
	return p.counts.failures.Load()
}

// A Call is one call of a line, as plugins see it. Like [Numbers] it is small enough to
// be handed to a hook in registers, which is much of a hook's cost.
type Call struct {
	of *lineName
	N  int // numbers asked for
}

// A lineName says which line a call is of.
type lineName struct{ strategy, tag string }

// Strategy returns the name of the line's strategy.
func (c Call) Strategy() string { return c.of.strategy }

// Tag returns the name of the line's tag.
func (c Call) Tag() string { return c.of.tag }

// Numbers are the numbers that a call issued, to be read.
type Numbers struct {
	many  *hapax.ID // the first of count numbers in memory, unless it is nil
	one   hapax.ID  // the first of count numbers with equal distances
	step  hapax.ID
	count int
}

// newNumbers returns numbers that were issued. They are not copied.
func newNumbers(ids ...hapax.ID) Numbers {
	return Numbers{many: unsafe.SliceData(ids), count: len(ids)}
}

// Len returns how many there are.
func (n Numbers) Len() int {
	return n.count
}

// At returns the number at i, from 0.
func (n Numbers) At(i int) hapax.ID {
	if i < 0 || i >= n.count {
		panic(fmt.Sprintf("strategy: there is no number at %d of %d", i, n.count))
	}
	if n.many != nil {
		return unsafe.Slice(n.many, n.count)[i]
	}
	return n.one + hapax.ID(i)*n.step
}

// All yields the numbers in the order in which the caller gets them.
func (n Numbers) All() iter.Seq[hapax.ID] {
	return func(yield func(hapax.ID) bool) {
		for i := range n.Len() {
			if !yield(n.At(i)) {
				return
			}
		}
	}
}

// serves reports whether a line is one of the plugin's.
func (p *Plugin) serves(strategy, tag string) bool {
	return (len(p.Strategies) == 0 || slices.Contains(p.Strategies, strategy)) &&
		(len(p.Tags) == 0 || slices.Contains(p.Tags, tag))
}

// rejected makes a veto of the Before hook's error.
func (p *Plugin) rejected(err error) *VetoError {
	p.counts.vetoes.Add(1)
	r := &VetoError{Plugin: p.Name, Err: err}
	if retry, ok := err.(interface{ RetryAt() time.Time }); ok {
		r.At = retry.RetryAt()
	}
	return r
}

// failed makes a failure of a hook's error.
func (p *Plugin) failed(hook string, err error) *PluginError {
	p.counts.failures.Add(1)
	return &PluginError{Plugin: p.Name, Hook: hook, Err: err}
}

// panicked makes a failure of a recovered panic.
func (p *Plugin) panicked(hook string, value any) *PluginError {
	err, ok := value.(error)
	if !ok {
		err = fmt.Errorf("%v", value)
	}
	f := p.failed(hook, fmt.Errorf("panic: %w", err))
	f.Stack = debug.Stack()
	return f
}

// CallerKey is the key under which a context has the caller's name, a string. Most
// programs use [WithCaller]; a context of a type of its own can answer it, too, so
// that nothing is done for calls whose plugins do not ask.
type CallerKey struct{}

// WithCaller returns a context with the caller's name: that of an account, an
// address. It must not be a secret.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, CallerKey{}, caller)
}

// CallerOf returns the caller's name, "" if it is not known.
func CallerOf(ctx context.Context) string {
	caller, _ := ctx.Value(CallerKey{}).(string)
	return caller
}
