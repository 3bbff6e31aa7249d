package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
)

// The tables that store/witness keeps in a store, and their rows.
const (
	TableBeats = "beats"   // a row for each start of a process: its heartbeat; see Beat
	TableGuard = "guard"   // counters and decisions
	RowJoins   = "joins"   // of TableGuard: how many processes have joined; see EncodeCounter
	RowChanges = "changes" // of TableGuard: moved after a process has left or was marked silent; see EncodeCounter
	RowFence   = "loss"    // of TableFence: while it is there nobody is granted anything
	endedBeat  = "!"       // what the row of a process begins with that has ended
)

// A Beat is the heartbeat of one process, as its row in [TableBeats] holds it.
// Beats are ordered as their encodings are, byte by byte. Each process writes
// its own, and they only grow.
type Beat struct {
	Count  int64 // how often it was advanced; 1 or more
	Grants int64 // how many of these asked for a grant
	Seen   int64 // up to which join the process has seen
}

// Encode returns the row's value: three numbers of 19 digits.
func (b Beat) Encode() []byte {
	text := appendDigits(make([]byte, 0, 3*digits+2), b.Count)
	text = appendDigits(append(text, '/'), b.Grants)
	return appendDigits(append(text, '/'), b.Seen)
}

// digits is how many a count has.
const digits = 19

// appendDigits adds a number with zeros before it, as each grant does several times.
func appendDigits(text []byte, n int64) []byte {
	if n < 0 {
		return fmt.Appendf(text, "%0*d", digits, n)
	}
	var number [digits]byte
	for i := digits - 1; i >= 0; i-- {
		number[i] = '0' + byte(n%10)
		n /= 10
	}
	return append(text, number[:]...)
}

// EncodeEnded returns the value of a process that has ended, and how: "left" or
// "silent". It sorts before every value of a live one, so that no beat matches it.
func (b Beat) EncodeEnded(how string) []byte { return append([]byte(endedBeat+how+"/"), b.Encode()...) }

// DecodeBeat reads the value of a row of [TableBeats]. How is empty for a live process.
func DecodeBeat(name string, value []byte) (b Beat, how string, err error) {
	text := string(value)
	if rest, ended := strings.CutPrefix(text, endedBeat); ended {
		how, text, _ = strings.Cut(rest, "/")
	}
	parts := strings.SplitN(text, "/", 3)
	for i, field := range []*int64{&b.Count, &b.Grants, &b.Seen}[:len(parts)] {
		*field, _ = strconv.ParseInt(parts[i], 10, 64) // what is wrong with it shows below
	}
	// Rows are compared as bytes, so that another spelling of the same beat would be ordered wrongly.
	if b.Count < 1 || b.Grants < 0 || b.Seen < 0 || string(b.Encode()) != text {
		return Beat{}, "", fmt.Errorf("%w: row %q of table %q is %.80q, not a heartbeat", hapax.ErrStoreCorrupt, name, TableBeats, value)
	}
	return b, how, nil
}

// EncodeCounter returns the value of a row that counts.
func EncodeCounter(n int64) []byte { return appendDigits(nil, n) }

// DecodeCounter reads the value of a row that counts; no row is 0.
func DecodeCounter(table, name string, value []byte) (int64, error) {
	if value == nil {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < 0 || string(EncodeCounter(n)) != string(value) {
		return 0, fmt.Errorf("%w: row %q of table %q is %.80q, not a counter", hapax.ErrStoreCorrupt, name, table, value)
	}
	return n, nil
}

// A Pulse goes with a guarded call, which is carried out only if the row of
// the process in [TableBeats] is at least Was and there is no fence ([RowFence] of
// [TableFence]), and then advances the row to Now, unless it is further already.
// So several calls may be under way, in any order, and a lost answer or a
// repeated call does no harm.
type Pulse struct {
	Row string // name of the row
	Was Beat   // what the store has acknowledged
	Now Beat   // at or above Was

	// Watch names another row of TableBeats, which Beat looks at in passing where the
	// store can: see Contact.Watches. Empty: none. Other calls do not look.
	Watch string
}

// Check judges the pulse.
func (p Pulse) Check() error {
	if err := checkName("row", p.Row, MaxNameBytes); err != nil {
		return err
	}
	was, now := p.Was.Encode(), p.Now.Encode()
	if p.Was.Count < 1 || p.Was.Grants < 0 || p.Was.Seen < 0 || p.Now.Count < 1 || p.Now.Grants < 0 || p.Now.Seen < 0 || bytes.Compare(was, now) > 0 {
		return &hapax.ValueError{Field: "beat", Value: fmt.Sprintf("%s after %s", now, was), Allowed: "counts of 1 or more, the second at or above the first", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// CheckSwap judges the arguments of SwapRowWith: those of SwapRow, but neither
// the pulse's own row nor the fence.
func (p Pulse) CheckSwap(table, name string, old, next []byte) error {
	if table == TableBeats && name == p.Row || table == TableFence && name == RowFence {
		return &hapax.ValueError{Field: "row", Value: table + "/" + name, Allowed: "another row than the pulse's own and the fence", Err: hapax.ErrInvalidArgument}
	}
	return CheckSwap(table, name, old, next)
}

// Judge returns the contact of a call that found these rows; nil stands for no row.
func (p Pulse) Judge(row, fence, joins []byte) (Contact, error) {
	n, err := DecodeCounter(TableGuard, RowJoins, joins)
	if err != nil {
		return Contact{}, err
	}
	if c := (Contact{Met: fence == nil && bytes.Compare(row, p.Was.Encode()) >= 0, Joins: n}); c.Met {
		return c, nil
	}
	return Contact{Joins: n, Row: bytes.Clone(row), Fence: bytes.Clone(fence)}, nil
}

// Tell adds what a beat has read in the same step: RowChanges and, if the pulse watches one, the
// row that it watches.
func (c Contact) Tell(p Pulse, changes, watched []byte) (Contact, error) {
	var err error
	c.Changes, err = DecodeCounter(TableGuard, RowChanges, changes)
	if p.Watch != "" {
		c.Watches, c.Watched = true, bytes.Clone(watched)
	}
	return c, err
}

// A Contact is what a guarded call found in the store.
type Contact struct {
	// Met reports whether the beat was met: the row was at least Was, and there
	// was no fence. Where it is false nothing was changed, except in a store that is
	// Split. Where it is true and the call returned no error, the row is at least
	// Now; an error that comes with a contact leaves open whether it is.
	Met bool
	// Joins is RowJoins, as it was no earlier than the call began.
	Joins int64
	// Changes is RowChanges, likewise. Only Beat tells it.
	Changes int64
	// Watches reports whether Beat has looked at the row that Pulse.Watch names, and
	// Watched is that row; nil: there was none.
	Watches bool
	Watched []byte
	// Row and Fence are the two rows where Met is false; nil: there was none.
	Row, Fence []byte
	// Primary identifies the server that answered, where the engine can tell;
	// another one than before may lack what was acknowledged.
	Primary string
}

// MaxNamed is how many tags Guarding.TagsNamed is asked for at most.
const MaxNamed = 100

// Guarding is implemented by stores that several nodes may guard (store/witness):
// the check of the fence, the beat and the change happen in one atomic, durable
// step, but in a store that Split reports true of. Rules for errors and unknown
// outcomes are those of hapax.SegmentStore.
type Guarding interface {
	Rows

	// Beat makes the beat alone.
	Beat(ctx context.Context, p Pulse) (Contact, error)

	// AllocateAllWith is Allocate under a pulse, for many, in their order; several may be of one
	// tag. They are one step, but for those that the tag itself does not allow.
	AllocateAllWith(ctx context.Context, p Pulse, all []AllocateOf) ([]Allocated, Contact, error)

	// HandBackAllWith is HandBack under a pulse, for many tags, each named once. given reports
	// which of them were handed back; the others are not held any more.
	HandBackAllWith(ctx context.Context, p Pulse, all []HandBackOf) (given []bool, c Contact, err error)

	// SwapRowWith is SwapRow under a pulse. Workers are rows.
	SwapRowWith(ctx context.Context, p Pulse, table, name string, old, next []byte) (bool, Contact, error)

	// RowsNamed returns the values of rows, at most MaxNamed, in the order of their keys, nil for
	// no row: in one round trip where the engine can. They are the primary's, though not all of
	// one moment.
	RowsNamed(ctx context.Context, keys ...Key) ([][]byte, error)

	// SwapRows is SwapRow for some rows, each named once: all are swapped in one step, or none
	// is. One whose Old and Next are the same is a condition. In a store that Split reports true
	// of they are swapped in their order, and those before the first that is another one stay as
	// they were made.
	SwapRows(ctx context.Context, all ...Swap) (bool, error)

	// TagsNamed returns the tags of these names, at most MaxNamed, that it finds and can read, in
	// any order: in one round trip where the engine can. It may be answered by a server that
	// lags behind, so that whoever finds something wrong asks Tag.
	TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error)

	// Split reports that beat, fence and change are not one step: the beat is
	// made before and after the change instead.
	Split() bool
}

// Paced is implemented by stores whose heartbeat may take several round trips, such as while grants of
// the same process go on beside it.
type Paced interface {
	// BeatTrips returns how many these are at most, but for races that are lost.
	BeatTrips() int
}

// Dialling is implemented by stores on which calls that are made at once may need a connection each. Where the
// store is far away, to dial another one takes longer than to wait for the first answer.
type Dialling interface {
	DialsForCalls() bool
}

// IsOfTag reports whether an error of a guarded call is about the tag or the
// arguments, not the store: such an error comes with a contact.
func IsOfTag(err error) bool {
	for _, of := range []error{hapax.ErrTagNotFound, hapax.ErrTagDeleted, hapax.ErrKindMismatch, hapax.ErrLineExhausted, hapax.ErrLeaseLost, hapax.ErrInvalidArgument} {
		if errors.Is(err, of) {
			return true
		}
	}
	_, unreadable := errors.AsType[*UnreadableError](err)
	return unreadable
}

// Healing is implemented by stores that can be healed (store/witness).
type Healing interface {
	// HealTag sees to it in one atomic step that the tag's mark is at least
	// def.Mark and its token above def.Token. A tag that the store does not know
	// is created from def, as a tombstone if def is one; one that it knows keeps
	// its definition and stays alive or deleted. It returns the tag as stored.
	// ErrKindMismatch.
	HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error)

	// HealWorker is HealTag for a worker of a pool, whose lease ends. A pool
	// that the store does not know is created with the layout.
	HealWorker(ctx context.Context, layout string, w Worker) (Worker, error)
}

// A WouldChangeError refuses to open a store with the option Look where that would change
// something.
type WouldChangeError struct {
	What string // what opening would do
}

func (w *WouldChangeError) Error() string { return "opening the store would change it: " + w.What }

// NewStore is the change that opening makes where there is no store.
const NewStore = "there is no store yet; one is made"

// A Swap is one row of SwapRows: see SwapRow of [Rows].
type Swap struct {
	Key
	Old, Next []byte
}
