// Package sequences is the command hapax import sequences: it plans how the tags of an
// application take over from its sequences, AUTO_INCREMENT columns and counters, carries
// that out, and goes back.
package sequences

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
)

// PasswordEnv is the variable with the password for URLs that have none.
const PasswordEnv = "HAPAX_SEQUENCES_PASSWORD" //nolint:gosec // its name

// Limits of the settings.
const (
	maxURLs   = 16
	maxSample = 10 * time.Minute
	maxGap    = 366 * 24 * time.Hour
)

// An importing is what hapax import sequences is told.
type importing struct {
	like, prefix, how string
	sample, gap       time.Duration
	feeds             []string
	opts              sequences.Options

	store  string                                      // the ID of the hapax store, once that is known
	opened func(sequences.Database) sequences.Database // stands around each; may be nil
}

// Import is hapax import sequences.
func Import() *mount.Import {
	i := new(importing)
	return &mount.Import{
		Use:   "sequences URL...",
		Short: "Read sequences, AUTO_INCREMENT columns and counters, and move them to tags",
		Long: `Sequences reads where an application's numbers come from, and changes nothing: in
PostgreSQL sequences, serial and identity columns, in MySQL and MariaDB AUTO_INCREMENT
columns and sequences, in Redis counters, in MongoDB collections of counters, and in each
SQL database the tables of JPA's generators. A URL is that of a database, or better
env:NAME or file:PATH of one, so that it stands in no command line.

It prints a plan, which is a shell script: for each source the tag, with a first number
above all that was issued, is held by a session or stands in a column, and the statements
that shut the source. Whatever cannot be moved is named there with the reason.

--switch chooses how: with stop all writers stop for seconds; with gap the source goes on,
below the tag's first number, and ends there; with parity it goes on with every other
number, and the tag issues the rest. Give --switch stop afterwards to shut it.
`,
		More: `
--verify reads both sides again, and fails if a source that was shut has moved, is open
again beside a tag that names its column, was shut for another store, or a row lies at or above
its tag's mark. Give --apply the same --like, --switch and --feeds as the plan.

A source is shut for one store, which hapax store id prints, and refused to every other one. A
copy of that store (hapax store copy), and a backup that is put back, have its ID; what hapax
store load makes with --as-new has not.
`,
		Example: `  hapax import sequences env:SHOP_DB
  hapax import sequences env:SHOP_DB --like 'order*' --switch stop --apply --server http://127.0.0.1:8080
  hapax import sequences env:SHOP_DB --verify
  hapax import sequences redis://10.0.0.4:6379/0 --like 'counter:*'`,
		Most: maxURLs, Verifies: true, PasswordEnv: PasswordEnv, Closes: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&i.like, "like", "", "only what has such a name: of a tag, table, column, sequence or key, with * and ?")
			flags.StringVar(&i.prefix, "prefix", "", "what the names of the tags begin with, such as shop.")
			flags.StringVar(&i.how, "switch", string(sequences.Stop), "how to go over: stop, gap or parity")
			flags.DurationVar(&i.gap, "gap-for", 24*time.Hour, "for how long a source has numbers left with --switch gap, at twice the rate that was seen")
			flags.DurationVar(&i.sample, "sample", time.Second, "for how long the rate is measured")
			flags.StringArrayVar(&i.feeds, "feeds", nil, "NAME=TABLE.COLUMN: a column that a sequence, or a row of a generator table, feeds and the database does not tell of; may be given several times, also for one NAME")
			flags.StringVar(&i.opts.Collection, "collection", "counters", "MongoDB: the collection with the counters")
			flags.Int64Var(&i.opts.AllocationSize, "allocation-size", 50, "the largest allocationSize of the JPA generators")
		},
		Positive: []string{"allocation-size"},
		Read:     i.read,
	}
}

// check judges the flags.
func (i *importing) check() error {
	invalid := func(flag string, value any, allowed string) error {
		return &hapax.ValueError{Field: "--" + flag, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
	}
	switch {
	case !slices.Contains([]sequences.Switch{sequences.Stop, sequences.Gap, sequences.Parity}, sequences.Switch(i.how)):
		return invalid("switch", i.how, "stop, gap or parity")
	case i.sample < 0 || i.sample > maxSample:
		return invalid("sample", i.sample, fmt.Sprintf("0s to %v", maxSample))
	case i.gap <= 0 || i.gap > maxGap:
		return invalid("gap-for", i.gap, "more than 0s, up to 8784h")
	case i.opts.AllocationSize < 1 || i.opts.AllocationSize > hapax.MaxStep:
		return invalid("allocation-size", i.opts.AllocationSize, fmt.Sprintf("1 to %d", int64(hapax.MaxStep)))
	}
	i.opts.Feeds = map[string][]string{}
	for _, f := range i.feeds {
		name, column, ok := strings.Cut(f, "=")
		if !ok || name == "" || !strings.Contains(column, ".") {
			return invalid("feeds", f, "NAME=TABLE.COLUMN")
		}
		i.opts.Feeds[name] = append(i.opts.Feeds[name], column)
	}
	return nil
}

// A database is one of those that were read.
type database struct {
	given    string // as on the command line
	url      string // with the password; a reference stays one
	variable string // by which a script has the URL
	sources  []*sequences.Source
	others   []string

	speaks sequences.Database // closed, but it knows its statements
}

// imported is what was found.
type imported struct {
	*importing

	all []*database
	now time.Time
}

// read connects to all databases, and reads them.
func (i *importing) read(ctx context.Context, _ mount.Files, args []string) (mount.Imported, error) {
	if err := i.check(); err != nil {
		return nil, err
	}
	m := &imported{importing: i, now: time.Now()}
	for k, given := range args {
		d := &database{given: given, url: withPassword(given), variable: fmt.Sprintf("HAPAX_DB%d", k+1)}
		if name, ok := strings.CutPrefix(given, "env:"); ok {
			d.variable = name
		}
		m.all = append(m.all, d)
		if err := m.readOne(ctx, d); err != nil {
			return nil, fmt.Errorf("%s: %w", sequences.Shown(given), err)
		}
	}
	if err := m.checkFeeds(); err != nil {
		return nil, err
	}
	// Of all together: two databases may have tables of one name.
	m.nameOnce()
	return m, nil
}

// checkFeeds refuses a column that was given for a source that is not there, unless that may
// be one that --like leaves out.
func (m *imported) checkFeeds() error {
	if m.like != "" {
		return nil
	}
	known := map[string]bool{}
	for _, d := range m.all {
		for _, s := range d.sources {
			for _, name := range s.Names {
				known[name] = true
				if _, row, ok := strings.Cut(name, "/"); ok {
					known[row] = true
				}
			}
		}
	}
	for name := range m.opts.Feeds {
		if !known[name] {
			return &hapax.ValueError{Field: "--feeds", Value: name, Allowed: "the name of a sequence, or of a row of a generator table, of these databases", Err: hapax.ErrInvalidArgument}
		}
	}
	return nil
}

// readOne reads a database, and its rates.
func (m *imported) readOne(ctx context.Context, d *database) error {
	return m.with(ctx, d, false, func(db sequences.Database) (err error) {
		d.speaks = db
		if d.sources, d.others, err = db.Sources(ctx, m.like); err != nil {
			return err
		}
		if m.sample == 0 || len(d.sources) == 0 {
			return nil
		}
		began := time.Now()
		select {
		case <-time.After(m.sample):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for _, s := range d.sources {
			if len(s.Wrong) > 0 || s.Closed != nil {
				continue
			}
			at, err := db.Position(ctx, s)
			if err != nil {
				return err
			}
			s.Rate = float64(at-s.Position) / time.Since(began).Seconds()
			if s.Position = max(s.Position, at); at > s.Highest {
				s.Highest, s.Because = at, "the source's own position"
			}
		}
		return nil
	})
}

// with opens a database, calls do, and closes it.
func (i *importing) with(ctx context.Context, d *database, write bool, do func(sequences.Database) error) error {
	o := i.opts
	// Opened for each phase: one that only reads asks the database to refuse changes.
	o.Write, o.Store = write, i.store
	return i.open(ctx, d, o, do)
}

func (i *importing) open(ctx context.Context, d *database, o sequences.Options, do func(sequences.Database) error) error {
	db, err := sequences.Open(ctx, d.url, o)
	if err != nil {
		return err
	}
	if i.opened != nil {
		db = i.opened(db)
	}
	return errors.Join(do(db), db.Close())
}

// nameOnce gives each source's tag its prefix, and refuses those of one name.
func (m *imported) nameOnce() {
	by := map[string][]*sequences.Source{}
	for _, d := range m.all {
		for _, s := range d.sources {
			if s.Closed == nil { // else it remembers its tag
				s.Tag = m.prefix + s.Tag
			}
			by[s.Tag] = append(by[s.Tag], s)
		}
	}
	for name, all := range by {
		if len(all) < 2 {
			continue
		}
		for _, s := range all {
			s.Wrong = append(s.Wrong, fmt.Sprintf("%d sources would become the tag %s: give --like or --prefix, for one after the other", len(all), name))
		}
	}
}

// withPassword puts the password of the variable into a URL with a user and none.
func withPassword(given string) string {
	password := os.Getenv(PasswordEnv)
	u, err := url.Parse(given)
	if password == "" || sequences.IsReference(given) || err != nil || u.User == nil {
		return given
	}
	if _, has := u.User.Password(); has {
		return given
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}

// Passwords implements mount.Movable: a script has URLs in variables.
func (m *imported) Passwords() string { return "" }
