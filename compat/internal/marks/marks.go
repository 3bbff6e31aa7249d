// Package marks remembers how far the lines of a foreign table were granted to this
// process, so that a table that was set back is noticed: in a witness, which
// outlives the process and keeps refusing, or in memory alone.
package marks

import (
	"maps"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
)

// Marks are the marks of a table's lines. Its methods are safe for concurrent use.
type Marks struct {
	witness *witness.Witness // nil: memory alone
	warn    func(code, message string)

	mu    sync.Mutex // guards lines
	lines map[string]int64
}

// New returns marks that are kept in a witness; nil is none. A refusal that begins is
// told to warn, with the code "fenced".
func New(w *witness.Witness, warn func(code, message string)) *Marks {
	return &Marks{witness: w, warn: warn, lines: map[string]int64{}}
}

// Durable reports whether there is a witness.
func (m *Marks) Durable() bool { return m.witness != nil }

// Refused returns why nothing may be granted any more, or nil.
func (m *Marks) Refused() error {
	if m.witness == nil {
		return nil
	}
	return m.witness.Refused()
}

// Lines returns all lines with their marks.
func (m *Marks) Lines() map[string]int64 {
	if m.witness != nil {
		return m.witness.Lines()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.lines)
}

// Known reports whether a line was ever granted.
func (m *Marks) Known(line string) bool {
	if m.witness != nil {
		_, ok := m.witness.Mark(line)
		return ok
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.lines[line]
	return ok
}

// Behind tells of a table that is behind a mark. Where there is a witness it
// refuses everything from now on.
func (m *Marks) Behind(cause error) error {
	if m.witness == nil {
		return cause
	}
	began := m.witness.Refusal() == ""
	err := m.witness.Refuse(cause)
	if began {
		m.warn(string(hapax.ErrFenced.Code()), err.Error())
	}
	return err
}

// A Call is one call on the table, from before it is asked.
type Call struct {
	// Since is the line's mark when the call began: the table must have that or
	// more, and a grant that begins below is not new.
	Since int64

	marks *Marks
	line  string
	watch *witness.Watch
}

// Begin begins a call. ErrFenced where everything is refused. The caller ends it.
func (m *Marks) Begin(line string) (*Call, error) {
	c := &Call{marks: m, line: line}
	if m.witness == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		c.Since = m.lines[line]
		return c, nil
	}
	watch, err := m.witness.Watch(line)
	if err != nil {
		return nil, err
	}
	c.watch, c.Since = watch, watch.Since()
	return c, nil
}

// Accept records a grant before it is used.
func (c *Call) Accept(g hapax.Grant) error {
	if c.watch != nil {
		return c.watch.Accept(g)
	}
	c.marks.mu.Lock()
	defer c.marks.mu.Unlock()
	c.marks.lines[c.line] = max(c.marks.lines[c.line], g.Hi)
	return nil
}

// End ends the call.
func (c *Call) End() {
	if c.watch != nil {
		c.watch.End()
	}
}
