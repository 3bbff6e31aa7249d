package tinyid

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
)

// A Move is the work to be done for one biz_type on its way to a native tag.
type Move = moves.Move

// MoveOptions tune PlanMoves and ApplyMoves.
type MoveOptions struct {
	// Margin is how far above a row's max_id the native mark is set; default ten
	// of the row's steps. TinyID and its clients issue up to max_id only, so that
	// any margin will do once all servers have ended.
	Margin int64

	// Watch is how long the tables are watched for servers that are alive; default
	// 10 s.
	Watch time.Duration

	// IgnoreLiving plans although servers are alive.
	IgnoreLiving bool

	// Note, if set, is told what could not be looked at.
	Note func(text string)

	// Progress, if set, is called as the rows are compared with the native tags, or
	// moved.
	Progress func(done, total int)
}

// PlanMoves tells for each biz_type which mark its native tag has and will have,
// and writes nothing. Every database must answer. It fails with ErrStoreUnsafe
// while it sees servers that are alive: rows that move, and sessions of other
// clients in the databases.
//
// A biz_type of one database keeps delta and remainder. One of several databases
// becomes one tag that issues every number, above the marks of all. Tables without rows
// are refused.
func PlanMoves(ctx context.Context, s *Store, target moves.Target, o MoveOptions) ([]Move, error) {
	if o.Watch <= 0 {
		o.Watch = 10 * time.Second
	}
	rows, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	if !o.IgnoreLiving {
		select {
		case <-time.After(o.Watch):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		before := rows
		if rows, err = s.all(ctx); err != nil {
			return nil, err
		}
		signs, err := s.signs(ctx, before, rows, o.Note)
		if err == nil {
			err = moves.Alive(signs)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%w: tiny_id_info has no rows: nothing is to be moved; are these the databases that TinyID uses?", hapax.ErrInvalidArgument)
	}
	store, err := target.StoreID(ctx)
	if err != nil {
		return nil, err
	}
	code := codeOf(store)
	var defs []hapax.Tag
	var others []Move
	for _, bizType := range slices.Sorted(maps.Keys(rows)) {
		if ofAnother(rows[bizType], code) {
			others = append(others, Move{Tag: hapax.Tag{Name: bizType}, Reason: errOfAnother(bizType)})
			continue
		}
		if closed(rows[bizType]) && !isMoving(rows[bizType], code) {
			m, err := moves.PlanClosed(ctx, target, bizType, closes(rows[bizType]))
			if err != nil {
				return nil, err
			}
			others = append(others, m)
			continue
		}
		def, err := merge(rows[bizType], len(s.dbs), o.Margin)
		if err != nil {
			others = append(others, Move{Tag: hapax.Tag{Name: bizType}, Reason: err})
			continue
		}
		defs = append(defs, def)
	}
	all, err := moves.Plan(ctx, target, defs, o.Progress)
	for i := range all {
		all[i].Closes = closes(rows[all[i].Tag.Name])
	}
	return append(all, others...), err
}

// ApplyMoves closes the rows, so that no TinyID server, nor a hapax that runs beside them,
// is granted anything from them any more, and then creates the native tags, or raises their
// marks, above what the rows have come to. It can be repeated; Reopen is the way back.
func ApplyMoves(ctx context.Context, s *Store, target moves.Target, all []Move, o MoveOptions) error {
	return moves.Apply(ctx, all, func(ctx context.Context, m *Move) error {
		if m.Closed {
			return nil
		}
		store, err := target.StoreID(ctx)
		if err != nil {
			return err
		}
		if err := s.closeRows(ctx, m.Tag.Name, codeOf(store)); err != nil {
			return err
		}
		rows, err := s.all(ctx) // nothing moves them now
		if err != nil {
			return err
		}
		def, err := merge(rows[m.Tag.Name], len(s.dbs), o.Margin)
		if err == nil {
			def, err = def.WithDefaults()
		}
		if err != nil {
			return fmt.Errorf("%w: its rows are closed already; correct them and repeat, or open them with --undo", err)
		}
		def.Mark = max(def.Mark, m.Tag.Mark)
		def.Start = def.Mark
		m.Tag = def
		if err := moves.Create(ctx, target, m); err != nil {
			return err
		}
		m.Closed, m.Closes = true, closes(rows[m.Tag.Name])
		return s.finish(ctx, rows[m.Tag.Name])
	}, o.Progress)
}

// placed is a row, and the database that it is in.
type placed struct {
	row
	db    int
	fence fence  // by which it is closed
	by    string // the code of the store that it is being moved to; empty once that is over
}

// top returns the highest max_id of rows.
func top(rows []placed) int64 {
	most := int64(0)
	for _, r := range rows {
		most = max(most, r.maxID)
	}
	return most
}

// all reads all rows of all databases, by the biz_type that they have or had before they
// were closed.
func (s *Store) all(ctx context.Context) (map[string][]placed, error) {
	found := map[string][]placed{}
	for i, db := range s.dbs {
		limited, cancel := db.Limit(ctx)
		rows, err := db.rows(limited)
		triggered := map[int64]string{}
		if err == nil {
			triggered, err = db.triggered(limited)
		}
		cancel()
		if err != nil {
			return nil, db.Fail(ctx, "tiny_id_info", err)
		}
		for _, r := range rows {
			p := placed{row: r, db: i}
			if name, by, ok := cutName(r.bizType); ok {
				p.bizType, p.by, p.fence = name, by, renamed
			} else if by, ok := triggered[r.id]; ok {
				p.by, p.fence = by, trigger
			}
			found[p.bizType] = append(found[p.bizType], p)
		}
	}
	return found, nil
}

// rows reads all rows of a database.
func (db *database) rows(ctx context.Context) ([]row, error) {
	rows, err := db.SQL.QueryContext(ctx, "SELECT "+columns+" FROM tiny_id_info")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []row
	for rows.Next() {
		var r row
		if err := r.scan(rows.Scan); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// signs tells what has moved between two looks at the rows, and who else is there.
func (s *Store) signs(ctx context.Context, before, after map[string][]placed, note func(string)) ([]string, error) {
	var signs []string
	for bizType, rows := range after {
		for _, now := range rows {
			for _, then := range before[bizType] {
				if then.db == now.db && then.versionNo != now.versionNo {
					signs = append(signs, fmt.Sprintf("row %s went from %d to %d", bizType, then.maxID, now.maxID))
				}
			}
		}
	}
	for _, db := range s.dbs {
		others, unseen, err := db.Others(ctx)
		if err != nil {
			return nil, err
		}
		if unseen != "" && note != nil {
			note(unseen)
		}
		if others > 0 {
			signs = append(signs, fmt.Sprintf("%d other sessions in the database at %s", others, db.Address))
		}
	}
	return signs, nil
}

// merge returns the native definition for the rows of one biz_type.
func merge(rows []placed, databases int, margin int64) (hapax.Tag, error) {
	def := hapax.Tag{Name: rows[0].bizType, Delta: rows[0].delta, Remainder: rows[0].remainder}
	width := int64(0)
	top := int64(0)
	for i, r := range rows {
		if err := r.check(); err != nil {
			return def, err
		}
		for _, other := range rows[:i] {
			if overlap(r.class(), other.class()) {
				return def, fmt.Errorf("%w: %w: row %q has delta %d and remainder %d, and delta %d and remainder %d",
					hapax.ErrStoreUnsafe, errOverlap, r.bizType, r.delta, r.remainder, other.delta, other.remainder)
			}
		}
		top, width = max(top, r.maxID+1), max(width, r.width(0))
	}
	switch {
	case len(rows) == 1 && databases == 1:
	case len(rows) == databases && int64(databases) == rows[0].delta:
		def.Delta, def.Remainder = 1, 0
	default:
		return def, fmt.Errorf("%w: row %q is in %d of %d databases with delta %d: give exactly the databases that share the biz_type, one for each remainder",
			hapax.ErrInvalidArgument, rows[0].bizType, len(rows), databases, rows[0].delta)
	}
	mark, err := moves.Above(top, width, margin)
	if err != nil {
		return def, errors.Join(err, hapax.ErrInvalidArgument)
	}
	def.Start, def.Mark, def.Step = mark, mark, max(1, width/def.Delta)
	return def, nil
}
