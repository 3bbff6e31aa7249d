package redismongo

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// Defaults of Options.
const (
	DefaultPrefix    = "hapax:seq:"
	DefaultThreshold = 20 // percent
	DefaultTimeout   = time.Second
	DefaultReserve   = 1_000_000 // numbers
)

const (
	maxPrefixBytes = 64
	rightFor       = 2 * time.Second        // how long the right to install a segment lasts
	retryEvery     = 100 * time.Millisecond // while Redis or the store is away
	pollEvery      = 2 * time.Millisecond   // while another process fetches a segment
	maxTake        = 1 << 20                // numbers in one request to Redis

	maxExtendThreshold = 90
	maxReserve         = hapax.MaxStep / 100 * (100 - maxExtendThreshold) // so that a segment with it can be asked for
)

// stepAim has segments last 20 to 40 minutes: while the store is away for less than the most of
// that, numbers go on.
const stepAim = 20 * time.Minute

// StoreLoss tells what happens when the store is away and the numbers that Redis
// has run out.
type StoreLoss string

// The ways to go through the loss of the store. Either issues nothing that the store
// has not granted.
const (
	// Refuse issues what is left of the segments that Redis was given, and then
	// waits for the store.
	Refuse StoreLoss = "refuse"

	// Extend has the store grant Options.Reserve numbers ahead, which Redis holds as
	// the rest of its segment, so that every process goes on, in order, to the end of
	// them. They are a gap when Redis loses them.
	Extend StoreLoss = "extend"
)

// Options are the settings of an issuer; the zero value is useful. All processes
// that share a tag use the same.
type Options struct {
	// Prefix begins the hash's key; up to 64 bytes without braces; default
	// DefaultPrefix.
	Prefix string

	// Start, Step, MinStep and MaxStep define the tag at its first use; see
	// hapax.Tag for the defaults. Step is the size of the first segment; later ones
	// last 20 to 40 minutes, between MinStep and MaxStep.
	Start, Step, MinStep, MaxStep int64

	// Threshold is how much of a segment is used when the next one is fetched, in
	// percent, 1 to 100; default DefaultThreshold.
	Threshold int

	// OnStoreLoss is Refuse (the default) or Extend.
	OnStoreLoss StoreLoss

	// Reserve is how many numbers Redis holds at least, with Extend, when the next
	// segment is due; default DefaultReserve. Segments grow to
	// Reserve * 100 / (100 - Threshold), whatever MaxStep says.
	Reserve int64

	// WithoutEval counts in transactions (WATCH, MULTI and EXEC) instead of scripts, for
	// a Redis that does not let an account run those. A call is three round trips
	// instead of one, the calls of a process go one after the other, and those of
	// several processes get in one another's way. Processes of either way may share a
	// tag.
	WithoutEval bool

	// Timeout is how long Redis may take for an answer before it counts as away;
	// default DefaultTimeout. The client's own timeouts count where they are longer,
	// unless its options have ContextTimeoutEnabled.
	Timeout time.Duration

	// Observer, if set, receives events: EventStoreLost and EventStoreBack for
	// Redis, EventGrant for segments that Redis got, EventRefused for those that
	// cannot be used, and what the process's own buffer has to tell.
	Observer func(hapax.Event)
}

func (o Options) withDefaults() (Options, error) {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.Threshold = cmp.Or(o.Threshold, DefaultThreshold)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.OnStoreLoss = cmp.Or(o.OnStoreLoss, Refuse)
	if o.OnStoreLoss == Extend {
		o.Reserve = cmp.Or(o.Reserve, DefaultReserve)
	}
	switch {
	case len(o.Prefix) > maxPrefixBytes || hapax.ValidateName("prefix", o.Prefix) != nil || strings.ContainsAny(o.Prefix, "{}"):
		return o, &hapax.ValueError{Field: "prefix", Value: o.Prefix, Allowed: "up to 64 bytes without braces and control characters", Err: hapax.ErrInvalidArgument}
	case o.Threshold < 1 || o.Threshold > 100:
		return o, &hapax.ValueError{Field: "threshold", Value: o.Threshold, Allowed: "1 to 100 percent", Err: hapax.ErrInvalidArgument}
	case o.Timeout < 0:
		return o, &hapax.ValueError{Field: "timeout", Value: o.Timeout, Allowed: "more than 0", Err: hapax.ErrInvalidArgument}
	case o.OnStoreLoss != Refuse && o.OnStoreLoss != Extend:
		return o, &hapax.ValueError{Field: "on_store_loss", Value: string(o.OnStoreLoss), Allowed: "refuse or extend", Err: hapax.ErrInvalidArgument}
	case o.OnStoreLoss == Refuse && o.Reserve != 0:
		return o, &hapax.ValueError{Field: "reserve", Value: o.Reserve, Allowed: "none, unless on_store_loss is extend", Err: hapax.ErrInvalidArgument}
	case o.OnStoreLoss == Extend && o.Threshold > maxExtendThreshold:
		return o, &hapax.ValueError{Field: "threshold", Value: o.Threshold, Allowed: fmt.Sprintf("1 to %d percent where on_store_loss is extend", maxExtendThreshold), Err: hapax.ErrInvalidArgument}
	case o.Reserve < 0 || o.Reserve > maxReserve:
		return o, &hapax.ValueError{Field: "reserve", Value: o.Reserve, Allowed: fmt.Sprintf("1 to %d numbers", int64(maxReserve)), Err: hapax.ErrInvalidArgument}
	}
	return o, nil
}

// Validate checks the options without connecting to anything.
func (o Options) Validate() error {
	_, err := o.withDefaults()
	return err
}

// ahead returns the least size of a segment: what is left of it when the next one is
// due is the reserve.
func (o Options) ahead() int64 {
	if o.Reserve == 0 {
		return 0
	}
	left := int64(100 - o.Threshold)
	return (o.Reserve*100 + left - 1) / left
}

var _ hapax.Issuer = (*Issuer)(nil)

// An Issuer issues the numbers of one tag. While every process reaches Redis,
// numbers rise strictly across all of them. While this process does not, it issues
// from its own double buffer, whose numbers can be lower than those before; they
// ascend within one call.
//
// While the store is away it goes on with the numbers that Redis was given; then calls wait
// for the store until their context ends, with hapax.ErrStoreUnavailable.
type Issuer struct {
	counter counter
	store   hapax.SegmentStore
	tag     string
	create  hapax.Tag // what the tag is made as at its first use
	keys    []string
	opts    Options

	local  atomic.Pointer[hapax.Segment] // what is issued while Redis is away; nil until opened
	opened chan struct{}                 // closed once local is there

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup // loads and probes

	id   atomic.Pointer[string] // of the store; nil until it is known
	dry  atomic.Bool            // Redis had no segment when it was asked last
	seen atomic.Int64           // the highest number that Redis gave
	away atomic.Bool            // Redis; written under mu
	took atomic.Int64           // numbers that Redis gave

	mu         sync.Mutex // guards what follows; never held while waiting
	closed     bool
	back       context.Context // ends when Redis is back; nil if it never was away
	suspecting bool            // suspect is at it
	unopen     error           // why local is not there yet
	loading    chan struct{}   // closed when the load in flight is over; nil: there is none
	failed     error           // of the last load; nil after one that went well
	mark       int64           // the end of the last segment that the store granted to Redis
	def        hapax.Tag       // as of that segment
}

// New returns an issuer of a tag once it can issue: when it has a segment of its own in
// reserve, for which it waits until the context ends, or while the store is away when
// Redis has a segment. Redis may be away. Neither the client nor the store is closed
// by Close.
//
// The client may be one of a server, of Sentinels or of a Cluster, and must not
// read from replicas. ErrInvalidArgument; ErrStoreUnsafe where the account of
// Redis lacks a command that is needed; and those of hapax.NewSegment.
func New(ctx context.Context, rdb redis.UniversalClient, store hapax.SegmentStore, tag string, opts Options) (*Issuer, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	create, err := hapax.Tag{Name: tag, Start: opts.Start, Step: opts.Step, MinStep: opts.MinStep, MaxStep: opts.MaxStep}.WithDefaults()
	if err != nil {
		return nil, err
	}
	i := &Issuer{
		store: store, tag: tag, create: create, keys: []string{opts.Prefix + "{" + tag + "}"}, opts: opts,
		opened: make(chan struct{}),
	}
	i.counter = scripts{rdb, i.keys, opts.Timeout}
	if opts.WithoutEval {
		i.counter = newTransactions(rdb, i.keys[0], opts.Timeout)
	}
	i.life, i.end = context.WithCancel(context.Background())
	if err := i.begin(ctx); err != nil {
		_ = i.Close(ctx) // the first error tells more
		return nil, err
	}
	return i, nil
}

// begin has Redis filled before the process's own buffer, so that numbers begin at the
// tag's start where nothing is in trouble.
func (i *Issuer) begin(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, i.opts.Timeout)
	defer cancel()
	storeErr := i.identify(soon)
	got, err := i.take(ctx, 0)
	for storeErr == nil && err == nil && got.dry && i.awaitSegment(soon) == nil {
		got, err = i.take(ctx, 0)
	}
	other, isOther := errors.AsType[*otherStoreError](err)
	switch {
	// Not taken for an outage, which this process's own buffer would hide.
	case notAllowed(err):
		return i.errNotAllowed(err)
	case isOther:
		return other
	case err != nil:
		i.lost(err)
	}
	if storeErr == nil {
		storeErr = i.openLocal(soon)
	}
	switch {
	case storeErr == nil, ctx.Err() != nil:
		return storeErr
	case soon.Err() == nil && !errors.Is(storeErr, hapax.ErrStoreUnavailable):
		return storeErr
	case err != nil || got.dry:
		return i.openLocal(ctx)
	}
	i.tasks.Go(i.openLater)
	return nil
}

// notAllowed reports whether the account may not run what the scripts need, or is none.
func notAllowed(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGPASS") || redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "NOPERM") ||
		err != nil && (strings.Contains(err.Error(), "can't run this command") || strings.Contains(err.Error(), "NOPERM")) // within a script, or by EXEC
}

func (i *Issuer) errNotAllowed(err error) error {
	return fmt.Errorf("%w: redis: the account needs %s: %w", hapax.ErrStoreUnsafe, i.counter.commands(), err)
}

// Next issues one number. See hapax.Issuer.
func (i *Issuer) Next(ctx context.Context) (hapax.ID, error) {
	var one [1]hapax.ID
	_, err := i.NextN(ctx, one[:])
	return one[0], err
}

// NextN fills dst in ascending order. See hapax.Issuer.
func (i *Issuer) NextN(ctx context.Context, dst []hapax.ID) (done int, err error) {
	for done < len(dst) && err == nil {
		var n int
		if i.away.Load() {
			n, err = i.fromLocal(ctx, dst[done:])
		} else {
			n, err = i.fromRedis(ctx, dst[done:])
		}
		done += n
	}
	slices.Sort(dst[:done]) // Redis may have gone meanwhile
	return done, err
}

// fromRedis takes numbers from Redis, waiting for a segment as needed. It returns
// none and no error if Redis went away.
func (i *Issuer) fromRedis(ctx context.Context, dst []hapax.ID) (int, error) {
	for {
		if i.life.Err() != nil {
			return 0, i.errClosed()
		}
		got, err := i.take(ctx, min(len(dst), maxTake))
		if err != nil {
			if other, ok := errors.AsType[*otherStoreError](err); ok {
				return 0, other
			}
			if ctx.Err() != nil {
				i.suspect()
				return 0, &hapax.WaitError{Cause: fmt.Errorf("%w: redis: %w", hapax.ErrStoreUnavailable, err), Context: context.Cause(ctx)}
			}
			i.lost(err)
			return 0, nil
		}
		if got.n > 0 {
			for k := range dst[:got.n] {
				dst[k] = hapax.ID(got.last - int64(got.n-1-k))
			}
			i.took.Add(int64(got.n))
			return got.n, nil
		}
		if err := i.awaitSegment(ctx); err != nil {
			return 0, err
		}
	}
}

// take asks Redis for up to n numbers. Where it is told to, it fetches a segment.
func (i *Issuer) take(ctx context.Context, n int) (taking, error) {
	ask := asking{n: n, seen: i.seen.Load(), threshold: i.opts.Threshold, right: rand.Text(), store: i.storeID()}
	got, err := i.counter.take(ctx, ask)
	switch {
	case err != nil:
		return taking{}, err
	case got.other != "":
		return taking{}, &otherStoreError{i.keys[0], got.other, ask.store}
	}
	if f := got.fetch; f != nil {
		i.load(*f, ask.right)
	}
	i.dry.Store(got.dry)
	if got.n > 0 {
		i.see(got.last)
	}
	return got, nil
}

// An otherStoreError tells that Redis has segments of another store, which may have
// granted the numbers that this one grants.
type otherStoreError struct{ key, other, own string }

func (e *otherStoreError) Error() string {
	return fmt.Sprintf("%v: %s in Redis has numbers of store %s, and this process has store %s; configure the store that the others have, or another prefix; where the store was replaced on purpose, raise the tag's floor above all numbers and delete the key",
		hapax.ErrStoreReplaced, e.key, e.other, e.own)
}

// Unwrap returns hapax.ErrStoreReplaced.
func (*otherStoreError) Unwrap() error { return hapax.ErrStoreReplaced }

// storeID returns the identity of the store; empty if it is not known.
func (i *Issuer) storeID() string {
	if id := i.id.Load(); id != nil {
		return *id
	}
	return ""
}

// see raises the highest number that Redis gave.
func (i *Issuer) see(last int64) {
	for {
		seen := i.seen.Load()
		if last <= seen || i.seen.CompareAndSwap(seen, last) {
			return
		}
	}
}

// awaitSegment waits until a segment may be there, and fails if there will be none.
func (i *Issuer) awaitSegment(ctx context.Context) error {
	i.mu.Lock()
	loading, failed := i.loading, i.failed
	i.mu.Unlock()
	if loading == nil && failed != nil && !errors.Is(failed, hapax.ErrStoreUnavailable) {
		return failed
	}
	var poll <-chan time.Time
	if loading == nil { // another process is at it
		poll = time.After(pollEvery)
	}
	select {
	case <-loading:
		i.mu.Lock()
		failed = i.failed
		i.mu.Unlock()
		if failed != nil && !errors.Is(failed, hapax.ErrStoreUnavailable) {
			return failed
		}
		return nil
	case <-poll:
		return nil
	case <-i.life.Done():
		return i.errClosed()
	case <-ctx.Done():
		return &hapax.WaitError{Cause: cmp.Or(failed, error(hapax.ErrRefillPending)), Context: context.Cause(ctx)}
	}
}

func (i *Issuer) errClosed() error {
	return fmt.Errorf("%w: the issuer of tag %q", hapax.ErrClosed, i.tag)
}

func (i *Issuer) observe(e hapax.Event) {
	if i.opts.Observer != nil {
		e.Tag = i.tag
		i.opts.Observer(e)
	}
}

// lost goes over to the process's own buffer until Redis is back.
func (i *Issuer) lost(err error) {
	i.mu.Lock()
	if i.closed || i.away.Load() {
		i.mu.Unlock()
		return
	}
	back, cancel := context.WithCancel(i.life)
	i.back = back
	i.away.Store(true)
	i.tasks.Go(func() { i.probe(); cancel() })
	i.mu.Unlock()
	i.observe(hapax.Event{Kind: hapax.EventStoreLost, Err: fmt.Errorf("%w: redis: %w", hapax.ErrStoreUnavailable, err)})
}

// suspect finds out whether Redis is away where a caller did not wait for long enough.
func (i *Issuer) suspect() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || i.suspecting || i.away.Load() {
		return
	}
	i.suspecting = true
	i.tasks.Go(func() {
		_, err := i.take(i.life, 0)
		if _, other := errors.AsType[*otherStoreError](err); err != nil && !other && i.life.Err() == nil {
			i.lost(err)
		}
		i.mu.Lock()
		i.suspecting = false
		i.mu.Unlock()
	})
}

// probe asks Redis until it answers and has a segment: where it comes back empty
// while the store is away, the reserve serves on.
func (i *Issuer) probe() {
	since := time.Now()
	for tick := time.NewTicker(retryEvery); ; {
		select {
		case <-tick.C:
		case <-i.life.Done():
			tick.Stop()
			return
		}
		got, err := i.take(i.life, 0)
		if _, other := errors.AsType[*otherStoreError](err); !other && (got.dry || err != nil) {
			continue // callers are told of another store
		}
		tick.Stop()
		i.mu.Lock()
		i.away.Store(false)
		i.mu.Unlock()
		i.observe(hapax.Event{Kind: hapax.EventStoreBack, Took: time.Since(since)})
		return
	}
}

// Stats describe an issuer at one moment.
type Stats struct {
	FromRedis int64              // numbers that Redis gave
	Local     hapax.SegmentStats // of the process's own buffer
	Away      bool               // Redis is away
}

// Stats returns where numbers came from.
func (i *Issuer) Stats() Stats {
	s := Stats{FromRedis: i.took.Load(), Away: i.away.Load()}
	if local := i.local.Load(); local != nil {
		s.Local = local.Stats()
	}
	return s
}

// Measure returns the stats as values for metrics.
func (i *Issuer) Measure() map[string]float64 {
	s := i.Stats()
	away := 0.0
	if s.Away {
		away = 1
	}
	return map[string]float64{
		"redis_away": away, "issued_by_redis": float64(s.FromRedis),
		"issued_alone": float64(s.Local.Issued), "own_reserve": float64(s.Local.Remaining),
	}
}

// Ready returns nil if numbers can be issued without the store, and otherwise what they
// wait for.
func (i *Issuer) Ready() error {
	i.mu.Lock()
	failed, unopen := i.failed, i.unopen
	i.mu.Unlock()
	switch local := i.local.Load(); {
	case i.life.Err() != nil:
		return i.errClosed()
	case !i.away.Load() && !i.dry.Load():
		return nil
	case !i.away.Load():
		return cmp.Or(failed, error(hapax.ErrRefillPending))
	case local == nil:
		return cmp.Or(unopen, error(hapax.ErrStoreUnavailable))
	case local.Stats().Remaining > 0:
		return nil
	}
	return fmt.Errorf("%w: and Redis is away", hapax.ErrStoreUnavailable)
}

// Close stops issuing and hands the reserve back. What Redis was given stays there
// for the other processes. See hapax.Issuer.
func (i *Issuer) Close(ctx context.Context) error {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.end()
	// Before local is looked at, which one of them may be opening.
	i.tasks.Wait()
	if local := i.local.Load(); local != nil {
		return local.Close(ctx)
	}
	return nil
}
