// Package service turns tags and pools into numbers: it is what every protocol
// of the server stands on.
//
// A tag in use has a line: a segment issuer of its own, or the issuer of its
// worker pool, which all snowflake tags of that pool share. Lines are opened at
// first use, by one goroutine however many callers wait for it, and found from
// then on by one look-up in a table that readers never lock.
//
//	           first use                    idle, deleted, Close
//	(nothing) ------------> opening ----> open -----------------> closed
//	    ^                      |                                     |
//	    |   refused, for 1 s   |                                     |
//	    +----------------------+-------------------------------------+
//
// A service starts and stays up while its store is away: it issues what is
// granted, and what it cannot issue fails with ErrStoreUnavailable until the
// store comes. No call for numbers waits longer than Options.MaxWait; one of several
// steps, such as the first lease of a tag's numbers, may wait that long for each.
package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

var (
	_ hapax.SegmentStore = (*Service)(nil)
	_ driver.TagStore    = (*Service)(nil)
	_ hapax.WorkerStore  = (*Service)(nil)
	_ driver.PoolStore   = (*Service)(nil)
	_ driver.Clock       = (*Service)(nil)
)

const (
	maxOpening = 64   // lines that are opened at the same time
	maxClosing = 1024 // lines that are closed at the same time, so that a store can write many in one step

	maxCloseErrors = 10 // errors of closing that are told one by one

	staleTries = 3 // how often a call looks a line up again that was closed under it
)

// A Service issues the numbers of many tags over one store. Its methods are
// safe for concurrent use.
//
// It is put together of parts, each with its own state and lock, which know only those to
// their right and report events through one observer:
//
//	reports, ebbs, tracer --> codes, workers --> definitions --> hooks, floors --> layouts --> core
//	poolTable -------------> workers
//	leases ----------------> definitions
//
// Package health watches over them, from a snapshot. What is left here issues: it opens lines, finds
// them, and closes them.
//
// It implements the store interfaces too, for clients that lease grants instead
// of numbers. The store given to New is one behind a witness (store/witness), so
// that a grant is recorded before it is used or leaves.
type Service struct {
	*core
	*layouts
	*floors
	*hooks
	*definitions
	*leases
	*workers
	*poolTable
	*health.Monitor
	*tracer
	*codes
	*ebbs
	*reports

	tags    tagTable
	parting parting

	unreadable atomic.Pointer[map[string]string] // tags that cannot be read, and why, as of the last review

	slots   chan struct{} // one per line being opened
	foreign chan struct{} // one per line that a strategy is opening

	mu      sync.Mutex // guards the fields below; never held while waiting
	opening map[string]*attempt
	refused refusals // tags that could not be opened
	absent  refusals // tags that Existing did not find
}

// New returns a service over a store, which stays the caller's to close. It does
// not wait for the store; errors are about the options.
func New(ctx context.Context, store driver.Store, opts Options) (*Service, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &core{
		opts: opts, log: opts.Logger, strategies: opts.Strategies, metrics: health.NewCounters(opts.poolNames(), maps.Keys(messages)),
		began: time.Now(), engine: hapax.NewEngineClock(opts.Clock),
		errWait: fmt.Errorf("the service waits no longer than %v: %w", opts.MaxWait, context.DeadlineExceeded),
	}
	if c.strategies == nil {
		c.strategies = strategy.NewRegistry(strategy.Options{Logger: c.log})
	}
	s := assemble(c)
	c.observe = s.observe
	c.store = watch.New(store, opts.Ledger, opts.StoreTimeout, define.MakerBy(c.strategies))
	c.store.Admit(s.admitLine, s.admitWorkers)
	if err := s.registerBuiltIn(); err != nil {
		return nil, err
	}
	// The context is that of the start, whose end is no Close.
	c.life, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.Monitor = newMonitor(s)
	c.children.Go(s.refresh)
	return s, nil
}

// assemble puts the parts of a service together, each on those before it.
func assemble(c *core) *Service {
	s := &Service{
		core: c, slots: make(chan struct{}, maxOpening), foreign: make(chan struct{}, maxOpening),
		opening: map[string]*attempt{}, refused: refusals{}, absent: refusals{},
	}
	s.tags.init()
	s.layouts, s.hooks = newLayouts(c), &hooks{c}
	s.floors = &floors{layouts: s.layouts}
	s.definitions = newDefinitions(c, s.floors, s.hooks, s.reopen)
	s.codes = &codes{core: c, definitions: s.definitions, tags: &s.tags}
	s.leases = &leases{core: c, definitions: s.definitions, holders: &holders{}}
	s.workers = &workers{core: c, layouts: s.layouts}
	s.poolTable = newPoolTable(c, s.workers)
	s.tracer = &tracer{core: c, codes: s.codes, workers: s.workers, tracing: make(chan struct{}, 1)}
	s.ebbs = &ebbs{core: c, tags: &s.tags}
	s.reports = &reports{c}
	return s
}

// Next issues one number of a tag. Errors, beyond those of hapax.Issuer:
// ErrInvalidTag, ErrTagNotFound, ErrTagDeleted, ErrLimitExceeded.
func (s *Service) Next(ctx context.Context, tag string) (hapax.ID, error) {
	// Not []byte(tag), which would be a copy for each number: NextBytes only reads the name.
	return s.NextBytes(ctx, unsafe.Slice(unsafe.StringData(tag), len(tag)))
}

// TryNext issues one number of a segment tag without plugins, if one is in hand.
func (s *Service) TryNext(tag string) (hapax.ID, bool) {
	if l := s.tags.find(tag); l != nil && l.segment != nil && l.plugged.Plain() {
		return l.segment.TryNext()
	}
	return 0, false
}

// NextBytes is Next for callers that have the tag's name in a buffer, which it neither changes
// nor keeps.
func (s *Service) NextBytes(ctx context.Context, tag []byte) (hapax.ID, error) {
	if caller := auth.FromContext(ctx); caller != nil {
		// Whether its period has begun is looked up by the name as a string.
		if bytes.Contains(tag, []byte(define.LineMark)) {
			if err := s.charge(ctx, string(tag), 1); err != nil {
				return 0, err
			}
		} else if err := caller.TakeNumbers(1); err != nil {
			return 0, err
		}
	}
	l := s.tags.findBytes(tag)
	if l == nil {
		return s.nextCold(ctx, string(tag))
	}
	if !l.plugged.Plain() {
		return s.nextPlugged(ctx, l)
	}
	if id, ok := l.issuer.TryNext(); ok {
		return id, nil
	}
	return s.nextCold(ctx, l.name)
}

// nextPlugged issues one number of an open line through its plugins.
func (s *Service) nextPlugged(ctx context.Context, l *line) (hapax.ID, error) {
	id, err := l.plugged.Next(ctx)
	if err != nil {
		uncharge(ctx, 1, err)
	}
	return id, err
}

// nextCold issues one number of a tag that is not open, or of a line without plugins that
// has none in hand.
func (s *Service) nextCold(ctx context.Context, tag string) (id hapax.ID, err error) {
	var (
		last   *line
		failed error // of plugins, which are called once
	)
	err = s.issue(ctx, tag, func(ctx context.Context, l *line) (err error) {
		last = l
		if !l.plugged.Plain() {
			id, failed = l.plugged.Next(ctx)
			return nil
		}
		id, err = s.nextOn(ctx, l)
		return err
	})
	if err != nil && last != nil {
		last.plugged.Refused(ctx, 1, err)
	}
	if err = cmp.Or(err, failed); err != nil {
		uncharge(ctx, 1, err)
	}
	return id, err
}

// nextOn issues one number of an open line, below its plugins.
func (s *Service) nextOn(ctx context.Context, l *line) (hapax.ID, error) {
	if id, ok := l.issuer.TryNext(); ok {
		return id, nil
	}
	s.waited(l)
	return l.issuer.Next(ctx)
}

// waited counts a call on a line that could not be served without a wait.
func (s *Service) waited(l *line) {
	if l.periods != nil {
		return // the period's line counts
	}
	if flake, ok := l.issuer.(*hapax.Snowflake); ok && flake.Stats().Remaining > 0 {
		s.metrics.WaitedForTick()
	} else {
		s.metrics.WaitedForStore()
	}
}

// charge counts n numbers of a tag for the caller, if it may take them.
func (s *Service) charge(ctx context.Context, tag string, n int64) error {
	caller := auth.FromContext(ctx)
	if caller == nil {
		return nil
	}
	if strings.Contains(tag, define.LineMark) && !caller.NamesLines(define.LineMark) {
		if err := s.checkBegun(ctx, tag); err != nil {
			return err
		}
	}
	return caller.TakeNumbers(n)
}

// uncharge gives back what the caller was charged for n numbers that it did not get,
// unless a plugin failed on them, which burnt them.
func uncharge(ctx context.Context, n int64, err error) {
	if _, burnt := errors.AsType[*strategy.PluginError](err); !burnt {
		auth.FromContext(ctx).ReturnNumbers(n)
	}
}

// NextN fills dst with ascending numbers of a tag, at most Options.MaxCount.
// dst[:n] is issued even when the error is not nil.
func (s *Service) NextN(ctx context.Context, tag string, dst []hapax.ID) (n int, err error) {
	if len(dst) > s.opts.MaxCount {
		return 0, outOfRange("count", len(dst), fmt.Sprintf("1 to %d", s.opts.MaxCount))
	}
	if err := s.charge(ctx, tag, int64(len(dst))); err != nil {
		return 0, err
	}
	if l := s.tags.find(tag); l != nil && l.plugged.Plain() {
		if n = l.issuer.TryNextN(dst); n == len(dst) {
			return n, nil
		}
		l.began(n)
	}
	err = s.through(ctx, tag, func(ctx context.Context, l *line) error {
		m, err := l.plugged.NextN(ctx, dst[n:])
		n += m
		return err
	})
	uncharge(ctx, int64(len(dst)-n), err)
	return n, err
}

// fill is NextN of an open line, below its plugins.
func (s *Service) fill(ctx context.Context, l *line, dst []hapax.ID) (n int, err error) {
	if n = l.issuer.TryNextN(dst); n == len(dst) {
		return n, nil
	}
	s.waited(l)
	m, err := l.issuer.NextN(ctx, dst[n:])
	return n + m, err
}

// MaxCount is how many numbers one call of NextN may ask for.
func (s *Service) MaxCount() int { return s.opts.MaxCount }

// Reserve issues n numbers that follow each other of a segment tag, 1 to MaxReserve. Where the
// tag has a delta its numbers do not: ErrKindMismatch.
func (s *Service) Reserve(ctx context.Context, tag string, n int64) (hapax.Grant, error) {
	if n < 1 || n > MaxReserve {
		return hapax.Grant{}, outOfRange("count", n, fmt.Sprintf("1 to %d", MaxReserve))
	}
	if err := s.charge(ctx, tag, n); err != nil {
		return hapax.Grant{}, err
	}
	var g hapax.Grant
	err := s.through(ctx, tag, func(ctx context.Context, l *line) (err error) {
		if n > 1 && l.delta > 1 { // before the plugins are asked, and anything is taken
			return errApart(tag, l.delta)
		}
		g, err = l.plugged.InARow(ctx, n, func(ctx context.Context) (g hapax.Grant, err error) {
			err = s.on(ctx, l, func(ctx context.Context, l *line) error { g, err = l.reserve(ctx, n); return err })
			return g, err
		})
		if err == nil && n > 1 && g.Len() != n { // a strategy may issue from another tag than it stands for
			return errApart(tag, g.Len()/n)
		}
		return err
	})
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) { // whoever leaves may have burnt them
		uncharge(ctx, n, err)
	}
	return g, err
}

func errApart(tag string, delta int64) error {
	return fmt.Errorf("%w: the numbers of %q are %d apart, so none follow each other: ask for one at a time, or for a list of them", hapax.ErrKindMismatch, tag, delta)
}

// Worker returns the worker ID with which this node issues the numbers of a snowflake
// tag, opening the tag as Next does; false if it has none.
func (s *Service) Worker(ctx context.Context, tag string) (int64, bool) {
	ctx, cancel := s.capped(ctx)
	defer cancel()
	l, err := s.line(ctx, tag)
	if err != nil {
		return 0, false
	}
	flake, ok := l.issuer.(*hapax.Snowflake)
	if !ok {
		return 0, false
	}
	return flake.Stats().Worker, true
}

// Last returns the number of a segment tag that this node issued last; false if
// there is none. Numbers of snowflake tags, and those that a plugin replaces, have no
// last one that could be told.
func (s *Service) Last(tag string) (hapax.ID, bool) {
	l := s.tags.find(tag)
	if l != nil && l.plugged.Replaces() {
		return 0, false
	}
	if l != nil && l.periods != nil {
		l = l.periods.line()
	}
	if l != nil && l.segment != nil {
		return l.segment.Last()
	}
	return 0, false
}

// issue calls f with the tag's line, which it opens if need be.
func (s *Service) issue(ctx context.Context, tag string, f func(context.Context, *line) error) error {
	ctx, cancel := s.capped(ctx)
	defer cancel()
	l, err := s.line(ctx, tag)
	if err != nil {
		return s.explain(err)
	}
	return s.on(ctx, l, f)
}

// on calls f with a line, and again with the one that is open by then if it was closed
// meanwhile. The context is capped.
func (s *Service) on(ctx context.Context, l *line, f func(context.Context, *line) error) error {
	for try := 1; ; try++ {
		err := f(ctx, l)
		switch {
		case err == nil:
			return nil
		// A line that was used up before a stop stays closed: what it took anew would be lost.
		case errors.Is(err, hapax.ErrClosed) && !l.dry.Load() && try < staleTries:
			s.drop(l) // it was closed under this call, or the service is
		case isGone(err):
			s.drop(l)
			s.refuse(l.name, err)
			return err
		default:
			return s.explain(err)
		}
		if l, err = s.line(ctx, l.name); err != nil {
			return s.explain(err)
		}
	}
}

// isGone reports whether err means that the tag is not what it was when its line
// was opened.
func isGone(err error) bool {
	return errors.Is(err, hapax.ErrTagDeleted) || errors.Is(err, hapax.ErrTagNotFound)
}

// Close stops opening lines, closes every issuer, which gives worker IDs back,
// and waits for all goroutines, until the context ends. It is idempotent; other
// methods fail with ErrClosed from then on.
func (s *Service) Close(ctx context.Context) error {
	s.gate.Lock()
	// Before the wait: nothing is added from here on to the children that are waited for.
	s.closed = true
	s.gate.Unlock()
	s.parting.begin()
	s.stop()
	ended := make(chan struct{})
	// It outlives a Close that gives up, since a WaitGroup knows no context.
	go func() { s.children.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		return &hapax.WaitError{Cause: hapax.ErrClosed, Context: context.Cause(ctx)}
	}
	return s.closeAll(ctx)
}

// closeAll closes every issuer, those of tags by name: what lies side by side in a store
// is then written together.
func (s *Service) closeAll(ctx context.Context) error {
	var (
		wg     sync.WaitGroup
		slots  = make(chan struct{}, maxClosing)
		mu     sync.Mutex // guards errs and failed
		errs   []error
		failed int
	)
	for issuer := range s.issuers() {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := issuer.Close(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if failed++; failed <= maxCloseErrors {
					errs = append(errs, err)
				}
			}
		})
	}
	wg.Wait()
	if failed > maxCloseErrors {
		errs = append(errs, fmt.Errorf("and %d more", failed-maxCloseErrors))
	}
	return errors.Join(errs...)
}

// issuers yields every issuer once.
func (s *Service) issuers() func(yield func(hapax.Issuer) bool) {
	return func(yield func(hapax.Issuer) bool) {
		lines := slices.SortedFunc(s.tags.all(), func(a, b *line) int { return strings.Compare(a.name, b.name) })
		for _, l := range lines {
			if !yield(l.plugged) {
				return
			}
		}
		for _, p := range s.openPools() {
			if !yield(p.issuer.Load()) {
				return
			}
		}
	}
}
