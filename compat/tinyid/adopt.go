package tinyid

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/marks"
	"github.com/hapax-id/hapax/store/driver"
)

// Adopt is the way out where Options.Witness refuses rows: it raises max_id
// of the rows of a biz_type, or of every row if that is empty, to the mark that the witness knows,
// and to margin above its old value at least, for the numbers that TinyID's own servers have issued; and
// then the rows may be used again, by this store, too. Each database must answer. With
// dryRun it tells only what it would do. Where nothing is refused and no row is behind, it
// does nothing.
func (s *Store) Adopt(ctx context.Context, key string, margin int64, dryRun bool) (driver.Foreign, error) {
	ours := func(line string) bool {
		_, bizType, ok := cutLine(line)
		return ok && (key == "" || bizType == key)
	}
	// From before the rows are read: a mark that is learnt meanwhile may be later than a row read already.
	known := sorted(s.marks.Lines())
	found := driver.Foreign{Why: marks.Why(s.marks, ours)}
	wrong := len(found.Why) > 0
	rows, err := s.all(ctx)
	if err != nil {
		return found, err
	}
	if key != "" {
		if rows[key] == nil {
			return found, fmt.Errorf("%w: tiny_id_info has no row %q", hapax.ErrTagNotFound, key)
		}
		rows = map[string][]placed{key: rows[key]}
	}
	var all []driver.Raised
	var raise []placed
	for _, bizType := range slices.Sorted(maps.Keys(rows)) {
		for _, r := range rows[bizType] {
			// One that was moved issues nothing: raising it would be of no use.
			if r.fence != open {
				continue
			}
			if err := r.check(); err != nil {
				found.Skipped = append(found.Skipped, hapax.Message(err))
				continue
			}
			last := known.of(&r.row) - 1
			wrong = wrong || r.maxID < last
			to, err := marks.Raise(bizType, r.maxID, last, margin)
			if err != nil {
				return found, err
			}
			if to > r.maxID {
				all, raise = append(all, driver.Raised{Tag: bizType, From: r.maxID, To: to}), append(raise, r)
			}
		}
	}
	if !wrong {
		return driver.Foreign{}, nil
	}
	if found.Raised = all; dryRun {
		return found, nil
	}
	for i, r := range raise {
		if err := s.raise(ctx, r, all[i].To); err != nil {
			return found, err
		}
	}
	return found, s.marks.Readmit(ours)
}

// raise raises one row, unless it is higher already.
func (s *Store) raise(ctx context.Context, r placed, to int64) error {
	db := s.dbs[r.db]
	limited, cancel := db.Limit(ctx)
	defer cancel()
	_, err := db.SQL.ExecContext(limited, "UPDATE tiny_id_info SET max_id = GREATEST(max_id, ?), update_time = NOW(), version = version + 1"+
		" WHERE id = ? AND biz_type = ?", to, r.id, r.bizType)
	if err != nil {
		return db.Fail(ctx, "tiny_id_info", err)
	}
	// Read back: one that was higher already and one that is gone both count as not changed.
	now, err := s.read(limited, db, r.bizType)
	if err != nil {
		return db.Fail(ctx, "tiny_id_info", err)
	}
	if now.maxID < to {
		return fmt.Errorf("%w: row %q of tiny_id_info has max_id %d after it was raised to %d", hapax.ErrStoreRolledBack, r.bizType, now.maxID, to)
	}
	return nil
}
