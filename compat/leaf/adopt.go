package leaf

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/marks"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// Adopt is the way out where TableOptions.Witness refuses rows: it raises max_id of
// the row with the key, or of every row if that is empty, to the mark that the witness knows, and
// to margin above its old value at least, for the numbers that Leaf's own nodes have issued; and then the
// rows may be used again, by this handle, too. With dryRun it tells only what it would do.
// Where nothing is refused and no row is behind, it does nothing.
func (t *Table) Adopt(ctx context.Context, key string, margin int64, dryRun bool) (driver.Foreign, error) {
	ours := func(line string) bool { return key == "" || line == witness.TagLine(key) }
	// From before the rows are read: a mark that is learnt meanwhile may be later than a row read already.
	known := t.marks.Lines()
	found := driver.Foreign{Why: marks.Why(t.marks, ours)}
	wrong, there := len(found.Why) > 0, key == ""
	var all []driver.Raised
	var bad error
	err := t.rows(ctx, "", func(r row) bool {
		if !ours(witness.TagLine(r.tag)) {
			return true
		}
		there = true
		if err := r.check(); err != nil {
			found.Skipped = append(found.Skipped, hapax.Message(err))
			return true
		}
		mark := known[witness.TagLine(r.tag)]
		wrong = wrong || r.maxID < mark
		var to int64
		if to, bad = marks.Raise(r.tag, r.maxID, mark, margin); to > r.maxID {
			all = append(all, driver.Raised{Tag: r.tag, From: r.maxID, To: to})
		}
		return bad == nil
	})
	if err = errors.Join(err, bad); err == nil && !there {
		err = fmt.Errorf("%w: leaf_alloc has no row %q", hapax.ErrTagNotFound, key)
	}
	if err != nil || !wrong {
		return driver.Foreign{}, err
	}
	if found.Raised = all; dryRun {
		return found, nil
	}
	for _, r := range all {
		if err := t.raise(ctx, r); err != nil {
			return found, err
		}
	}
	// Last: rows that could not be raised stay refused.
	return found, t.marks.Readmit(ours)
}

// raise raises one row, unless it is higher already.
func (t *Table) raise(ctx context.Context, r driver.Raised) error {
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	_, err := t.db.SQL.ExecContext(limited, "UPDATE leaf_alloc SET max_id = GREATEST(max_id, ?)"+exactly, r.To, r.Tag, r.Tag)
	if err != nil {
		return t.db.Fail(ctx, "leaf_alloc", err)
	}
	// Read back: one that was higher already and one that is gone both count as not changed.
	var have int64
	if err := t.db.SQL.QueryRowContext(limited, "SELECT max_id FROM leaf_alloc"+exactly, r.Tag, r.Tag).Scan(&have); err != nil {
		return t.db.Fail(ctx, "leaf_alloc", err)
	}
	if have < r.To {
		return fmt.Errorf("%w: row %q of leaf_alloc has max_id %d after it was raised to %d", hapax.ErrStoreRolledBack, r.Tag, have, r.To)
	}
	return nil
}
