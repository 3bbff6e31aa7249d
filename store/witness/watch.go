package witness

import (
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
)

// A Watch is one call for a grant of a line, from before the store is asked, where
// the store is one that Guard cannot wrap: the table of a foreign system has no
// identity, no heartbeats and no room for a fence. There the witness refuses alone,
// and for this node alone.
type Watch struct {
	w *Witness
	c *call
}

// Watch begins a call. ErrFenced while the witness refuses. The caller ends it.
func (w *Witness) Watch(line string) (*Watch, error) {
	if err := w.Refused(); err != nil {
		return nil, err
	}
	return &Watch{w, w.begin(line)}, nil
}

// Since returns the mark that the line had when the call began: a grant that begins
// below it is not new.
func (o *Watch) Since() int64 { return o.w.sinceOf(o.c) }

// Accept records a grant, and returns when that is durable: from then on it may be
// used. One that is not new is refused, and everything after it (see Refuse).
func (o *Watch) Accept(g hapax.Grant) error {
	if err := o.w.Refused(); err != nil {
		return err
	}
	err := o.w.accept(o.c, g, 0)
	if errors.Is(err, hapax.ErrStoreRolledBack) {
		return o.w.Refuse(err)
	}
	return err
}

// End ends the call.
func (o *Watch) End() { o.w.end(o.c) }

// Refuse has the witness refuse everything from now on, also after a restart, until
// Readmit. It returns the error for it, which matches the cause and ErrFenced.
func (w *Witness) Refuse(cause error) error {
	err := w.setRefusal(hapax.Message(cause)) // in force also where it is not durable; the next change writes it
	return errors.Join(fmt.Errorf("%w (%w)", cause, hapax.ErrFenced), err)
}

// Refused returns why the witness refuses; nil if it does not.
func (w *Witness) Refused() error {
	if why := w.Refusal(); why != "" {
		return fmt.Errorf("%w: %s", hapax.ErrFenced, why)
	}
	return nil
}

// Readmit ends a refusal, once an operator has decided.
func (w *Witness) Readmit() error {
	return w.commit(func(b *record) error {
		served := ""
		b.Refusal = &served
		return nil
	})
}
