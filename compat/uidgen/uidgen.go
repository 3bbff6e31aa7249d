// Package uidgen stands in for Baidu's uid-generator: its settings, its two
// generators over this library's engine, its table of worker IDs and its form of a
// number's fields.
//
// The ring of the cached generator is a window on the engine's timeline. It begins at
// the clock, or at the next number if that is ahead of the clock, and ends
// 2^boostPower seconds after the current one began:
//
//	          clock            borrowed            end of the ring
//	------------|-------------------|--------------------|-----> seconds
//	  past      |   issued already  |        left        |
//
// A number is made when it is taken. So none is thrown away, none is old, no two
// takers can have the same, and what was borrowed is given back by the clock when
// fewer numbers are taken than it brings.
package uidgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// Defaults of uid-generator.
const (
	DefaultTimeBits      = 28
	DefaultWorkerBits    = 22
	DefaultSeqBits       = 13
	DefaultEpoch         = "2016-05-20"
	DefaultBoostPower    = 3
	DefaultPaddingFactor = 50
)

// DefaultPool is the worker pool of the generators.
const DefaultPool = "uidgen"

const (
	sumBits       = 63
	maxBoostPower = 15 // the ring is a little over nine hours long
)

// China is the zone in which uid-generator's own epochs are written.
var China = time.FixedZone("UTC+8", 8*60*60)

// Settings are the layout as uid-generator is told it. The zero value is its default:
// 28, 22 and 13 bits from 2016-05-20, whose time ran out on 2024-11-20.
type Settings struct {
	// TimeBits, WorkerBits and SeqBits are the widths; their sum is 63. Unset ones
	// have their defaults, as there: 28, 22 and 13.
	TimeBits, WorkerBits, SeqBits int

	// EpochStr is the day from which seconds are counted, as 2016-05-20.
	EpochStr string

	// Zone is the time zone in which EpochStr was read: that of the machines on which
	// uid-generator runs. Default China.
	Zone *time.Location
}

// Layout returns the layout that the settings describe. Errors are a *hapax.ValueError.
func (s Settings) Layout() (hapax.Layout, error) {
	widths := []struct {
		name  string
		value int
	}{
		{"timeBits", cmp.Or(s.TimeBits, DefaultTimeBits)},
		{"workerBits", cmp.Or(s.WorkerBits, DefaultWorkerBits)},
		{"seqBits", cmp.Or(s.SeqBits, DefaultSeqBits)},
	}
	sum := 0
	for _, w := range widths {
		if w.value < 1 || w.value >= sumBits {
			return hapax.Layout{}, invalid(w.name, w.value, fmt.Sprintf("1 to %d", sumBits-2))
		}
		sum += w.value
	}
	if sum != sumBits {
		return hapax.Layout{}, invalid("timeBits, workerBits and seqBits", fmt.Sprintf("%d + %d + %d = %d", widths[0].value, widths[1].value, widths[2].value, sum), fmt.Sprintf("a sum of %d", sumBits))
	}
	zone := s.Zone
	if zone == nil {
		zone = China
	}
	epoch, err := time.ParseInLocation(time.DateOnly, cmp.Or(s.EpochStr, DefaultEpoch), zone)
	if err != nil {
		return hapax.Layout{}, invalid("epochStr", s.EpochStr, "a day such as 2016-05-20")
	}
	return hapax.ParseLayout(fmt.Sprintf("time:%d,worker:%d,sequence:%d,unit=1s,epoch=%ds", widths[0].value, widths[1].value, widths[2].value, epoch.Unix()))
}

func invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// Options tune a generator. The zero value is uid-generator's own defaults.
type Options struct {
	// Settings describe the layout, unless Layout is set.
	Settings

	// Layout is the layout itself, such as a successor; its ticks stand for seconds below.
	Layout hapax.Layout

	// Pool is the worker pool; default "uidgen". A store freezes its layout.
	Pool string

	// Holder identifies this instance with a store that has more than WORKER_NODE;
	// default random.
	Holder string

	// Observer, if set, receives events.
	Observer func(hapax.Event)
}

func (o Options) snowflake() (hapax.SnowflakeOptions, error) {
	if o.Layout.IsZero() {
		var err error
		if o.Layout, err = o.Settings.Layout(); err != nil {
			return hapax.SnowflakeOptions{}, err
		}
	}
	return hapax.SnowflakeOptions{
		Pool: cmp.Or(o.Pool, DefaultPool), Layout: o.Layout, Holder: o.Holder, Observer: o.Observer,
	}, nil
}

// A Generator is DefaultUidGenerator: its numbers are at most a second ahead of the
// clock, and a caller that finds the second used up waits for the next one. Its methods are safe
// for concurrent use.
type Generator struct {
	issuer *hapax.Snowflake
	layout hapax.Layout
	zone   *time.Location
}

// New returns a generator whose worker ID comes from workers: a Table's Workers, or any
// store of this library. It waits for one until the context ends. Errors are those of
// hapax.NewSnowflake.
func New(ctx context.Context, workers hapax.WorkerStore, opts Options) (*Generator, error) {
	so, err := opts.snowflake()
	if err != nil {
		return nil, err
	}
	return newGenerator(ctx, workers, opts, so)
}

func newGenerator(ctx context.Context, workers hapax.WorkerStore, opts Options, so hapax.SnowflakeOptions) (*Generator, error) {
	if workers == nil {
		return nil, invalid("workers", "none", "where worker IDs come from: Table.Workers, or a store")
	}
	issuer, err := hapax.NewSnowflake(ctx, workers, so)
	if err != nil {
		return nil, err
	}
	g := &Generator{issuer: issuer, layout: so.Layout, zone: opts.Zone}
	if g.zone == nil {
		g.zone = time.Local
	}
	return g, nil
}

// GetUID issues a number. The context is consulted only when the call must wait. Errors
// are those of hapax.Issuer.
func (g *Generator) GetUID(ctx context.Context) (hapax.ID, error) { return g.issuer.Next(ctx) }

// ParseUID explains a number as ParseUID does, in the zone of Settings, by default the
// machine's.
func (g *Generator) ParseUID(id hapax.ID) (string, error) { return ParseUID(g.layout, g.zone, id) }

// Stats returns the issuer's counts.
func (g *Generator) Stats() hapax.SnowflakeStats { return g.issuer.Stats() }

// Close stops issuing and gives the worker ID back where it can be given back.
func (g *Generator) Close(ctx context.Context) error { return g.issuer.Close(ctx) }

// ParseUID explains a number as uid-generator's parseUID does: a JSON object whose
// values are all strings, with the time in a zone. A number that the layout cannot hold
// is an error.
func ParseUID(l hapax.Layout, zone *time.Location, id hapax.ID) (string, error) {
	fields, err := l.Parse(id)
	if err != nil {
		return "", err
	}
	worker, _ := fields.Get(l.WorkerField())
	sequence, _ := fields.Get(hapax.FieldSequence)
	tick, _ := fields.Get(hapax.FieldTime)
	if zone == nil {
		zone = time.Local
	}
	return fmt.Sprintf(`{"UID":"%d","timestamp":%s,"workerId":"%d","sequence":"%d"}`,
		id, strconv.Quote(l.TimeOf(tick).In(zone).Format(time.DateTime)), worker, sequence), nil
}

// CachedOptions tune a CachedGenerator. The zero value is uid-generator's own defaults.
type CachedOptions struct {
	Options

	// BoostPower makes the ring 2^BoostPower seconds of numbers: how far a burst may
	// run ahead of the clock; 1 to 15, default 3. It bounds what a restart of the same
	// worker ID would have to wait.
	BoostPower int

	// PaddingFactor is checked, 1 to 99, default 50, so that settings can be kept. There
	// is nothing to pad: numbers are made when they are taken.
	PaddingFactor int

	// ScheduleInterval, if set, is how often a scheduled fill looks at the ring; at
	// least a second. All it does is to call RejectedPut if the ring is full.
	ScheduleInterval time.Duration

	// RejectedTake, if set, is asked when nothing is left of the ring and nothing can
	// be borrowed: an error ends the call that wanted a number, nil lets it wait for
	// the clock. Without one, calls wait until their context ends.
	RejectedTake func(ctx context.Context) error

	// RejectedPut, if set, is called by a scheduled fill that finds the ring full. What
	// it does, and whether it panics, changes nothing.
	RejectedPut func()
}

// A CachedGenerator is CachedUidGenerator: bursts run ahead of the clock, by no more
// than the ring holds. Its methods are safe for concurrent use.
type CachedGenerator struct {
	*Generator
	opts CachedOptions
	size int64

	stop    context.CancelFunc
	filling sync.WaitGroup
}

// ended is a context that allows no waiting.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// NewCached returns a generator with a ring; workers and errors are as with New.
func NewCached(ctx context.Context, workers hapax.WorkerStore, opts CachedOptions) (*CachedGenerator, error) {
	so, err := opts.snowflake()
	if err != nil {
		return nil, err
	}
	opts.BoostPower = cmp.Or(opts.BoostPower, DefaultBoostPower)
	opts.PaddingFactor = cmp.Or(opts.PaddingFactor, DefaultPaddingFactor)
	switch {
	case opts.BoostPower < 1 || opts.BoostPower > maxBoostPower:
		return nil, invalid("boostPower", opts.BoostPower, fmt.Sprintf("1 to %d", maxBoostPower))
	case opts.PaddingFactor < 1 || opts.PaddingFactor > 99:
		return nil, invalid("paddingFactor", opts.PaddingFactor, "1 to 99")
	case opts.ScheduleInterval != 0 && opts.ScheduleInterval < time.Second:
		return nil, invalid("scheduleInterval", opts.ScheduleInterval, "at least 1s, or none")
	}
	so.MaxAhead = Ahead(so.Layout, opts.BoostPower)
	// The ring is full after a quiet time, too: what it holds has to be granted by then.
	so.KeepWarm = true
	g, err := newGenerator(ctx, workers, opts.Options, so)
	if err != nil {
		return nil, err
	}
	c := &CachedGenerator{Generator: g, opts: opts, size: so.Layout.PerTick() << opts.BoostPower}
	life, stop := context.WithCancel(context.Background())
	c.stop = stop
	if opts.ScheduleInterval > 0 {
		c.filling.Go(func() { c.fillOnSchedule(life) })
	}
	return c, nil
}

// Ahead returns how far the numbers of a ring may be ahead of the clock: a ring holds
// the current tick, too.
func Ahead(l hapax.Layout, boostPower int) time.Duration {
	return time.Duration(1<<boostPower-1) * l.Unit()
}

// Size returns how many numbers the ring holds.
func (c *CachedGenerator) Size() int64 { return c.size }

// Left returns how many numbers can be taken before the clock moves on.
func (c *CachedGenerator) Left() int64 { return c.issuer.Stats().Ready }

// GetUID issues a number. Where none is left it waits for more granted time, and for
// the clock unless Options.RejectedTake says otherwise, until its context ends.
func (c *CachedGenerator) GetUID(ctx context.Context) (hapax.ID, error) {
	if c.opts.RejectedTake == nil {
		return c.issuer.Next(ctx)
	}
	if id, ok := c.issuer.TryNext(); ok {
		return id, nil
	}
	return c.takeRejected(ctx)
}

// takeRejected asks the handler if it is the clock that has to move on.
func (c *CachedGenerator) takeRejected(ctx context.Context) (hapax.ID, error) {
	// Without waiting: the error tells whether it is the clock or the store that has to bring more.
	id, err := c.issuer.Next(ended)
	if err == nil {
		return id, nil
	}
	if errors.Is(err, hapax.ErrTickExhausted) {
		if err := c.opts.RejectedTake(ctx); err != nil {
			return 0, err
		}
	}
	return c.issuer.Next(ctx)
}

// fillOnSchedule has nothing to fill; it tells the handler that there is no room.
func (c *CachedGenerator) fillOnSchedule(life context.Context) {
	ticker := time.NewTicker(c.opts.ScheduleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-ticker.C:
		}
		if c.opts.RejectedPut != nil && c.Left() == c.size {
			c.rejectPut()
		}
	}
}

func (c *CachedGenerator) rejectPut() {
	defer func() {
		if reason := recover(); reason != nil {
			slog.Error("the handler of rejected puts panicked; scheduled fills go on", "panic", reason)
		}
	}()
	c.opts.RejectedPut()
}

// Close stops the schedule and the generator.
func (c *CachedGenerator) Close(ctx context.Context) error {
	c.stop()
	c.filling.Wait()
	return c.Generator.Close(ctx)
}
