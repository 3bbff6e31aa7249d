// Package sequences reads where numbers come from in systems without an issuer of their
// own: sequences, serial and identity columns, AUTO_INCREMENT, counters in Redis and
// MongoDB, and the tables of JPA's generators. It tells for each above which number nobody
// has issued anything, closes it on the way to a hapax tag, and opens it again on the way
// back. It also reads the columns that the numbers are in: their highest number, by an
// index, and all of them.
//
// A source that is closed remembers beside itself what it was, so that everything here can
// be repeated after it was cut off:
//
//	open --Shut--> closed   nothing is issued from it at or above the tag's first number
//	  |              |
//	  '--Shut--> halved     it issues every other number, and hapax the rest, until Shut
//	                 |
//	  <----Reopen----'      above all that was issued from the tag
package sequences

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// A Column is a column that numbers are written to.
type Column struct {
	Table  string // with its schema, unless that is the usual one
	Name   string
	Type   string // as the database calls it
	Last   int64  // the largest number that fits; at most math.MaxInt64
	Max    int64  // the highest number in it; 0 for none
	Index  bool   // the highest number is found by an index
	Always bool   // the database refuses numbers from elsewhere
	Create string // the statement that makes the index
	Widen  string // the statement that makes it one of 64 bits

	// Qualified is the table as a query of another session finds it, whatever the path of
	// schemas is there.
	Qualified string

	schema, table string
}

func (c Column) String() string { return c.Table + "." + c.Name }

// A Source is where numbers come from. What two sources feed is one Source with two Names.
type Source struct {
	Tag   string // the name of its tag
	Kind  string // "sequence", "identity", "serial", "auto_increment", "counter", "generator table"
	Names []string
	Feeds []Column

	Position int64 // nothing above it was issued, by the source's own account
	Highest  int64 // nothing above it was issued or is in a column
	Because  string
	Step     int64   // between two numbers
	Cache    int64   // numbers that a session may hold
	Rate     float64 // numbers a second; 0 where none was seen

	Wrong  []string // why it cannot be moved
	Notes  []string
	Closed *Mark // nil: it is open

	// Unfinished is set where a command was killed that shut the source: it has its mark, and
	// Shut, as the mark says it, goes on.
	Unfinished bool

	parts []part
}

// Last returns the largest number that fits everywhere.
func (s *Source) Last() int64 {
	last := int64(math.MaxInt64)
	for _, c := range s.Feeds {
		last = min(last, c.Last)
	}
	return last
}

// Ends tells when the columns are full at the rate that was seen; the zero time where they
// are of 64 bits, or none was seen.
func (s *Source) Ends(now time.Time) time.Time {
	last := s.Last()
	if last == math.MaxInt64 || s.Rate <= 0 {
		return time.Time{}
	}
	left := float64(last-s.Highest) / s.Rate
	if left > 1e9 { // a generation
		return time.Time{}
	}
	return now.Add(time.Duration(left * float64(time.Second)))
}

// wrong notes what stands in the way.
func (s *Source) wrong(format string, args ...any) {
	s.Wrong = append(s.Wrong, fmt.Sprintf(format, args...))
}

func (s *Source) note(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}

// A part is one sequence, table, key or document of a Source.
type part struct {
	schema, name string
	position     int64 // nothing above it was issued
	min, max     int64
	step, cache  int64
	cycle        bool
	servers      bool // its step is the server's auto_increment_increment
	closed       *Mark
	comment      string
	columns      []Column
	field        string // of a document, or of a row of a generator table
	row          string // of a generator table
	id           any    // of a document
}

// A Mark is what a closed source remembers, as JSON.
type Mark struct {
	Tag     string   `json:"tag"`
	How     Switch   `json:"how"`
	Store   string   `json:"store"`           // the ID of the hapax store that has the tag
	First   int64    `json:"first"`           // the tag's first number
	Token   int64    `json:"token,omitempty"` // of the tag that was held, which is opened while it has it; 0 where a script has shut the source
	At      int64    `json:"at"`              // its position then
	Max     int64    `json:"max"`             // what it had before
	Step    int64    `json:"step,omitempty"`
	Servers bool     `json:"servers,omitempty"` // the step was the server's auto_increment_increment
	Always  []string `json:"always,omitempty"`  // columns that were GENERATED ALWAYS
	Comment string   `json:"comment,omitempty"`
}

// A Switch is a way from a source to a tag.
type Switch string

// The ways.
const (
	Stop   Switch = "stop"   // all writers stop for seconds; the source is shut where it is
	Gap    Switch = "gap"    // the source goes on below the tag's first number, and ends there
	Parity Switch = "parity" // the source issues every other number, hapax the rest
)

// A PassedError tells that a source is at or above the first number of its tag.
type PassedError struct{ At int64 }

func (e *PassedError) Error() string {
	return fmt.Sprintf("the source is at %d, at or above the tag's first number", e.At)
}

// A TakenError tells that a source is not any more as it was read: another command has shut
// or opened it.
type TakenError struct{ By *Mark } // nil: it is open, or was changed by hand

func (e *TakenError) Error() string {
	if e.By == nil {
		return "the source was changed since it was read: repeat this"
	}
	return fmt.Sprintf("another command has shut the source, for the tag %q of store %s: that one issues its numbers", e.By.Tag, e.By.Store)
}

func (e *TakenError) Unwrap() error { return hapax.ErrInvalidArgument }

// taken returns a *TakenError if a source's mark is not what was read; nil is none.
func taken(now, read *Mark) error {
	if now.text() == read.text() {
		return nil
	}
	return &TakenError{By: now}
}

// A Database is what sources are in.
type Database interface {
	// Sources returns the sources whose tag or name match the pattern, and what was found
	// and is none of them, in words.
	Sources(ctx context.Context, like string) (all []*Source, others []string, err error)

	// Position asks a source anew: nothing above it was issued.
	Position(ctx context.Context, s *Source) (int64, error)

	// Steps returns the statements that shut a source in front of a tag's first number, as
	// they stand in a script. Shut does the same; it fails with a *PassedError, and changes
	// nothing, if the source is there already, and with a *TakenError if another command has
	// shut it since it was read. Of two commands one wins, whatever their stores are.
	Steps(s *Source, how Switch, first int64) ([]string, error)
	Shut(ctx context.Context, s *Source, how Switch, first int64) error

	// BackSteps returns what has a source that was shut go on at a number, and Reopen runs it
	// if the source is as it was read; else it fails with a *TakenError.
	BackSteps(s *Source, next int64) ([]string, error)
	Reopen(ctx context.Context, s *Source, next int64) error

	// Script returns the lines of a shell script that run steps on the database whose URL
	// is in a variable.
	Script(variable string, steps []string) string

	Close() error
}

// matches reports whether a name matches a pattern with * and ?, which an empty one does.
func matches(like, name string) bool {
	if like == "" {
		return true
	}
	// The two positions are where the last * stood: it takes one more letter each time.
	i, j, star, from := 0, 0, -1, 0
	for i < len(name) {
		switch {
		case j < len(like) && like[j] == '*':
			star, from = j, i
			j++
		case j < len(like) && (like[j] == '?' || like[j] == name[i]):
			i, j = i+1, j+1
		case star >= 0:
			from++
			i, j = from, star+1
		default:
			return false
		}
	}
	return strings.Trim(like[j:], "*") == ""
}

// matchesAny reports whether a source is meant.
func (s *Source) matchesAny(like string) bool {
	if matches(like, s.Tag) {
		return true
	}
	for _, n := range s.Names {
		if matches(like, n) {
			return true
		}
	}
	for _, c := range s.Feeds {
		if matches(like, c.Table) || matches(like, c.String()) {
			return true
		}
	}
	return false
}

// conclude finds the highest number of a source, and what is to be said of it.
func (s *Source) conclude() {
	s.Step, s.Cache = 1, 1
	for k, p := range s.parts {
		s.Step, s.Cache = max(s.Step, p.step), max(s.Cache, p.cache)
		if k == 0 || p.position > s.Position {
			s.Position = p.position
		}
		if p.closed != nil && (s.Closed == nil || p.closed.At > s.Closed.At) { // as s.Position is the highest
			s.Closed = p.closed
		}
	}
	s.Highest, s.Because = s.Position, "the source's own position"
	for _, c := range s.Feeds {
		if c.Max > s.Highest {
			s.Highest, s.Because = c.Max, "the highest number in "+c.String()
			if s.Closed == nil {
				s.note("%s holds %d, above the source's %d: rows were written past it", c, c.Max, s.Position)
			}
		}
	}
	if s.Closed == nil {
		ahead := saturated(s.Cache, s.Step)
		if s.Highest > math.MaxInt64-ahead {
			s.wrong("it is at %d, and no numbers are left", s.Highest)
		} else if s.Cache > 1 || s.Step > 1 {
			s.Highest += ahead
			s.Because += fmt.Sprintf(", and %d more that sessions may hold", ahead)
		}
	}
	if len(s.Feeds) == 0 && s.Kind == "sequence" {
		s.note("no column is known that it feeds: if there is one, as with Hibernate's, give --feeds %s=TABLE.COLUMN", s.Names[0])
	}
	if len(s.Feeds) > 1 {
		s.note("it feeds %d columns: %s", len(s.Feeds), columns(s.Feeds))
	}
	if len(s.parts) > 1 {
		s.note("%s feed the same columns, so they become one tag", strings.Join(s.Names, " and "))
	}
	if last := s.Last(); last != math.MaxInt64 && s.Highest >= last {
		s.wrong("%s is full: it takes numbers up to %d", columns(s.Feeds), last)
	}
}

// unfedText tells of a key whose numbers come from elsewhere; standard is its default, if any.
func unfedText(table, column, standard string) string {
	if standard != "" {
		return fmt.Sprintf("%s.%s: its default is %s, and no sequence that the database knows to feed it; see what makes its numbers before you create a tag for it", table, column, standard)
	}
	return fmt.Sprintf("%s.%s: no sequence feeds it, so its numbers come from elsewhere; see what makes them before you create a tag for it", table, column)
}

// feedsAny reports whether one of the sources feeds a column.
func feedsAny(all []*Source, table, column string) bool {
	for _, s := range all {
		for _, c := range s.Feeds {
			if c.Table == table && c.Name == column {
				return true
			}
		}
	}
	return false
}

// aboveBlock returns the lowest value of a reopened sequence whose block is free from a
// number on: where a sequence counts in steps, Hibernate's pooled optimizer issues the
// numbers of the step below each value, too.
func aboveBlock(next, step int64) int64 {
	if next > math.MaxInt64-step {
		return math.MaxInt64
	}
	return next + step - 1
}

// endBelow returns the highest value that a sequence may give below a tag's first number. What
// a value stands for is the optimizer's choice, which no database knows: itself alone, the
// numbers of a step up to it (Hibernate's pooled), or from it on (pooled-lo).
func endBelow(first, step int64) int64 { return first - step }

func saturated(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

func columns(all []Column) string {
	var names []string
	for _, c := range all {
		names = append(names, c.String())
	}
	return strings.Join(names, ", ")
}

// dbError tells what a database said, without its URL. What it refuses of one source keeps
// nobody from the others.
func dbError(err error) error {
	if err == nil {
		return nil
	}
	switch code := pgCode(err); {
	case strings.HasPrefix(code, "22"), strings.HasPrefix(code, "23"), strings.HasPrefix(code, "42"), strings.HasPrefix(code, "2B"):
		return fmt.Errorf("%w: the database refuses it: %w", hapax.ErrNotSupported, err)
	}
	return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
}
