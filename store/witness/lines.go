package witness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// TagLine returns the name of a tag's line.
func TagLine(tag string) string { return "tag/" + tag }

// WorkerLine returns the name of the timeline of a pool's worker.
func WorkerLine(pool string, id int64) string {
	return "worker/" + pool + "/" + strconv.FormatInt(id, 10)
}

// CutTagLine returns the tag whose line has that name, and false for other lines.
func CutTagLine(line string) (tag string, ok bool) { return strings.CutPrefix(line, "tag/") }

// CutWorkerLine returns the arguments of [WorkerLine], and false for other lines.
func CutWorkerLine(line string) (pool string, id int64, ok bool) {
	i := strings.LastIndexByte(line, '/')
	id, err := strconv.ParseInt(line[i+1:], 10, 64)
	_, pool, _ = strings.Cut(line[:max(i, 0)], "/") // a pool may have slashes in its name
	return pool, id, err == nil && line == WorkerLine(pool, id)
}

// A Pair is how far a line was granted: its fencing token, and its mark under that.
// A line's pair only grows: a hand-back and a seal lower the mark and raise the token.
type Pair struct {
	Token int64 `json:"t,omitempty"`
	Mark  int64 `json:"m,omitempty"`
}

// Less reports whether p comes before q, the token first.
func (p Pair) Less(q Pair) bool {
	return p.Token < q.Token || p.Token == q.Token && p.Mark < q.Mark
}

// max returns the later of two pairs.
func (p Pair) max(q Pair) Pair {
	if p.Less(q) {
		return q
	}
	return p
}

// above returns the lowest pair whose token and mark are neither below p's nor q's.
func (p Pair) above(q Pair) Pair { return Pair{max(p.Token, q.Token), max(p.Mark, q.Mark)} }

// A def is enough to make a line anew where a store has lost it: a tag's
// definition, or the layout of a worker's pool.
type def struct {
	Kind      hapax.Kind `json:"kind,omitempty"` // empty: a segment tag
	Start     int64      `json:"start,omitempty"`
	Step      int64      `json:"step,omitempty"`
	MinStep   int64      `json:"min,omitempty"`
	MaxStep   int64      `json:"max,omitempty"`
	Delta     int64      `json:"delta,omitempty"`
	Remainder int64      `json:"rem,omitempty"`
	Pool      string     `json:"pool,omitempty"`
	Extra     string     `json:"extra,omitempty"`
	Deleted   bool       `json:"deleted,omitempty"`
	Layout    string     `json:"layout,omitempty"`
}

// omitDefault returns 0 for the default, which WithDefaults fills in again.
func omitDefault(v, usual int64) int64 {
	if v == usual {
		return 0
	}
	return v
}

func defOf(t hapax.Tag) def {
	d := def{Pool: t.Pool, Extra: t.Extra, Deleted: t.Deleted, Remainder: t.Remainder, Delta: omitDefault(t.Delta, 1), Start: omitDefault(t.Start, 1), Step: omitDefault(t.Step, hapax.DefaultStep)}
	d.MinStep, d.MaxStep = omitDefault(t.MinStep, t.Step), omitDefault(t.MaxStep, max(t.Step, hapax.DefaultMaxStep))
	if t.Kind != hapax.KindSegment {
		d.Kind = t.Kind
	}
	return d
}

// tag returns the tag of that name at the pair.
func (d def) tag(name string, p Pair) hapax.Tag {
	return hapax.Tag{
		Name: name, Kind: d.Kind, Start: d.Start, Step: d.Step, MinStep: d.MinStep, MaxStep: d.MaxStep, Delta: d.Delta, Remainder: d.Remainder,
		Pool: d.Pool, Extra: d.Extra, Deleted: d.Deleted, Mark: p.Mark, Token: p.Token,
	}
}

// isAnother reports whether a tag's kind, pool, delta or remainder differs now. No call changes any of
// these, so such a row is not the tag's.
func (d def) isAnother(now def) bool {
	return d.Kind != now.Kind || d.Pool != now.Pool || d.Delta != now.Delta || d.Remainder != now.Remainder
}

// poolDef returns the name of a pool's layout among the definitions.
func poolDef(pool string) string { return "pool/" + pool }

// lines holds lines with their pairs and definitions. Segment tags with the defaults have no
// definition in it.
type lines struct {
	pairs map[string]Pair
	defs  map[string]def
}

// lines returns a record's lines.
func (r record) lines() lines { return lines{r.Lines, r.Defs} }

func newLines() lines { return lines{map[string]Pair{}, map[string]def{}} }

// defsFor returns the definitions for a reader that has those of known. Where one of them has
// changed to the defaults it is in the answer, too, as the zero def.
func (l lines) defsFor(known record) map[string]def {
	defs := maps.Clone(l.defs)
	for name := range known.Defs {
		_, there := l.pairs[name]
		if _, ok := defs[name]; there && !ok {
			defs[name] = def{}
		}
	}
	return defs
}

// inParts calls f with parts of size lines and definitions, and returns the rest, which is smaller.
func (l lines) inParts(size int, f func(part lines) error) (rest lines, err error) {
	rest = newLines()
	flush := func() {
		if err == nil && len(rest.pairs)+len(rest.defs) == size {
			err = f(rest)
			rest = newLines()
		}
	}
	// Definitions first: a line that is known without its own counts as a segment tag with the defaults,
	// and its row as another tag's.
	for name, d := range l.defs {
		rest.defs[name] = d
		flush()
	}
	for name, p := range l.pairs {
		rest.pairs[name] = p
		flush()
	}
	return rest, err
}

// add raises each line to the higher token and mark of another account, and takes over its definitions.
func (l lines) add(pairs map[string]Pair, defs map[string]def) {
	for name, p := range pairs {
		l.pairs[name] = l.pairs[name].above(p)
	}
	maps.Copy(l.defs, defs)
}

// tagPage is how many tags are read at a time.
const tagPage = 5000

// eachLine calls line for each line of a store. It reads them by the page: there may be a million. A
// tag's line comes with its definition, a pool's layout goes to define, and the name of a row that
// cannot be read to unread.
func eachLine(ctx context.Context, s driver.Store, line func(name string, p Pair, d *def), define func(name string, d def), unread func(name string)) error {
	for after := ""; ; {
		page, err := s.Tags(ctx, after, tagPage)
		if err != nil {
			return err
		}
		for _, t := range page {
			after = t.Name
			name := TagLine(t.Name)
			if t.Kind == hapax.KindUnreadable {
				unread(name)
				continue
			}
			d := defOf(t)
			line(name, Pair{t.Token, t.Mark}, &d)
		}
		if len(page) < tagPage {
			break
		}
	}
	pools, err := s.Pools(ctx)
	if err != nil {
		return err
	}
	for _, p := range pools {
		define(poolDef(p.Name), def{Layout: p.Layout})
		workers, err := s.Workers(ctx, p.Name)
		if err != nil {
			return err
		}
		for _, w := range workers {
			line(WorkerLine(w.Pool, w.ID), Pair{w.Token, w.Mark}, nil)
		}
	}
	return nil
}

// stored holds all lines of a store.
type stored struct {
	lines
	unread map[string]bool // lines that cannot be read; see blocked.go
}

// readLines returns all lines of a store. A tag that is another one than before counts as unread.
func readLines(ctx context.Context, s driver.Store, before lines) (stored, error) {
	all := stored{newLines(), map[string]bool{}}
	define := func(name string, d def) {
		if d != (def{}) {
			all.defs[name] = d
		}
	}
	err := eachLine(ctx, s, func(name string, p Pair, d *def) {
		if d != nil {
			if _, known := before.pairs[name]; known && before.defs[name].isAnother(*d) {
				all.unread[name] = true
				return
			}
			define(name, *d)
		}
		all.pairs[name] = p
	}, define, func(name string) { all.unread[name] = true })
	return all, err
}

// A comparison is a store's lines against a record of some of them.
type comparison struct {
	news   lines // higher than was known, or defined otherwise
	count  int   // of the lines that were known
	unread map[string]bool

	behind     bool // one is lower, or not there:
	line       string
	want, have Pair
}

// compareLines compares the lines of a store with a witness's record of them.
func compareLines(ctx context.Context, s driver.Store, known record) (comparison, error) {
	c := comparison{news: newLines(), unread: map[string]bool{}}
	define := func(name string, d def) {
		if known.Defs[name] != d {
			c.news.defs[name] = d
		}
	}
	unread := func(name string) {
		c.unread[name] = true
		if _, ok := known.Lines[name]; ok { // it is there, and nobody can tell whether it went back
			c.count++
		}
	}
	err := eachLine(ctx, s, func(name string, p Pair, d *def) {
		want, ok := known.Lines[name]
		if d != nil {
			if ok && known.Defs[name].isAnother(*d) {
				unread(name)
				return
			}
			define(name, *d)
		}
		switch {
		case !ok || want.Less(p):
			c.news.pairs[name] = p
		case p.Less(want):
			c.lacks(name, want, p)
		}
		if ok {
			c.count++
		}
	}, define, unread)
	if err != nil || c.behind || c.count == len(known.Lines) {
		return c, err
	}
	all, err := readLines(ctx, s, known.lines()) // some are not there: which?
	if err != nil {
		return c, err
	}
	for name, want := range known.Lines {
		if p, ok := all.pairs[name]; (!ok || p.Less(want)) && !all.unread[name] {
			c.lacks(name, want, p)
		}
	}
	return c, nil
}

// lacks notes that a line is behind. It keeps the first by name, so that reports do not vary.
func (c *comparison) lacks(name string, want, have Pair) {
	if !c.behind || name < c.line {
		c.behind, c.line, c.want, c.have = true, name, want, have
	}
}

// cause returns the error of a store in which a line is behind.
func (c *comparison) cause() error { return lacksLine(c.line, c.want, c.have) }

// A Raised is one line that is behind, or was raised.
type Raised = driver.Raised

// raisedOf returns the raise of a line from one mark to another.
func raisedOf(line string, from, to int64) Raised {
	r := Raised{From: from, To: to}
	var ok bool
	if r.Tag, ok = CutTagLine(line); !ok {
		r.Tag = ""
		r.Pool, r.Worker, _ = CutWorkerLine(line)
	}
	return r
}

// lacksLine is the cause where a line of the store is lower than is known.
func lacksLine(line string, want, has Pair) error {
	return fmt.Errorf("%w: %s is at token %d, mark %d, and was at token %d, mark %d",
		hapax.ErrStoreRolledBack, line, has.Token, has.Mark, want.Token, want.Mark)
}

// errNoLine says that an account lacks a line's definition.
var errNoLine = errors.New("its definition is not known")
