package witness

import (
	"fmt"
	"maps"
	"sync"

	"github.com/hapax-id/hapax"
)

// Marks remember how far the lines of a foreign table were granted to this process, so
// that a line that was set back is noticed and refused, and that line alone: in a
// witness, which outlives the process and keeps refusing, or in memory. Such a table has
// no tokens and takes nothing back, so that a line's mark only grows. Its methods are
// safe for concurrent use.
type Marks struct {
	witness *Witness // nil: memory alone
	warn    func(code, message string)

	mu    sync.Mutex // guards lines
	lines map[string]int64
}

// NewMarks returns marks that are kept in a witness; nil is none. A refusal that begins
// is told to warn, with the code "fenced".
func NewMarks(w *Witness, warn func(code, message string)) *Marks {
	return &Marks{witness: w, warn: warn, lines: map[string]int64{}}
}

// Durable reports whether there is a witness.
func (m *Marks) Durable() bool { return m.witness != nil }

// Refused returns why a line is refused, or nil.
func (m *Marks) Refused(line string) error {
	if m.witness == nil {
		return nil
	}
	m.witness.mu.Lock()
	defer m.witness.mu.Unlock()
	if why := m.witness.state.Refused[line]; why != "" {
		return fmt.Errorf("%w: %s", hapax.ErrFenced, why)
	}
	return nil
}

// RefusedLines returns the lines that are refused, and why.
func (m *Marks) RefusedLines() map[string]string {
	if m.witness == nil {
		return nil
	}
	return m.witness.rows().Refused
}

// Lines returns all lines with their marks.
func (m *Marks) Lines() map[string]int64 {
	if m.witness == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		return maps.Clone(m.lines)
	}
	lines := map[string]int64{}
	for line, p := range m.witness.Lines() {
		lines[line] = p.Mark
	}
	return lines
}

// Mark returns a line's mark, and whether it was ever granted.
func (m *Marks) Mark(line string) (int64, bool) {
	if m.witness != nil {
		p, ok := m.witness.Pair(line)
		return p.Mark, ok
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mark, ok := m.lines[line]
	return mark, ok
}

// Behind returns the refusal of a line that is behind its mark. With a witness the line
// stays refused from now on.
func (m *Marks) Behind(line string, cause error) error {
	if m.witness == nil {
		return cause
	}
	began := m.Refused(line) == nil
	err := m.witness.commit(func(b *record) error { // in force also where it is not durable
		if !began {
			return errNoChange
		}
		b.Refused[line] = hapax.Message(cause)
		return nil
	})
	refusal := fmt.Errorf("%w (%w)", cause, hapax.ErrFenced)
	if began {
		m.warn(string(hapax.ErrFenced.Code()), hapax.Message(refusal))
	}
	if err != nil {
		return fmt.Errorf("%w; %w", refusal, err)
	}
	return refusal
}

// Readmit ends the refusals of lines for which ours is true, once an operator has decided.
func (m *Marks) Readmit(ours func(line string) bool) error {
	if m.witness == nil {
		return nil
	}
	return m.witness.commit(func(b *record) error {
		for line := range m.witness.state.Refused {
			if ours(line) {
				b.Refused[line] = ""
			}
		}
		if len(b.Refused) == 0 {
			return errNoChange
		}
		return nil
	})
}

// A Call is one call for a grant of a line, from before the table is asked.
type Call struct {
	// Since is the line's mark when the call began: the table must have that or
	// more, and a grant that begins below is not new.
	Since int64

	marks *Marks
	line  string
}

// Begin begins a call. ErrFenced where the line is refused.
func (m *Marks) Begin(line string) (*Call, error) {
	if err := m.Refused(line); err != nil {
		return nil, err
	}
	since, _ := m.Mark(line)
	return &Call{since, m, line}, nil
}

// Accept records a grant, and returns when that is durable: from then on it may be
// used. The line is refused if the grant is not new.
func (c *Call) Accept(g hapax.Grant) error {
	if err := sound(c.line, g); err != nil {
		return err
	}
	if g.Lo < c.Since {
		return c.marks.Behind(c.line, fmt.Errorf("%w: %s: the table granted [%d, %d), and what is below %d was granted before", hapax.ErrStoreRolledBack, c.line, g.Lo, g.Hi, c.Since))
	}
	if w := c.marks.witness; w != nil {
		if err := c.marks.Refused(c.line); err != nil {
			return err
		}
		return w.commit(func(b *record) error { b.Lines[c.line] = Pair{Mark: g.Hi}; return nil })
	}
	c.marks.mu.Lock()
	defer c.marks.mu.Unlock()
	c.marks.lines[c.line] = max(c.marks.lines[c.line], g.Hi)
	return nil
}
