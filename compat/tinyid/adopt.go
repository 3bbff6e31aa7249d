package tinyid

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/internal/marks"
	"github.com/hapax-id/hapax/store/witness"
)

// Adopt is the way out where Options.Witness refuses rows: it raises max_id
// of every row to what the witness knows, and to margin above what it was at least,
// for what TinyID's own servers have issued; and then the rows may be used
// again. Each of them must answer. With dryRun it tells only what it would do. Where
// nothing is refused and no row is behind, it does nothing.
func (s *Store) Adopt(ctx context.Context, margin int64, dryRun bool) ([]witness.Raised, error) {
	known := sorted(s.marks.Lines())
	wrong := len(s.marks.RefusedLines()) > 0
	rows, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	var all []witness.Raised
	var raise []placed
	for _, bizType := range slices.Sorted(maps.Keys(rows)) {
		for _, r := range rows[bizType] {
			if err := r.check(); err != nil {
				s.warn("bad_row", err.Error())
				continue
			}
			last := known.of(&r.row) - 1
			wrong = wrong || r.maxID < last
			to, err := marks.Raise(bizType, r.maxID, last, margin)
			if err != nil {
				return nil, err
			}
			if to > r.maxID {
				all, raise = append(all, witness.Raised{Tag: bizType, From: r.maxID, To: to}), append(raise, r)
			}
		}
	}
	if !wrong {
		return nil, nil
	}
	if dryRun {
		return all, nil
	}
	for i, r := range raise {
		if err := s.raise(ctx, r, all[i].To); err != nil {
			return nil, err
		}
	}
	return all, s.marks.Readmit()
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
	now, err := s.read(limited, db, r.bizType)
	if err != nil {
		return db.Fail(ctx, "tiny_id_info", err)
	}
	if now.maxID < to {
		return fmt.Errorf("%w: row %q of tiny_id_info has max_id %d after it was raised to %d", hapax.ErrStoreRolledBack, r.bizType, now.maxID, to)
	}
	return nil
}
