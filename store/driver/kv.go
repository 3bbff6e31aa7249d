package driver

import (
	"context"
	"errors"
)

// A KV is what a driver implements: rows in named tables, read and changed by three
// methods. A KV knows no rule of tags, workers or the guard; [Base], which makes a whole
// store of one, knows no engine.
//
// Names are those that [Rows] allows; the tags lie in the table without a name. Values are
// at least one byte and at most MaxValueBytes long, and are compared byte by byte. All that
// hapax writes is UTF-8 without NUL, which people can read.
// The methods are safe for concurrent use and return when the context ends. Where the store is
// another one than was opened nothing is done, and each fails with ErrStoreReplaced; a step of one
// change may instead refuse it, and tell nothing of its row.
type KV interface {
	// Get returns the rows of these keys, at most MaxNamed, in their order.
	Get(ctx context.Context, from Freshness, keys ...Key) ([]Cell, error)

	// Scan returns up to limit rows of a table whose names come after the given one, in
	// the byte order of their names. The rows are those of the primary, though not all of
	// one moment.
	Scan(ctx context.Context, table, after string, limit int) ([]Row, error)

	// Step does what a step says, atomically and durably. An error leaves open whether the step was done, unless it is ErrTooMany.
	Step(ctx context.Context, step Step) (Result, error)
}

// A LockingKV lets a handle that has lost races for rows have them to itself for a moment.
type LockingKV interface {
	KV

	// StepLocked locks rows, in the order in which steps lock theirs, and makes the step that f
	// returns of them as they are: nobody else changes them meanwhile. f does not wait; it may be
	// called again, and its error ends the call.
	StepLocked(ctx context.Context, keys []Key, f func(cells []Cell) (Step, error)) (Result, error)
}

// ErrTooMany is the error of a step that the engine has refused for its length.
var ErrTooMany = errors.New("too many changes for one step")

// Freshness tells which server may answer.
type Freshness int

// What a [KV.Get] may be answered from.
const (
	Current Freshness = iota // the primary: everything acknowledged before is seen
	Lagging                  // any server; what it says of a row is no base for a change
)

// A Key names a row.
type Key struct {
	Table string // empty for the tags
	Name  string
}

// A Cell is a row as the store has it, or once had it.
type Cell struct {
	Value   []byte // nil: there is no such row
	Known   bool   // false: nothing is known, and Value means nothing
	Version any    // what the engine recognises the row by, unless that is its value
}

// A Step is one atomic change of a store. A key stands at most once in Raise, Then and
// Each together. In a store that is Split (see [BaseOptions]) it is atomic row by row: a raise
// may have been made where another row's condition fails, and of Then those before the one
// that lost a race, which the outcomes tell.
type Step struct {
	If    []Cond   // if one fails, nothing is done
	Raise []Put    // written where the row is lower or missing, and left where it is not
	Then  []Change // conditions too: all are done, or nothing of the step is
	Each  []Change // each is done or not by itself; where all are refused, and Then is empty, the step may not be met
	Look  []Key    // rows that are read besides, in the step or after it
}

// A Cond is a condition of a step on one row: that it is still the one of Same, where that
// is known; that it is there, and at or above Least in byte order, where that is set; else
// that there is no such row.
type Cond struct {
	Key   Key
	Same  Cell
	Least []byte
}

// A Put is a row that a step raises to a value.
type Put struct {
	Key   Key
	Value []byte
}

// A Change is what a step makes of a row that is still as it was.
type Change struct {
	Key  Key
	Old  Cell   // known
	Next []byte // may be the old value; nil: the row is removed
}

// A Result is what became of a step.
type Result struct {
	Met bool // the conditions held, and the step was done; false: nothing was

	If   []Cell    // the rows of the conditions as they are, where they did not hold
	Then []Outcome // in the order of the step's
	Each []Outcome
	Look []Cell // unknown where the engine would have to ask for them by themselves

	Primary string // the server that has answered: see [Contact]
}

// An Outcome is what became of one change. A change may have been refused although the row
// is as it was, such as after the loss of a connection that the version was seen on.
type Outcome struct {
	Done bool
	Now  Cell // the row after the step; it may be unknown
}
