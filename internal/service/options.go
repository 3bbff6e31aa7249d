package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

// Defaults of the Options.
const (
	DefaultMaxTags  = 10_000
	DefaultMaxWait  = 2 * time.Second
	DefaultMaxCount = 10_000
	DefaultRefresh  = time.Minute
	DefaultTagIdle  = time.Hour

	DefaultRetireLines = 7 * 24 * time.Hour

	DefaultAlarmBudget   = 10 * time.Second
	DefaultAlarmForecast = 30 * 24 * time.Hour
)

// Limits that have no setting.
const (
	// MaxReserve is how many numbers in a row one call of Reserve may take.
	MaxReserve = 1_000_000
	// MaxPage is how many tags one call of Tags returns.
	MaxPage = 1000
)

// SnowflakeTag is the tag that exists from the start: snowflake numbers of the
// default pool.
const SnowflakeTag = "snowflake"

// Options tune a Service. The zero value suits most uses.
type Options struct {
	// Tags are the tags to create at their first use, by name. A tag that the
	// store knows keeps what the store says.
	Tags map[string]TagConfig

	// Pools are the settings of worker pools, by name. A pool that is not
	// mentioned has the zero PoolConfig.
	Pools map[string]PoolConfig

	// Floors reads the columns of tags with floor_from; nil refuses such tags.
	Floors FloorReader

	// CodeKeys are the keys that scramble codes, by their IDs: 16 to 64 random bytes each.
	CodeKeys map[string][]byte

	// Strategies are the strategies and plugins beside the built-in ones, which services
	// may share. Default: none.
	Strategies *strategy.Registry

	// RetireLines is how long after the end of its period a line of numbers that
	// restart is deleted, which leaves a tombstone; default 7 days.
	RetireLines time.Duration

	// NoAutoCreate makes the first use of a tag that is neither in the store nor
	// in Tags fail with ErrTagNotFound, instead of creating a segment tag.
	NoAutoCreate bool

	// OneShot is for a command, and for a service that another has Beside it: nothing is
	// created in the store but what is asked for, not even SnowflakeTag, and no alarm is
	// raised.
	OneShot bool

	// MaxTags is how many live tags the store may hold before first use stops
	// to create more (ErrLimitExceeded); default 10,000. Tags that are created
	// explicitly or named in Tags are not limited.
	MaxTags int

	// MaxWait caps how long one call may wait, for whatever; default 2 s.
	MaxWait time.Duration

	// MaxCount is how many numbers one call of NextN may ask for; default 10,000.
	MaxCount int

	// Refresh is how often the store is asked which tags were deleted elsewhere;
	// default 1 min.
	Refresh time.Duration

	// TagIdle is how long a segment tag may issue nothing before this node hands
	// back what it holds of it, and keeps nothing of it in memory until its next
	// use; default 1 h. It is looked at every Refresh.
	TagIdle time.Duration

	// Cache, if set, stands between the issuer of a pool with PoolConfig.Cache and
	// the store, so that it can start while the store is away. What it returns is
	// the caller's to close, after Close.
	Cache func(ctx context.Context, pool string, store driver.Store) (hapax.WorkerStore, error)

	// Ledger, if set, records every grant before it is used. It is the caller's to
	// close, after Close.
	Ledger *ledger.Ledger

	// Marks return the mark of a tag by the name of its strategy, for strategies that
	// issue the very numbers that a store grants them. Of others a trace knows what the
	// history tells.
	Marks map[string]func(ctx context.Context, tag string) (int64, error)

	// StoreWarnings, if set, returns how often the store's driver has warned, by
	// the warning's code.
	StoreWarnings func() map[string]int

	// Observer, if set, receives the events of all issuers, too.
	Observer func(hapax.Event)

	// Beside are services of foreign systems in the same server, by name; Readiness
	// tells of them, too.
	Beside map[string]*Service

	// AlarmBudget is below which outage budget there is an alarm: at once while the store
	// is away, and otherwise when it lasts for a minute. Default 10 s.
	AlarmBudget time.Duration

	// AlarmForecast is how near the end of a line, a layout or a pool is that there is an
	// alarm; default 30 days.
	AlarmForecast time.Duration

	// Conditions, if set, returns what the server knows that is to raise alarms.
	Conditions func(now time.Time) []health.Condition

	// Notify, if set, hears of each alarm that is raised or cleared. It must return soon.
	Notify func(a api.Alarm, raised bool)

	// Adopt is the command by which an operator decides about a tag that the store
	// refuses, where it is a foreign table, with health.AdoptKey in the place of the tag.
	Adopt string

	// Logger receives what operators should know; default slog.Default().
	Logger *slog.Logger

	// Holder identifies this instance with the store, so that it finds its own
	// worker IDs again: 1 to 128 bytes, unlike any other instance's. Default random.
	Holder string

	// StoreTimeout bounds one answer of the store; default 5 s.
	StoreTimeout time.Duration

	// Clock is for tests and simulations; default the system's clocks.
	Clock hapax.Clock

	defined map[string]define.Tag // Tags as they are stored, and SnowflakeTag

	looks time.Duration // between two looks for alarms; default health.LookEvery. Tests of months look less often
}

// A TagConfig defines a tag. Zero fields have the defaults of hapax.Tag.
type TagConfig struct {
	Kind    hapax.Kind `yaml:"kind" json:"kind,omitempty"`
	Step    int64      `yaml:"step" json:"step,omitempty"`
	MinStep int64      `yaml:"min_step" json:"min_step,omitempty"`
	MaxStep int64      `yaml:"max_step" json:"max_step,omitempty"`
	Start   int64      `yaml:"start" json:"start,omitempty"`
	Pool    string     `yaml:"pool" json:"pool,omitempty"`

	// Delta and Remainder choose the numbers that leave Remainder when divided by
	// Delta, so that stores of two regions never issue the same one.
	Delta     int64 `yaml:"delta" json:"delta,omitempty"`
	Remainder int64 `yaml:"remainder" json:"remainder,omitempty"`

	// ReaderBits is how many bits the narrowest reader of the tag's numbers keeps, 8 to 62,
	// such as 53 for JavaScript: forecasts tell when numbers outgrow it. Default 0, for none.
	ReaderBits int `yaml:"reader_bits" json:"reader_bits,omitempty"`

	// Strategy is the name of the tag's strategy; default its kind.
	Strategy string `yaml:"strategy" json:"strategy,omitempty"`

	// Code shows the tag's numbers; it is a spec of package codec. Zone is the time
	// zone of its periods, where the spec names none.
	Code string `yaml:"code" json:"code,omitempty"`
	Zone string `yaml:"zone" json:"zone,omitempty"`

	// FloorFrom are the columns that the tag's numbers are written to, 8 at most.
	FloorFrom []api.FloorFrom `yaml:"floor_from" json:"floor_from,omitempty"`
}

// A PoolConfig tells how this node issues from a worker pool. Zero fields have
// the defaults of hapax.SnowflakeOptions.
type PoolConfig struct {
	// Layout is the name or the spec of the pool's layout; default what the
	// store has frozen, or else "leaf".
	Layout string `yaml:"layout" json:"layout,omitempty"`

	// Workers is the range of worker IDs to choose from, both ends included:
	// "0-63", or "7" to fix the ID. Default all that the layout can hold.
	Workers string `yaml:"workers" json:"workers,omitempty"`

	// Identity tells which of these worker IDs this node may use: "pool" (any, the
	// default), or what identity.Parse reads.
	Identity string `yaml:"identity" json:"identity,omitempty"`

	// Split divides the worker ID into parts, as identity.ParseSplit reads them.
	// Parts fixes some of them for this node, to a number or "env:VARIABLE".
	Split string            `yaml:"split" json:"split,omitempty"`
	Parts map[string]string `yaml:"parts" json:"parts,omitempty"`

	// Cache keeps the lease in a local file too, so that a restart can go on within
	// the granted time while the store is away. It needs Options.Cache.
	Cache bool `yaml:"cache" json:"cache,omitempty"`

	Lease     time.Duration `yaml:"lease" json:"lease,omitempty"`
	Grant     time.Duration `yaml:"grant" json:"grant,omitempty"`
	MaxGrant  time.Duration `yaml:"max_grant" json:"max_grant,omitempty"`
	MaxAhead  time.Duration `yaml:"max_ahead" json:"max_ahead,omitempty"`
	MaxBehind time.Duration `yaml:"max_behind" json:"max_behind,omitempty"`
	MaxSkew   time.Duration `yaml:"max_skew" json:"max_skew,omitempty"`

	// SequenceStart is where the sequence begins in a tick: "zero" (the
	// default), "continue", or a number n for random below n.
	SequenceStart string `yaml:"sequence_start" json:"sequence_start,omitempty"`

	// Populator is "atomic" (the default), "mutex", or the name of one that is registered.
	Populator string `yaml:"populator" json:"populator,omitempty"`

	// OnRollback is "continue" (the default) or "refuse".
	OnRollback string `yaml:"on_rollback" json:"on_rollback,omitempty"`

	// Fields are the values of the layout's constant fields, by name; default 0 each.
	Fields map[string]int64 `yaml:"fields" json:"fields,omitempty"`

	lends  hapax.WorkerRange // if others is set
	others string
}

// Lending returns the configuration of a pool of whose worker IDs only some may be leased to clients,
// where others give out the rest, to programs that the store knows nothing of. The empty range stands
// for none.
func (c PoolConfig) Lending(ids hapax.WorkerRange, others string) PoolConfig {
	c.lends, c.others = ids, others
	return c
}

// Validate checks everything that can be judged without a store. Errors name
// the setting as it is spelled in the configuration.
func (o Options) Validate() error {
	_, err := o.withDefaults()
	return err
}

func (o Options) withDefaults() (Options, error) {
	setDefault(&o.MaxTags, DefaultMaxTags)
	setDefault(&o.MaxWait, DefaultMaxWait)
	setDefault(&o.MaxCount, DefaultMaxCount)
	setDefault(&o.Refresh, DefaultRefresh)
	setDefault(&o.TagIdle, DefaultTagIdle)
	setDefault(&o.StoreTimeout, hapax.DefaultStoreTimeout)
	setDefault(&o.RetireLines, DefaultRetireLines)
	setDefault(&o.AlarmBudget, DefaultAlarmBudget)
	setDefault(&o.AlarmForecast, DefaultAlarmForecast)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	for _, v := range []struct {
		name        string
		value       int64
		least, most int64
	}{
		{"max_tags", int64(o.MaxTags), 1, 1_000_000},
		{"max_count", int64(o.MaxCount), 1, 1_000_000},
	} {
		if v.value < v.least || v.value > v.most {
			return o, outOfRange(v.name, v.value, fmt.Sprintf("%d to %d", v.least, v.most))
		}
	}
	for _, v := range []struct {
		name        string
		value       time.Duration
		least, most time.Duration
	}{
		{"max_wait", o.MaxWait, time.Millisecond, time.Hour},
		{"refresh", o.Refresh, time.Second, 24 * time.Hour},
		{"tag_idle", o.TagIdle, time.Second, 10_000 * time.Hour},
		{"store_timeout", o.StoreTimeout, time.Millisecond, time.Hour},
		{"retire_lines", o.RetireLines, time.Hour, 3650 * 24 * time.Hour},
	} {
		if v.value < v.least || v.value > v.most {
			return o, outOfRange(v.name, v.value, fmt.Sprintf("%v to %v", v.least, v.most))
		}
	}
	if o.Holder != "" {
		if err := hapax.ValidateName("holder", o.Holder); err != nil {
			return o, err
		}
	}
	if err := o.keys().Check(); err != nil {
		return o, err
	}
	o.defined = map[string]define.Tag{}
	for _, name := range slices.Sorted(maps.Keys(o.Tags)) {
		if err := hapax.ValidateName("tag", name); err != nil {
			return o, named(err, "name under tags")
		}
		def, err := o.define(o.Tags[name], name)
		if bits := o.Tags[name].ReaderBits; err == nil && bits != 0 && (bits < 8 || bits > 62) {
			err = outOfRange("reader_bits", bits, "0, for none, or 8 to 62, such as 53 for JavaScript")
		}
		if err == nil && def.Kind == hapax.KindSnowflake && !o.hasPool(def.Pool) {
			err = outOfRange("pool", def.Pool, o.poolNamesInWords())
		}
		if err == nil {
			err = o.checkStrategy(def.Says.Strategy)
		}
		if err == nil {
			err = define.CheckForm("tag", name)
		}
		if err != nil {
			return o, inSetting("tags."+name, err)
		}
		o.defined[name] = def
	}
	if _, ok := o.defined[SnowflakeTag]; !ok {
		var err error
		if o.defined[SnowflakeTag], err = o.define(TagConfig{Kind: hapax.KindSnowflake}, SnowflakeTag); err != nil {
			return o, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Pools)) {
		if err := hapax.ValidateName("pool", name); err != nil {
			return o, named(err, "name under pools")
		}
		opts, err := o.poolOptions(name, hapax.Layout{})
		if err == nil {
			err = define.CheckForm("pool", name)
		}
		if err == nil {
			err = o.Pools[name].inItsWords(opts.Validate())
		}
		if err == nil {
			err = o.Pools[name].checkIdentity()
		}
		if err != nil {
			return o, inSetting("pools."+name, err)
		}
	}
	return o, nil
}

// checkStrategy refuses a strategy that is neither built in nor registered.
func (o Options) checkStrategy(name string) error {
	known := []string{string(hapax.KindSegment), string(hapax.KindSnowflake)}
	if o.Strategies != nil {
		for _, s := range o.Strategies.Strategies() {
			if !slices.Contains(known, s) {
				known = append(known, s)
			}
		}
	}
	if name == "" || slices.Contains(known, name) {
		return nil
	}
	return outOfRange("strategy", name, "one of "+strings.Join(known, ", "))
}

// definition returns the tag that c describes, with every field filled in.
func (c TagConfig) definition(name string) (hapax.Tag, error) {
	t, err := define.WithStrategy(hapax.Tag{
		Name: name, Kind: c.Kind, Pool: c.Pool,
		Start: c.Start, Step: c.Step, MinStep: c.MinStep, MaxStep: c.MaxStep,
		Delta: c.Delta, Remainder: c.Remainder,
		Extra: define.CodeExtra(c.Code, c.Zone),
	}, c.Strategy)
	if err != nil {
		return t, err
	}
	return t.WithDefaults()
}

// define returns the definition as it is stored.
func (o Options) define(c TagConfig, name string) (define.Tag, error) {
	if c.Code == "" && c.Zone != "" {
		return define.Tag{}, outOfRange("zone", c.Zone, "none without a code")
	}
	t, err := c.definition(name)
	if err == nil && len(c.FloorFrom) > 0 {
		t.Extra, err = define.WithFloors(t.Extra, c.FloorFrom)
	}
	if err != nil {
		return define.Tag{}, err
	}
	return o.keys().Canonical(define.Read(t))
}

func (o Options) keys() define.Keys { return o.CodeKeys }

// layout returns the configured layout; the zero Layout if there is none.
func (c PoolConfig) layout() (hapax.Layout, error) {
	if c.Layout == "" {
		return hapax.Layout{}, nil
	}
	return hapax.ParseLayout(c.Layout)
}

// poolOptions returns what a pool asks of an issuer. The layout stands in where its
// configuration names none.
func (o Options) poolOptions(name string, layout hapax.Layout) (hapax.SnowflakeOptions, error) {
	c := o.Pools[name]
	opts := hapax.SnowflakeOptions{
		Lease: c.Lease, Grant: c.Grant, MaxGrant: c.MaxGrant,
		MaxAhead: c.MaxAhead, MaxBehind: c.MaxBehind, MaxSkew: c.MaxSkew,
		OnRollback: hapax.RollbackPolicy(c.OnRollback),
	}
	switch c.Populator {
	case "", "atomic":
	case "mutex":
		opts.Mutex = true
	default:
		if o.Strategies != nil {
			opts.Populate = o.Strategies.Populator(c.Populator)
		}
		if opts.Populate == nil {
			return opts, outOfRange("populator", c.Populator, `"atomic", "mutex", or one that the program registers`)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(c.Fields)) {
		opts.Fields = append(opts.Fields, hapax.Field{Name: field, Value: c.Fields[field]})
	}
	var err error
	if opts.Layout, err = c.layout(); err != nil {
		return opts, err
	}
	if opts.Layout.IsZero() {
		opts.Layout = layout
	}
	if opts.Workers, err = parseWorkers(c.Workers); err != nil {
		return opts, err
	}
	opts.SequenceStart, err = parseSequenceStart(c.SequenceStart)
	return opts, err
}

// ParseWorkers reads the setting workers of a pool.
func ParseWorkers(text string) (hapax.WorkerRange, error) { return parseWorkers(text) }

// parseWorkers reads "LOW-HIGH" or "ID", both ends included.
func parseWorkers(text string) (hapax.WorkerRange, error) {
	if text == "" {
		return hapax.WorkerRange{}, nil
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	lo, errLo := strconv.ParseUint(strings.TrimSpace(low), 10, 62)
	hi, errHi := strconv.ParseUint(strings.TrimSpace(high), 10, 62)
	if errLo != nil || errHi != nil || lo > hi {
		return hapax.WorkerRange{}, outOfRange("workers", text, `one worker ID such as "7", or a range such as "0-63"`)
	}
	return hapax.WorkerRange{Lo: int64(lo), Hi: int64(hi) + 1}, nil
}

// parseSequenceStart reads "zero", "continue" or a number.
func parseSequenceStart(text string) (int64, error) {
	switch text {
	case "", "zero":
		return hapax.SequenceZero, nil
	case "continue":
		return hapax.SequenceContinue, nil
	}
	n, err := strconv.ParseUint(text, 10, 62)
	if err != nil || n == 0 {
		return 0, outOfRange("sequence_start", text, `"zero", "continue", or a number n from 1 for random below n`)
	}
	return int64(n), nil
}

// inItsWords shows a range of worker IDs in an error as it is configured, with both
// ends in it.
func (c PoolConfig) inItsWords(err error) error {
	v, ok := errors.AsType[*hapax.ValueError](err)
	if !ok || v.Field != "workers" || c.Workers == "" {
		return err
	}
	shown := *v
	shown.Value = asWritten(c.Workers)
	if c.Layout == "" {
		shown.Allowed += ", which the layout " + hapax.LayoutLeaf + " has; if the pool has another layout, set layout beside workers"
	}
	return &shown
}

// inSetting names the setting in which err occurred.
func inSetting(setting string, err error) error {
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		named := *v
		named.Field = setting + "." + v.Field
		named.Allowed = shortUnits.Replace(named.Allowed)
		if d, ok := v.Value.(time.Duration); ok {
			named.Value = asWritten(shortUnits.Replace(d.String()))
		}
		return &named
	}
	return fmt.Errorf("%s: %w", setting, err)
}

// asWritten is a value of an error that is shown without quotes.
type asWritten string

// shortUnits writes durations as settings do: 24h for 24h0m0s.
var shortUnits = strings.NewReplacer("h0m0s", "h", "m0s", "m")

func outOfRange(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// poolNames returns the pools that are configured, and the default one, by name.
func (o Options) poolNames() []string {
	names := slices.Collect(maps.Keys(o.Pools))
	if _, ok := o.Pools[hapax.DefaultPool]; !ok {
		names = append(names, hapax.DefaultPool)
	}
	slices.Sort(names)
	return names
}
