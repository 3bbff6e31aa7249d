package witness

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ondemand"
	"github.com/hapax-id/hapax/store/driver"
)

// Defaults of Options.
const (
	DefaultTimeout   = hapax.DefaultStoreTimeout
	DefaultHeartbeat = time.Second
)

// MaxAddress is how many bytes Options.Address has at most: each node knows those of all.
const MaxAddress = 256

// DefaultFile is the name of the witness in a directory that Open is given.
const DefaultFile = "witness"

// reopenEvery is how often a store that could not be opened is tried again.
const reopenEvery = 500 * time.Millisecond

// firstDial is how long the first attempt may take, so that it is soon known why a store
// cannot be reached: drivers try again until their time is over. Later ones have all of it.
const firstDial = 1200 * time.Millisecond

// Options tune a [Guarded] store. The zero value suits most uses.
type Options struct {
	// Name is the node's name for operators; default the machine's name. The middle of
	// one above MaxAddress bytes is left out.
	Name string

	// Address is where it can be found; for people. At most MaxAddress bytes.
	Address string

	// Timeout bounds one answer of the store; default 5 s.
	Timeout time.Duration

	// Heartbeat is how often the node writes to a shared store at least; default
	// 1 s, 100 ms to 1 min. A beat's time-out is four fifths of it. All nodes of a
	// store should have the same.
	Heartbeat time.Duration

	// Manual keeps the fleet from healing by itself: an operator decides about each
	// fence. One node with it is enough. It is for operators who fear that a copy was
	// put back by mistake, which healing makes permanent.
	Manual bool

	// Hold has this process end no fence by itself: it waits for Adopt or Settle. It is
	// for commands; others that live go on once this process has ended.
	Hold bool

	// Changed, if set, is called when the state, or the set of missing nodes, has changed,
	// with no lock held.
	Changed func(Status)

	// Log, if set, is told all else that operators should know.
	Log *slog.Logger

	// Clock is for tests; default the system's, with the time it was asleep.
	Clock func() time.Duration
}

func (o Options) withDefaults() (Options, error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = DefaultHeartbeat
	}
	if o.Heartbeat < 100*time.Millisecond || o.Heartbeat > time.Minute {
		return o, &hapax.ValueError{Field: "heartbeat", Value: o.Heartbeat, Allowed: "100ms to 1m0s", Err: hapax.ErrInvalidArgument}
	}
	if len(o.Address) > MaxAddress {
		return o, &hapax.ValueError{Field: "address", Value: fmt.Sprintf("(%d bytes)", len(o.Address)), Allowed: fmt.Sprintf("at most %d bytes", MaxAddress), Err: hapax.ErrInvalidArgument}
	}
	if o.Name == "" {
		o.Name, _ = os.Hostname()
	}
	if half := MaxAddress/2 - len("…"); len(o.Name) > MaxAddress {
		o.Name = strings.ToValidUTF8(o.Name[:half], "") + "…" + strings.ToValidUTF8(o.Name[len(o.Name)-half:], "")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = systemClock
	}
	return o, nil
}

// beatTimeout is how long one heartbeat may take.
func (o Options) beatTimeout() time.Duration { return o.Heartbeat * 4 / 5 }

// wait is the longest that a living node takes to meet the store again: an
// interval, a time-out, a dial with its login, one more beat, and a margin.
func (o Options) wait() time.Duration { return waitOf(o.Heartbeat) }

func waitOf(heartbeat time.Duration) time.Duration { return 5 * heartbeat }

// systemClock is a clock that counts the time that the machine was asleep, where
// the system can tell that.
func systemClock() time.Duration { return withSleep(hapax.SystemClock{}) }

func withSleep(c hapax.Clock) time.Duration {
	_, mono := c.Now()
	if sleeper, ok := c.(interface{ Asleep() time.Duration }); ok {
		mono += sleeper.Asleep()
	}
	return mono
}

// Open returns the guarded store that open opens, with a witness in the directory,
// or the file, at path. It is how a program that embeds the library opens a store
// that it shares with others: the directory must last, and belong to this process
// alone.
//
// open is called again for a handle of its own for heartbeats, after a failure and
// after a time-out: each call returns a new handle. Open does not wait for the
// store. ErrStoreLocked if another process uses the witness.
func Open(ctx context.Context, open func(context.Context) (driver.Store, error), path string, opts Options) (*Guarded, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, DefaultFile)
	}
	w, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	g, err := GuardOpened(open, w, opts)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	g.closes = true
	return g, ctx.Err()
}

// GuardOpened is [Open] with a witness that the caller has opened, and closes.
func GuardOpened(open func(context.Context) (driver.Store, error), w *Witness, opts Options) (*Guarded, error) {
	return guard(newHandle(open, false), newHandle(open, false), w, opts)
}

// Guard is [GuardOpened] for a store of which there is one handle only, such as an
// embedded one. On a shared store a call that hangs may then hold up heartbeats.
func Guard(store driver.Store, w *Witness, opts Options) (*Guarded, error) {
	h := newHandle(func(context.Context) (driver.Store, error) { return store, nil }, true)
	return guard(h, h, w, opts)
}

func guard(calls, beats *handle, w *Witness, opts Options) (*Guarded, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Guarded{
		opts: opts, witness: w, calls: calls, beats: beats, run: rand.Text(), kick: make(chan struct{}, 1),
		state: Joining, changed: make(chan struct{}), shared: true, peers: map[string]*sighting{},
	}
	calls.clock, beats.clock = opts.Clock, opts.Clock
	if beats != calls {
		beats.again = true // it is dialled once the other was
	}
	g.noted = g.now()
	g.used.turn = g.noted
	if l := w.latch(); l.State != "" {
		g.state = l.State
		g.cause = fmt.Errorf("%w: %s", hapax.ErrFenced, l.Why)
		if l.isRetired() {
			g.cause = l.Retired.Err()
		}
	}
	g.since = g.now()
	g.life, g.stop = context.WithCancel(context.Background())
	g.allocations, g.handBacks = g.batchAllocations(allocateFew), g.batchHandBacks()
	g.loop.Go(g.turns)
	return g, nil
}

func (g *Guarded) now() time.Duration { return g.opts.Clock() }

// A store is one that can be guarded.
type store interface {
	driver.Store
	driver.Guarding
}

// A handle is a connection with the store that is dialled when it is needed.
type handle struct {
	open   func(context.Context) (driver.Store, error)
	fixed  bool // open returns the same store each time, so that it is never replaced
	clock  func() time.Duration
	demand *ondemand.Handle[store]

	mu      sync.Mutex    // guards what follows; never held during I/O
	again   bool          // an attempt was made before
	long    *attempt      // one that goes on beside the first, which has failed
	heard   time.Duration // when a call was answered last
	hangs   bool          // calls have run into their deadlines since silent, and none was answered
	silent  time.Duration
	dialled time.Duration // when the store was dialled last
	closed  bool
	closing sync.WaitGroup

	alive context.Context    // ends when the store is replaced
	ended context.CancelFunc // ends alive
}

func newHandle(open func(context.Context) (driver.Store, error), fixed bool) *handle {
	h := &handle{open: open, fixed: fixed}
	h.demand = ondemand.New(ondemand.Options[store]{
		Open: h.dialStore, Pause: reopenEvery, Clock: func() time.Duration { return h.clock() }, Due: h.goesOn, Ended: errClosed(),
	})
	return h
}

// get returns the store, and dials where that was not tried just now.
func (h *handle) get(ctx context.Context) (store, error) { return h.demand.Get(ctx) }

// dialStore dials a store that can be guarded.
func (h *handle) dialStore(ctx context.Context) (store, error) {
	opened, err := h.dial(ctx)
	s, ok := opened.(store)
	// A handle of a store that cannot be guarded is closed, unless it is the caller's own.
	if err == nil && !ok {
		err = fmt.Errorf("%w: %T has no room for heartbeats and a fence", hapax.ErrNotSupported, opened)
		if !h.fixed {
			err = errors.Join(err, opened.Close())
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.again = true
	if err != nil {
		return nil, unavailable(err)
	}
	// Before anybody has the store: its calls end with alive.
	h.dialled = h.clock()
	h.alive, h.ended = context.WithCancel(context.Background())
	return s, nil
}

// dial opens the store. The first attempt is short, see firstDial; where it is not over by half
// of that, another one begins beside it, which has the time that a distant store takes. Its
// result is the next call's.
func (h *handle) dial(ctx context.Context) (driver.Store, error) {
	h.mu.Lock()
	long, first := h.takeLongLocked(), !h.again && !h.fixed
	h.mu.Unlock()
	switch {
	case long != nil:
		select {
		case <-long.done:
			return long.store, long.err
		case <-ctx.Done():
			h.abandon(long)
			return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
		}
	case !first:
		return h.open(ctx)
	}
	short := h.begin(ctx, firstDial)
	select {
	case <-short.done:
		return short.store, short.err
	case <-time.After(firstDial / 2):
	}
	long = h.begin(context.WithoutCancel(ctx), DefaultTimeout)
	select {
	case <-long.done:
		h.abandon(short)
		return long.store, long.err
	case <-short.done:
	}
	if short.err == nil {
		h.abandon(long)
		return short.store, nil
	}
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.long = long
	}
	h.mu.Unlock()
	if closed {
		h.abandon(long)
	}
	return nil, short.err
}

// An attempt is one to open the store.
type attempt struct {
	cancel context.CancelFunc
	done   chan struct{} // closed once store and err are known
	store  driver.Store
	err    error
}

func (h *handle) begin(ctx context.Context, limit time.Duration) *attempt {
	ctx, cancel := context.WithTimeout(ctx, limit)
	a := &attempt{cancel: cancel, done: make(chan struct{})}
	// Before close waits for all that has begun: nothing may begin while it does.
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		cancel()
		a.err = errClosed()
		close(a.done)
		return a
	}
	h.closing.Go(func() {
		defer cancel()
		defer close(a.done)
		a.store, a.err = h.open(ctx)
	})
	return a
}

// abandon ends an attempt that is of no more use.
func (h *handle) abandon(a *attempt) {
	a.cancel()
	h.closing.Go(func() {
		if <-a.done; a.err == nil {
			_ = a.store.Close()
		}
	})
}

// takeLongLocked returns an attempt that goes on, for one caller alone.
func (h *handle) takeLongLocked() *attempt {
	long := h.long
	h.long = nil
	return long
}

// goesOn reports whether an attempt goes on, for whose result the next call waits.
func (h *handle) goesOn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.long != nil
}

// peek returns the store; nil where it is not dialled.
func (h *handle) peek() store {
	s, _ := h.demand.Peek()
	return s
}

// isSplit reports whether a step of the store is several writes; not before it is dialled.
func (h *handle) isSplit() bool {
	s := h.peek()
	return s != nil && s.Split()
}

// drop closes a handle that is of no more use; the next call dials anew.
func (h *handle) drop(s store) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fixed || h.closed || s == nil || h.peek() != s {
		return
	}
	h.demand.Take() // it is s still: nobody else takes it without the lock
	h.hangs = false
	h.ended()
	// Elsewhere: to close a connection that hangs may take long, and the lock is held.
	h.closing.Go(func() { _ = s.Close() })
}

// while returns a context that ends once the store is replaced, too: a survey that waits for an
// answer then waits in vain, and keeps the next one from being made.
func (h *handle) while(ctx context.Context, s store) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.peek() != s {
		cancel()
		return ctx, cancel
	}
	stop := context.AfterFunc(h.alive, cancel)
	return ctx, func() { stop(); cancel() }
}

// answered notes how a call ended. A handle that has answered none for as long as a call
// may take is replaced; a caller's own deadline may be shorter than that.
func (h *handle) answered(s store, began time.Duration, ok bool, limit time.Duration) {
	h.mu.Lock()
	now, is := h.clock(), h.peek() == s
	switch {
	case !is: // it was replaced meanwhile
	case ok:
		h.heard, h.hangs = now, false
	// An answer since this call began shows that the connection lives, and the call alone is slow.
	case h.heard < began && !h.hangs:
		h.hangs, h.silent = true, began
	}
	drop := is && h.hangs && now-h.silent >= limit
	h.mu.Unlock()
	if drop {
		h.drop(s)
	}
}

// dialledAt returns when the store was dialled last.
func (h *handle) dialledAt() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dialled
}

func (h *handle) close() error {
	s, open := h.demand.End() // first: a store given out after ended would have calls that nothing ends
	h.mu.Lock()
	long := h.takeLongLocked()
	h.closed = true
	if h.ended != nil {
		h.ended()
	}
	h.mu.Unlock()
	// Abandoned attempts and replaced handles are closed elsewhere.
	defer h.closing.Wait()
	if long != nil {
		h.abandon(long)
	}
	if open {
		return s.Close()
	}
	return nil
}

func errClosed() error { return fmt.Errorf("%w: the store", hapax.ErrClosed) }

// unavailable returns an error without a sentinel as ErrStoreUnavailable; see hapax.StoreError.
func unavailable(err error) error { return hapax.StoreError(err) }
