// Package ledger keeps a record of every grant that a node takes, in files beside
// the node, and answers from them which caller was granted a number.
//
// A record is a line of fields with tabs between; see package journal. The first
// five are those that hapax audit reads:
//
//	line      tag/NAME, or worker/POOL/ID; before it SYSTEM/ where a foreign table
//	          grants it
//	lo, hi    [lo, hi) of the line: numbers of the tag, ticks of the worker
//	node      who took or gave back
//	time
//	what      grant, extend: taken. back: given back to the store; offered: the
//	          same, and the store's answer was lost
//	ref       of a tag's grant the SHA-256 of its key, the first 16 digits; of a
//	          worker's the fencing token
//	caller    the name of the token with which it was taken, and
//	address   from where; both empty where the node issues from it itself
//	holder    of a worker: the lessee
//	layout    of a worker: its name or spec. Of a tag: empty where the numbers issued
//	          are those granted, else what makes others of them, such as
//	          the strategy "invitations"
//
// A grant is written before it is used, so kill -9 loses none. A power loss may
// take the records of the last second, unless the ledger is a required one: then a
// grant is durable here before it is used, and none is taken while it could not be
// written.
package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/store/witness"
)

// Dir is the name of the ledger's directory within a data directory, and Prefix
// begins the names of its files.
const (
	Dir    = "ledger"
	Prefix = "grants"
)

// The kinds of records.
const (
	Granted  = "grant"
	Extended = "extend"
	Back     = "back"
	Offered  = "offered"
)

// Options are what a ledger needs to know.
type Options struct {
	Node     string // what operators know the node by
	Instance string // the node's identity with the store

	// Required refuses grants that cannot be recorded, and makes each record
	// durable before the grant is used.
	Required bool

	Bytes   int64         // see journal.Options
	Age     time.Duration // likewise
	Trouble func(error)   // likewise
	Now     func() time.Time
	Open    func(path string) (journal.File, error)
}

// A Ledger is written by one node. Its methods are safe for concurrent use; those
// of a nil Ledger record nothing.
type Ledger struct {
	dir     string
	system  string // begins the names of lines, if it is not empty
	opts    Options
	journal *journal.Journal

	mu      sync.Mutex        // guards layouts
	layouts map[string]string // of pools, as records have them
}

// maxPools bounds the pools whose layouts are remembered.
const maxPools = 10_000

// By is the caller for which a grant is taken; zero for the node itself.
type By struct{ Name, Address string }

// Command is a command that takes a grant and prints its numbers.
var Command = By{Name: "command"} // a token has an address

// Open opens the ledger in a directory, which is made if it does not exist.
func Open(dir string, opts Options) (*Ledger, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	j, err := journal.Open(dir, Prefix, journal.Options{
		Bytes: opts.Bytes, Age: opts.Age, Trouble: opts.Trouble, Now: opts.Now, Open: opts.Open,
		Opened: []string{opts.Node, opts.Instance},
	})
	if err != nil {
		return nil, unwritable(err)
	}
	return &Ledger{dir: dir, opts: opts, journal: j, layouts: map[string]string{}}, nil
}

func unwritable(err error) error {
	return fmt.Errorf("%w: the ledger of grants cannot be written: %w", hapax.ErrStoreUnavailable, err)
}

// In returns the same ledger for the lines of a foreign system, whose names begin
// with the system's.
func (l *Ledger) In(system string) *Ledger {
	if l == nil {
		return nil
	}
	return &Ledger{dir: l.dir, system: system, opts: l.opts, journal: l.journal, layouts: map[string]string{}}
}

// LineIn returns the name that a line has in the ledger of a foreign system.
func LineIn(system, line string) string { return system + "/" + line }

// CutSystem returns a line's name without the foreign system that it is of; empty for
// none.
func CutSystem(name string) (system, line string) {
	if strings.HasPrefix(name, "tag/") || strings.HasPrefix(name, "worker/") {
		return "", name
	}
	system, line, _ = strings.Cut(name, "/")
	return system, line
}

// Node returns what operators know the node by.
func (l *Ledger) Node() string { return l.opts.Node }

// Close writes what waits. No other method may be called after it.
func (l *Ledger) Close() error {
	if l == nil {
		return nil
	}
	return l.journal.Close()
}

// Stats returns counts since the ledger was opened.
func (l *Ledger) Stats() journal.Stats {
	if l == nil {
		return journal.Stats{}
	}
	return l.journal.Stats()
}

// Ready returns why no grant may be taken, if the ledger is a required one that
// cannot be written.
func (l *Ledger) Ready() error {
	if l == nil || !l.opts.Required {
		return nil
	}
	if err := l.journal.Ready(); err != nil {
		return unwritable(err)
	}
	return nil
}

// Allocated records a segment, and what makes other numbers of those granted, if
// anything does. After an error it must not be used.
func (l *Ledger) Allocated(a hapax.Allocation, by By, maker string) error {
	if l == nil {
		return nil
	}
	return l.taken(witness.TagLine(a.Tag.Name), Granted, a.Grant, keyRef(a.Key), by, "", maker)
}

// Acquired records the first grant of a lease, and Extended a further one. After
// an error it must not be used.
func (l *Ledger) Acquired(lease hapax.Lease, layout hapax.Layout, by By) error {
	return l.worker(lease, Granted, layout, by)
}

// Extended records a further grant of a lease.
func (l *Ledger) Extended(lease hapax.Lease, layout hapax.Layout, by By) error {
	return l.worker(lease, Extended, layout, by)
}

func (l *Ledger) worker(lease hapax.Lease, what string, layout hapax.Layout, by By) error {
	if l == nil || lease.Grant.Len() <= 0 {
		return nil
	}
	spec := l.layoutOf(lease.Pool, layout)
	return l.taken(witness.WorkerLine(lease.Pool, lease.Worker), what, lease.Grant, strconv.FormatInt(lease.Token, 10), by, lease.Holder, spec)
}

// layoutOf returns a layout as records have it, and remembers it for records of
// the pool that come without one.
func (l *Ledger) layoutOf(pool string, layout hapax.Layout) string {
	spec := ""
	if !layout.IsZero() {
		if spec = layout.Name(); spec == "" {
			spec = layout.String()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if spec == "" {
		return l.layouts[pool]
	}
	// A client chooses the names of pools, so their number is bounded.
	if len(l.layouts) < maxPools {
		l.layouts[pool] = spec
	}
	return spec
}

func keyRef(key hapax.GrantKey) string {
	if key == "" {
		return ""
	}
	// Not the key itself, with which any reader of the files could hand back.
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

func (l *Ledger) taken(line, what string, g hapax.Grant, ref string, by By, holder, layout string) error {
	err := l.append(line, what, g, ref, by, holder, layout)
	if !l.opts.Required {
		return nil // it is told to Options.Trouble, and counted
	}
	if err == nil {
		err = l.journal.Sync()
	}
	if err != nil {
		return unwritable(err)
	}
	return nil
}

func (l *Ledger) append(line, what string, g hapax.Grant, ref string, by By, holder, layout string) error {
	if l.system != "" {
		line = LineIn(l.system, line)
	}
	return l.journal.Append(line, strconv.FormatInt(g.Lo, 10), strconv.FormatInt(g.Hi, 10), l.opts.Node, journal.Stamp(l.opts.Now()),
		what, ref, by.Name, by.Address, holder, layout)
}

// HandedBack records that the end of a segment, from next on, was handed back; err
// is what the store said.
func (l *Ledger) HandedBack(a hapax.Allocation, next int64, by By, err error) {
	if l != nil {
		l.gave(witness.TagLine(a.Tag.Name), hapax.Grant{Lo: next, Hi: a.Grant.Hi}, err, keyRef(a.Key), by, "", "")
	}
}

// Sealed is HandedBack for a worker's time from the tick last on.
func (l *Ledger) Sealed(lease hapax.Lease, last int64, by By, err error) {
	if l != nil {
		spec := l.layoutOf(lease.Pool, hapax.Layout{})
		l.gave(witness.WorkerLine(lease.Pool, lease.Worker), hapax.Grant{Lo: last, Hi: lease.Grant.Hi}, err,
			strconv.FormatInt(lease.Token, 10), by, lease.Holder, spec)
	}
}

func (l *Ledger) gave(line string, g hapax.Grant, err error, ref string, by By, holder, layout string) {
	what := Back
	switch {
	case g.Len() <= 0:
		return
	case err == nil:
	// The answer was lost: the store may have taken the numbers back, and may have granted them again.
	case errors.Is(hapax.StoreError(err), hapax.ErrStoreUnavailable):
		what = Offered
	default:
		return // the store has taken nothing
	}
	_ = l.append(line, what, g, ref, by, holder, layout) // trouble is told to Options.Trouble
}
