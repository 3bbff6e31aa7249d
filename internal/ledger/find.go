package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/store/witness"
)

// Bounds on the results of Find.
const (
	maxLines = 100 // on which the number was granted
	maxTimes = 100 // that it was granted on a line
	maxGaps  = 100
)

// periodMark stands between a tag's name and a period in the name of a period's
// line; see the service's periods.
const periodMark = "@@"

// A Query tells which grants are meant. Without a tag, a pool and a layout, those
// of every line.
type Query struct {
	Number hapax.ID
	Tag    string       // the line of a segment tag, and of its periods
	Pool   string       // the workers of a pool
	Layout hapax.Layout // the workers of pools with this layout

	// AnyPool looks among all workers, too, where a tag is given of which it is not
	// known whether it counts.
	AnyPool bool
}

// Found is the account of a number in a ledger.
type Found struct {
	Lines   []FoundLine // by name
	More    bool        // there were too many to tell
	Node    string      // whose ledger it is
	Since   time.Time   // when the first record was written; zero if there is none
	Damaged int         // records that cannot be read
	Gaps    []Gap       // when records were lost
}

// A Gap is a time in which records were lost.
type Gap struct {
	From, To time.Time
	Records  int64
}

// A FoundLine is a line on which the number was granted.
type FoundLine struct {
	Name     string
	Position int64 // the number, or the tick that it holds
	Layout   string
	Maker    string    // of a tag: what makes other numbers of those granted
	Grants   []Holding // in the order of the records
}

// A Holding is one grant of a number.
type Holding struct {
	Grant    hapax.Grant
	Extended bool
	Node     string
	Time     time.Time
	Ref      string // see the package's documentation
	By       By
	Holder   string

	// Given tells whether the number was given back: empty if it was not, Offered
	// if the answer of the store is not known, and Back.
	Given   string
	GivenAt time.Time
}

// Find looks a number up in the ledger.
func (l *Ledger) Find(ctx context.Context, q Query) (Found, error) {
	if l == nil {
		return Found{}, nil
	}
	return Find(ctx, l.dir, q)
}

// Find looks a number up in the ledger in a directory, which may be one that is
// written to.
func Find(ctx context.Context, dir string, q Query) (Found, error) {
	f := finder{query: q, lines: map[string]*FoundLine{}, specs: map[string]place{}, pools: map[string]string{}}
	damaged, err := journal.Read(ctx, dir, Prefix, f.record)
	f.found.Damaged += damaged
	for _, l := range f.lines {
		f.found.Lines = append(f.found.Lines, *l)
	}
	slices.SortFunc(f.found.Lines, func(a, b FoundLine) int { return cmp.Compare(a.Name, b.Name) })
	return f.found, err
}

// A place is what a number says in a layout.
type place struct {
	ok           bool
	worker, tick int64
}

// placeOf takes a number apart.
func placeOf(l hapax.Layout, id hapax.ID) place {
	fields, err := l.Parse(id)
	if err != nil {
		return place{}
	}
	tick, _ := fields.Get(hapax.FieldTime)
	worker, _ := fields.Get(l.WorkerField())
	return place{true, worker, tick}
}

type finder struct {
	query Query
	found Found
	lines map[string]*FoundLine
	specs map[string]place  // of the number, by layout
	pools map[string]string // the layout that a pool's records had last
}

const recordFields = 11

// record looks at one record.
func (f *finder) record(text []byte) error {
	if len(text) > 0 && text[0] == '#' {
		f.remark(string(text))
		return nil
	}
	first, _, _ := bytes.Cut(text, []byte{'\t'})
	if system, line := CutSystem(string(first)); system != "" {
		first = []byte(line)
	}
	tag, isTag := bytes.CutPrefix(first, []byte(witness.TagLine("")))
	// The first record of all is read whatever it is of: it tells since when there is a ledger.
	if !f.found.Since.IsZero() && !f.wanted(tag, first, isTag) {
		return nil
	}
	fields := strings.Split(string(text), "\t")
	if len(fields) < recordFields {
		f.found.Damaged++
		return nil
	}
	lo, hi, at, ok := stretchOf(fields)
	if !ok {
		f.found.Damaged++
		return nil
	}
	f.found.Node = fields[3]
	if f.found.Since.IsZero() {
		f.found.Since = at
		if !f.wanted(tag, first, isTag) {
			return nil
		}
	}
	position, layout := int64(f.query.Number), ""
	if !isTag {
		if position, layout, ok = f.tickOn(string(first), fields[10]); !ok {
			return nil
		}
	}
	if position < lo || position >= hi {
		return nil
	}
	if l := f.note(fields, hapax.Grant{Lo: lo, Hi: hi}, at, position, layout); l != nil && isTag {
		l.Maker = cmp.Or(l.Maker, fields[10])
	}
	return nil
}

// stretchOf reads what a record is about.
func stretchOf(fields []string) (lo, hi int64, at time.Time, ok bool) {
	lo, err := strconv.ParseInt(fields[1], 10, 64)
	hi, err2 := strconv.ParseInt(fields[2], 10, 64)
	at, err3 := journal.ParseStamp(fields[4])
	return lo, hi, at, errors.Join(err, err2, err3) == nil
}

// wanted reports whether a line is one of those that are asked for, as far as its
// name tells.
func (f *finder) wanted(tag, line []byte, isTag bool) bool {
	q := f.query
	switch {
	case isTag && q.Tag != "":
		rest, ok := bytes.CutPrefix(tag, []byte(q.Tag))
		return ok && (len(rest) == 0 || bytes.HasPrefix(rest, []byte(periodMark)))
	case isTag:
		return q.Pool == "" && q.Layout.IsZero()
	case q.Pool != "":
		pool, _, ok := CutWorkerLine(string(line))
		return ok && pool == q.Pool
	}
	return q.Tag == "" || q.AnyPool
}

// CutWorkerLine takes the name of a worker's line apart.
func CutWorkerLine(line string) (pool string, worker int64, ok bool) {
	rest, ok := strings.CutPrefix(line, "worker/")
	cut := strings.LastIndexByte(rest, '/')
	if !ok || cut < 1 {
		return "", 0, false
	}
	worker, err := strconv.ParseInt(rest[cut+1:], 10, 64)
	return rest[:cut], worker, err == nil
}

// tickOn returns the tick that the number holds on a worker's line.
func (f *finder) tickOn(line, spec string) (tick int64, layout string, ok bool) {
	pool, worker, ok := CutWorkerLine(line)
	if !ok {
		f.found.Damaged++
		return 0, "", false
	}
	if spec == "" {
		spec = f.pools[pool]
	} else if f.pools[pool] != spec {
		f.pools[pool] = spec
	}
	p, known := f.specs[spec]
	if !known {
		if l, err := hapax.ParseLayout(spec); err == nil && (f.query.Layout.IsZero() || f.query.Layout == l) {
			p = placeOf(l, f.query.Number)
		}
		f.specs[spec] = p
	}
	return p.tick, spec, p.ok && p.worker == worker
}

// note adds a record in whose stretch the number lies, and returns its line; nil if
// there are too many.
func (f *finder) note(fields []string, g hapax.Grant, at time.Time, position int64, layout string) *FoundLine {
	l := f.lines[fields[0]]
	if l == nil {
		if len(f.lines) >= maxLines {
			f.found.More = true
			return nil
		}
		l = &FoundLine{Name: fields[0], Position: position, Layout: layout}
		f.lines[l.Name] = l
	}
	switch what := fields[5]; what {
	case Granted, Extended:
		if len(l.Grants) >= maxTimes {
			f.found.More = true
			return l
		}
		l.Grants = append(l.Grants, Holding{
			Grant: g, Extended: what == Extended, Node: fields[3], Time: at, Ref: fields[6],
			By: By{fields[7], fields[8]}, Holder: fields[9],
		})
	case Offered, Back:
		// It is of the latest grant: a number is granted again only after it went back.
		if n := len(l.Grants); n > 0 && l.Grants[n-1].Given != Back {
			l.Grants[n-1].Given, l.Grants[n-1].GivenAt = what, at
		}
	default:
		f.found.Damaged++
	}
	return l
}

// remark reads what the journal says of itself.
func (f *finder) remark(text string) {
	fields := strings.Split(text, "\t")
	if len(fields) < 2 {
		return
	}
	at, err := journal.ParseStamp(fields[1])
	if err != nil {
		return
	}
	if f.found.Since.IsZero() {
		f.found.Since = at
	}
	if fields[0] == journal.Opened && len(fields) > 2 {
		f.found.Node = fields[2]
	}
	if fields[0] != journal.Lost || len(fields) < 4 {
		return
	}
	to, err := journal.ParseStamp(fields[2])
	n, err2 := strconv.ParseInt(fields[3], 10, 64)
	if err == nil && err2 == nil && len(f.found.Gaps) < maxGaps {
		f.found.Gaps = append(f.found.Gaps, Gap{at, to, n})
	}
}
