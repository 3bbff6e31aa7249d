// Package imports reads uid-generator's configuration, and plans the layout that comes
// after one whose time is used up.
package imports

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/springxml"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/plan"
)

// A Config is what uid-generator was told.
type Config struct {
	Settings uidgen.Settings

	Cached     bool // CachedUidGenerator
	BoostPower int

	// Padding and Schedule report whether paddingFactor and scheduleInterval are set,
	// which have no effect in a server: it makes numbers when they are taken.
	Padding, Schedule bool

	// RejectedPut and RejectedTake are the classes of the replaced handlers.
	RejectedPut, RejectedTake string

	// Assigner is the class that assigns worker IDs.
	Assigner string

	// Table is the database of WORKER_NODE as a URL without its user, if the file
	// names it.
	Table string
}

// keys are the settings' names, as beans and properties end with them.
var keys = map[string]func(c *Config, value string) error{
	"timeBits":         number(func(c *Config) *int { return &c.Settings.TimeBits }, "timeBits"),
	"workerBits":       number(func(c *Config) *int { return &c.Settings.WorkerBits }, "workerBits"),
	"seqBits":          number(func(c *Config) *int { return &c.Settings.SeqBits }, "seqBits"),
	"boostPower":       number(func(c *Config) *int { return &c.BoostPower }, "boostPower"),
	"paddingFactor":    func(c *Config, _ string) error { c.Padding = true; return nil },
	"epochStr":         func(c *Config, value string) error { c.Settings.EpochStr = value; return nil },
	"scheduleInterval": func(c *Config, _ string) error { c.Schedule = true; return nil },

	"rejectedPutBufferHandler":  func(c *Config, value string) error { c.RejectedPut = value; return nil },
	"rejectedTakeBufferHandler": func(c *Config, value string) error { c.RejectedTake = value; return nil },
	"workerIdAssigner":          func(c *Config, value string) error { c.Assigner = value; return nil },
}

func number(field func(*Config) *int, name string) func(*Config, string) error {
	return func(c *Config, text string) error {
		v, err := strconv.Atoi(text)
		if err != nil || v < 0 || v > 100 {
			return &hapax.ValueError{Field: name, Value: text, Allowed: "0 to 100", Err: hapax.ErrInvalidArgument}
		}
		*field(c) = v
		return nil
	}
}

// Read reads Spring's XML, with the properties that its placeholders stand for, or a
// properties file whose keys end with the names of the settings, as uid.timeBits or
// uid.time-bits. The zone is that of the machines uid-generator runs on; nil stands for
// uidgen.China. Errors match hapax.ErrInvalidArgument.
func Read(data []byte, given map[string]string, zone *time.Location) (Config, error) {
	c := Config{Settings: uidgen.Settings{Zone: zone}}
	f, err := springxml.Parse(data, given)
	if err != nil {
		return c, err
	}
	if f.Properties != nil {
		return c, c.take(f.Properties)
	}
	generators := 0
	for _, b := range f.Beans {
		class := b.Class[strings.LastIndexByte(b.Class, '.')+1:]
		switch class {
		case "DefaultUidGenerator", "CachedUidGenerator":
			generators++
			c.Cached = class == "CachedUidGenerator"
			err = c.take(b.Properties)
		default:
			if url, ok := strings.CutPrefix(cmp.Or(b.Properties["url"], b.Properties["jdbcUrl"]), "jdbc:mysql://"); ok {
				c.Table, _, _ = strings.Cut("mysql://"+url, "?")
			}
		}
		if err != nil {
			return c, err
		}
	}
	if generators != 1 {
		return c, fmt.Errorf("%w: the file has %d beans of the classes DefaultUidGenerator and CachedUidGenerator; want one", hapax.ErrInvalidArgument, generators)
	}
	for _, handler := range []*string{&c.RejectedPut, &c.RejectedTake, &c.Assigner} {
		if i := slices.IndexFunc(f.Beans, func(b springxml.Bean) bool { return b.ID != "" && b.ID == *handler }); i >= 0 {
			*handler = f.Beans[i].Class
		}
	}
	return c, nil
}

func (c *Config) take(properties map[string]string) error {
	known := 0
	for name, value := range properties {
		if set, ok := keys[lastWord(name)]; ok {
			known++
			if err := set(c, value); err != nil {
				return err
			}
		}
		if url, ok := strings.CutPrefix(value, "jdbc:mysql://"); ok {
			c.Table, _, _ = strings.Cut("mysql://"+url, "?")
		}
	}
	c.Cached = c.Cached || c.BoostPower > 0 || c.Padding || c.Schedule
	if known == 0 && len(properties) > 0 {
		return fmt.Errorf("%w: there is no setting of uid-generator, such as timeBits, among the properties", hapax.ErrInvalidArgument)
	}
	return nil
}

// lastWord returns the setting's name that a key ends with: uid.time-bits is timeBits.
func lastWord(key string) string {
	key = key[strings.LastIndexByte(key, '.')+1:]
	words := strings.FieldsFunc(key, func(r rune) bool { return r == '-' || r == '_' })
	for i := range words[min(1, len(words)):] {
		words[i+1] = strings.ToUpper(words[i+1][:1]) + words[i+1][1:]
	}
	return strings.Join(words, "")
}

// A Plan is which layout to go on with.
type Plan struct {
	Layout hapax.Layout
	Old    hapax.Layout
	Values plan.Span  // all that the layout can issue from From on; zero if it goes on with the old one
	Used   *plan.Span // the numbers in use, if they are known
	From   time.Time  // no clock may be behind this
}

// NewPlan returns the layout to go on with: the present one as long as it has time, or
// if numbers in use are given, one that issues none of these, ever. A layout whose time
// is over and that of the widely copied 30, 22 and 11 bits are refused unless the numbers
// in use are given, with the reason. Errors match hapax.ErrInvalidArgument or
// hapax.ErrTimeExhausted.
func NewPlan(c Config, used *plan.Span, w plan.Wishes) (Plan, error) {
	old, err := c.Settings.Layout()
	if err != nil {
		return Plan{}, err
	}
	w, err = w.WithDefaults()
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Layout: old, Old: old, Used: used, From: w.Now.Add(-plan.ClockMargin).UTC()}
	if used != nil {
		if p.Layout, err = plan.Disjoint(w, *used); err == nil {
			p.Values, err = plan.Values(p.Layout, p.From)
		}
		if err == nil && p.Values.Overlaps(*used) {
			err = fmt.Errorf("%w: %d to %d is not outside of %d to %d", hapax.ErrInternal, p.Values.Min, p.Values.Max, used.Min, used.Max)
		}
		return p, err
	}
	const next = "give the smallest and the largest number in use, and get a layout whose numbers lie outside of them for ever"
	if err := reenters(old); err != nil {
		return p, fmt.Errorf("%w; %s", err, next)
	}
	if !w.Now.Before(old.Ends()) {
		return p, fmt.Errorf("%w: the layout's time ran out at %s; %s", hapax.ErrTimeExhausted, old.Ends().UTC().Format(time.RFC3339), next)
	}
	return p, nil
}

// reenters refuses the layout that is passed around as the way out: 30, 22 and 11 bits
// from 2021 on. Its two more time bits are at the cost of the sequence, so that its numbers
// run once more through those of 28, 22 and 13 bits.
func reenters(l hapax.Layout) error {
	var widths []int
	for f := range l.Fields() {
		widths = append(widths, f.Bits)
	}
	before, err := uidgen.Settings{}.Layout()
	if err != nil || !slices.Equal(widths, []int{30, 22, 11}) {
		return err
	}
	used, err := plan.Values(before, before.Epoch())
	if err != nil {
		return err
	}
	first, until, ok := plan.Collisions(l, l.Epoch(), used)
	if !ok {
		return nil
	}
	if until.After(l.Ends()) {
		until = l.Ends()
	}
	return fmt.Errorf("%w: the layout of 30, 22 and 11 bits from %s issues numbers that the default one of 28, 22 and 13 bits may have issued, from %s until %s",
		hapax.ErrInvalidArgument, l.Epoch().Format(time.DateOnly), first.Format(time.RFC3339), until.Format(time.RFC3339))
}

// AppendYAML appends the configuration's block, with what is to know about it in comments.
func (p Plan) AppendYAML(dst []byte, c Config) []byte {
	comment := func(format string, args ...any) { dst = fmt.Appendf(dst, "# "+format+"\n", args...) }
	comment("Before: %s, time until %s.", layoutName(p.Old), p.Old.Ends().UTC().Format(time.RFC3339))
	if p.Used != nil {
		comment("From now on: %s, time until %s.", layoutName(p.Layout), p.Layout.Ends().UTC().Format(time.RFC3339))
		relation, a, b := ">", p.Values.Min, p.Used.Max
		if p.Values.Max < p.Used.Min {
			relation, a, b = "<", p.Values.Max, p.Used.Min
		}
		comment("Numbers in use:             %d to %d.", p.Used.Min, p.Used.Max)
		comment("Numbers from %s on: %d to %d.", p.From.Format(time.RFC3339Nano), p.Values.Min, p.Values.Max)
		comment("Disjoint for ever: %d %s %d, as long as no clock is a day behind", a, relation, b)
		comment("and the old generators are switched off before the largest number is looked up.")
	}
	for _, h := range []struct{ setting, class, field string }{
		{"rejectedPutBufferHandler", c.RejectedPut, "RejectedPut"}, {"rejectedTakeBufferHandler", c.RejectedTake, "RejectedTake"},
	} {
		if h.class != "" {
			comment("%s is %q: in Go, give yours as uidgen.CachedOptions.%s.", h.setting, h.class, h.field)
		}
	}
	for _, s := range []struct {
		setting string
		given   bool
	}{{"paddingFactor", c.Padding}, {"scheduleInterval", c.Schedule}} {
		if s.given {
			comment("%s has no effect here: numbers are made when they are taken.", s.setting)
		}
	}
	dst = append(dst, "compat:\n  uidgen:\n"...)
	dst = fmt.Appendf(dst, "    layout: %q\n", layoutName(p.Layout))
	switch {
	case p.Used != nil:
		dst = append(dst, "    # no table: worker IDs are leased from the server's store, and free again after use\n"...)
	case c.Table != "":
		dst = fmt.Appendf(dst, "    table: %q  # with USER:PASSWORD@ before the host\n", c.Table)
	}
	if c.Cached {
		dst = fmt.Appendf(dst, "    boost_power: %d\n", cmp.Or(c.BoostPower, uidgen.DefaultBoostPower))
	}
	return dst
}

// layoutName returns the name of a built-in layout, or else the spec.
func layoutName(l hapax.Layout) string { return cmp.Or(l.Name(), l.String()) }
