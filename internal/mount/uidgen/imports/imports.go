// Package imports reads uid-generator's configuration, and plans the layout that comes
// after one whose time is used up.
package imports

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/internal/compat/springxml"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/plan"
)

// A Config is uid-generator's configuration.
type Config struct {
	Settings uidgen.Settings

	Cached     bool // CachedUidGenerator
	BoostPower int

	// RejectedPut and RejectedTake are the classes of the replaced handlers.
	RejectedPut, RejectedTake string

	// Assigner is the class that assigns worker IDs, if the file names it.
	Assigner string

	// Table is the database of WORKER_NODE as a URL without the password, if it is known.
	Table    string
	Password moves.Secret

	account *moves.Account
}

// packages are uid-generator's own: Baidu's, and those of the two projects that publish it
// again under other names.
var packages = []string{"com.baidu.fsg.uid", "com.xfvape.uid", "com.github.wujun234.uid"}

// isAssigner reports whether a class is uid-generator's own assigner, over WORKER_NODE.
func isAssigner(class string) bool {
	return slices.ContainsFunc(packages, func(p string) bool { return class == p+".worker.DisposableWorkerIdAssigner" })
}

// noPadding says why there is nothing to pad.
const noPadding = "Without effect here, where numbers are made when they are taken"

// A setter sets one setting.
type setter func(c *Config, where, value string)

// keys are the settings' names, as beans and properties end with them, but for those that
// are beans.
var keys = map[string]setter{
	"timeBits":         number(func(c *Config) *int { return &c.Settings.TimeBits }, 63),
	"workerBits":       number(func(c *Config) *int { return &c.Settings.WorkerBits }, 63),
	"seqBits":          number(func(c *Config) *int { return &c.Settings.SeqBits }, 63),
	"boostPower":       number(func(c *Config) *int { return &c.BoostPower }, 15),
	"epochStr":         func(c *Config, _, value string) { c.Settings.EpochStr = value },
	"paddingFactor":    func(c *Config, where, _ string) { c.Cached = true; c.account.Note(noPadding, where) },
	"scheduleInterval": func(c *Config, where, _ string) { c.Cached = true; c.account.Note(noPadding, where) },
}

func number(field func(*Config) *int, most int) setter {
	return func(c *Config, where, text string) {
		v, err := strconv.Atoi(text)
		if err != nil || v < 0 || v > most {
			c.account.Refusef(where, "it is %q; want 0 to %d", text, most)
			return
		}
		*field(c) = v
	}
}

// A Source says where uid-generator's configuration is.
type Source struct {
	Open       springxml.Open
	Path       string         // of Spring's XML or a properties file
	Properties string         // of the file that the placeholders of XML stand for; may be empty
	Table      string         // mysql:// URL of the database of WORKER_NODE, in place of the file's; may be empty
	Zone       *time.Location // of the machines that uid-generator runs on; nil: uidgen.China
	Bean       string         // id of the generator where XML has several; empty: there is one
}

// Read reads Spring's XML, with the files that it imports, or a properties file whose keys
// end with the names of the settings, as uid.timeBits or uid.time-bits. Each setting is
// carried over, or named in the comments of AppendYAML, or refused. Errors match
// hapax.ErrInvalidArgument.
func Read(src Source) (Config, error) {
	c := Config{Settings: uidgen.Settings{Zone: src.Zone}, account: new(moves.Account)}
	if src.Table != "" {
		var err error
		if c.Table, c.Password, err = moves.SplitPassword("--table", src.Table); err != nil {
			return c, err
		}
	}
	d, err := springxml.Read(src.Open, src.Path, src.Properties, c.account)
	if err != nil {
		return c, err
	}
	if d.Properties != nil {
		return c, errors.Join(springxml.OnlyXML(src.Bean), c.properties(d.Properties))
	}
	return c, c.beans(d, src.Bean)
}

// beans reads the settings in XML.
func (c *Config) beans(d *springxml.Document, id string) error {
	takers := map[string]springxml.Taker{}
	for name, set := range keys {
		takers[name] = func(where string, v springxml.Value) {
			if text := d.Text(where, v); text != "" {
				set(c, where, text)
			}
		}
	}
	for name, class := range map[string]*string{"rejectedPutBufferHandler": &c.RejectedPut, "rejectedTakeBufferHandler": &c.RejectedTake, "workerIdAssigner": &c.Assigner} {
		takers[name] = func(where string, v springxml.Value) {
			if b := d.Bean(where, v); b != nil {
				*class = b.Class
				d.Claim(b, nil, nil, "*")
			}
		}
	}
	b, err := d.One("generator of uid-generator's", id, "DefaultUidGenerator", "CachedUidGenerator")
	if err != nil {
		return err
	}
	d.From("uid-generator's own", b, packages...)
	cached := b.Is() == "CachedUidGenerator"
	d.Claim(b, takers, nil)
	// The class decides: a setting of the cached generator alone has no effect on the other one.
	c.Cached = cached
	if c.Table == "" {
		if db := d.DataSource(); db != nil {
			c.Table, c.Password = db.URL, db.Password
		} else if url := d.Given("jdbc.url"); url != "" {
			db, err := moves.ReadDatabase(c.account, "jdbc.url", url, d.Given("jdbc.username"), moves.Secret(d.Given("jdbc.password")))
			if err != nil {
				return c.account.Beside(err)
			}
			c.Table, c.Password = db.URL, db.Password
			c.account.Note("Read for the table", "jdbc.url", "jdbc.username", "jdbc.password")
		}
	}
	if len(d.Missing) > 0 {
		c.account.Note("Imported, but not found beside the file, and not read", d.Missing...)
	}
	d.Finish()
	return c.account.Err()
}

// properties reads the settings in a properties file.
func (c *Config) properties(s *moves.Settings) error {
	by := map[string][]string{}
	var urls []string
	for _, name := range s.Left("") {
		word := lastWord(name)
		by[word] = append(by[word], name)
		if (word == "url" || word == "jdbcUrl") && strings.HasPrefix(s.Value(name), "jdbc:") {
			urls = append(urls, name)
		}
	}
	known := 0
	for _, word := range slices.Sorted(maps.Keys(keys)) {
		if len(by[word]) == 0 {
			continue
		}
		if name, value := s.Take(by[word]...); value != "" {
			known++
			keys[word](c, name, value)
		}
	}
	if known == 0 {
		return fmt.Errorf("%w: there is no setting of uid-generator, such as timeBits, among the properties", hapax.ErrInvalidArgument)
	}
	// Properties name no class, and only the cached generator has this setting.
	c.Cached = c.Cached || c.BoostPower > 0
	switch {
	case c.Table != "":
		s.Idle("Without effect beside --table", urls...)
	case len(urls) > 1:
		s.Refusef(urls[1], "there are several databases, this and that of %s: give the one that is meant as --table", urls[0])
	case len(urls) == 1:
		// The account stands beside the URL, under the same beginning.
		at := urls[0][:strings.LastIndexByte(urls[0], '.')+1]
		_, url := s.Take(urls[0])
		_, user := s.Take(at+"username", at+"user")
		password := s.TakeSecret(at + "password")
		db, err := moves.ReadDatabase(s.Account, urls[0], url, user, password)
		if err != nil {
			return s.Beside(err)
		}
		c.Table, c.Password = db.URL, db.Password
	}
	return s.Finish("uid.", strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
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

// A Plan is the layout to go on with.
type Plan struct {
	Layout hapax.Layout
	Old    hapax.Layout
	Values plan.Span  // all that the layout can issue from From on; zero if it goes on with the old one
	Used   *plan.Span // the numbers in use, if they are known
	From   time.Time  // no clock may be behind this

	// Negative is how many numbers below zero are in use, which Used leaves out.
	Negative int64
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
		// Looked at once more, apart from the search: it is printed as a proof.
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
	return p, c.sameWorkers()
}

// sameWorkers refuses to go on with the old layout and other worker IDs than those of the
// table: they would be those that uid-generator has used, and its numbers with them.
func (c Config) sameWorkers() error {
	if c.Assigner != "" && !isAssigner(c.Assigner) {
		return fmt.Errorf("%w: workerIdAssigner is %s, which is not uid-generator's own, and whose worker IDs cannot be told from here; give the smallest and the largest number in use, and get a layout whose numbers lie outside of them", hapax.ErrInvalidArgument, c.Assigner)
	}
	if c.Table == "" {
		return fmt.Errorf("%w: the database of WORKER_NODE is not in the file, and without it worker IDs would come again: give it as --table mysql://USER@HOST:3306/DATABASE, or the file with jdbc.url as --properties", hapax.ErrInvalidArgument)
	}
	return nil
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

// AppendYAML appends the configuration's block, with notes on it in comments.
func (p Plan) AppendYAML(dst []byte, c Config) []byte {
	comment := func(format string, args ...any) { dst = fmt.Appendf(dst, "# "+format+"\n", args...) }
	if c.account != nil {
		dst = append(dst, c.account.Comments()...)
	}
	comment("Before: %s, time until %s.", layoutName(p.Old), p.Old.Ends().UTC().Format(time.RFC3339))
	if p.Used != nil {
		comment("From now on: %s, time until %s.", layoutName(p.Layout), p.Layout.Ends().UTC().Format(time.RFC3339))
		relation, a, b := ">", p.Values.Min, p.Used.Max
		if p.Values.Max < p.Used.Min {
			relation, a, b = "<", p.Values.Max, p.Used.Min
		}
		comment("Numbers in use:             %d to %d.", p.Used.Min, p.Used.Max)
		if p.Negative > 0 {
			comment("Left out: %d numbers below zero, which this layout never issues.", p.Negative)
		}
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
	if c.Assigner != "" {
		comment("workerIdAssigner is %q.", c.Assigner)
	}
	if p.Used == nil {
		comment("An old uid-generator that is started again takes another key of WORKER_NODE: no number comes")
		comment("twice, and nothing keeps it from starting.")
	}
	if p.Used != nil { // a server does not start with this value
		comment("All servers need one store: with an embedded store each, all would be worker 0 and issue the")
		comment("same numbers. A single server may have bolt: here.")
		dst = append(dst, "store: \"the URL of the store that all servers share\"\n"...)
	}
	dst = append(dst, "compat:\n  uidgen:\n"...)
	dst = fmt.Appendf(dst, "    layout: %q\n", layoutName(p.Layout))
	switch {
	case p.Used != nil:
		dst = append(dst, "    # no table: worker IDs are leased from the server's store, and free again after use\n"...)
		if c.Table != "" {
			dst = fmt.Appendf(dst, "    # WORKER_NODE, in %s, is not used any more\n", moves.Quote(c.Table))
		}
	default:
		dst = fmt.Appendf(dst, "    table: %s\n", moves.Quote(c.Table))
		if c.Password != "" {
			dst = append(dst, "    # The password is not shown: write it into the URL, after the user and a colon.\n"...)
		}
	}
	if c.Cached {
		dst = fmt.Appendf(dst, "    boost_power: %d\n", cmp.Or(c.BoostPower, uidgen.DefaultBoostPower))
	}
	return dst
}

// layoutName returns the name of a built-in layout, or else the spec.
func layoutName(l hapax.Layout) string { return cmp.Or(l.Name(), l.String()) }
