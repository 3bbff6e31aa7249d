package tinyid

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/hapax-id/hapax"
)

// Tags returns up to limit biz_types whose names come after the given one, in the
// byte order of their names. A database that does not answer counts as it was last.
// Rows that cannot be used are left out, and told to Options.Warn.
func (s *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	found := map[string]hapax.Tag{}
	var failed error
	read := 0
	for _, db := range s.dbs {
		limited, cancel := db.Limit(ctx)
		rows, err := db.rows(limited)
		cancel()
		s.mu.Lock()
		if err == nil {
			db.last = rows
		} else {
			rows = db.last
		}
		s.mu.Unlock()
		if err != nil {
			failed = errors.Join(failed, db.Fail(ctx, "tiny_id_info", err))
		} else {
			read++
		}
		for i := range rows {
			r := &rows[i]
			if _, ok := found[r.bizType]; ok || r.bizType <= after || isRenamed(r.bizType) {
				continue
			}
			if err := r.check(); err != nil {
				s.warn("bad_row", err.Error())
				continue
			}
			found[r.bizType] = r.asTag()
		}
	}
	if read == 0 {
		return nil, failed
	}
	names := slices.Sorted(maps.Keys(found))
	var tags []hapax.Tag
	for _, name := range names[:min(len(names), max(limit, 0))] {
		tags = append(tags, found[name])
	}
	return tags, nil
}
