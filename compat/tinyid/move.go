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
	var defs []hapax.Tag
	var others []Move
	for _, bizType := range slices.Sorted(maps.Keys(rows)) {
		if err := notOurs(rows[bizType], store); err != nil {
			others = append(others, Move{Tag: hapax.Tag{Name: bizType}, Closed: closed(rows[bizType]), Closes: closes(rows[bizType]), Reason: err})
			continue
		}
		if closed(rows[bizType]) && isMoved(rows[bizType]) {
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
		return s.move(ctx, target, m, o.Margin)
	}, o.Progress)
}

// move moves one biz_type.
func (s *Store) move(ctx context.Context, target moves.Target, m *Move, margin int64) error {
	store, err := target.StoreID(ctx)
	if err != nil {
		return err
	}
	name, opens := m.Tag.Name, false
	err = s.alone(ctx, func(held turn) error {
		rows, err := s.all(ctx)
		if err == nil { // another command may have come after the plan
			err = notOurs(rows[name], store)
		}
		if err == nil && len(rows[name]) > 0 { // before anything is closed: what cannot be moved stays as it is
			_, err = s.definition(rows[name], margin)
		}
		if err == nil {
			err = s.closeRows(ctx, held, rows[name], codeOf(store))
		}
		if err == nil {
			rows, err = s.all(ctx) // nothing moves them now
		}
		these := rows[name]
		if err == nil {
			err = s.stillOurs(name, these, store)
		}
		if err != nil {
			return err
		}
		m.Closes = closes(these)
		if !slices.ContainsFunc(these, func(r placed) bool { return !r.moved }) { // another command was faster
			done, err := moves.PlanClosed(ctx, target, name, m.Closes)
			m.After = done.After
			return errors.Join(err, done.Reason)
		}
		def, err := s.definition(these, margin)
		if err != nil {
			return shutAlready(err)
		}
		def.Mark = max(def.Mark, m.Tag.Mark)
		def.Start = def.Mark
		m.Tag, opens = def, true
		if err := moves.Create(ctx, target, m); err != nil {
			return shutAlready(err)
		}
		return s.finish(ctx, held, these)
	})
	if err != nil && opens {
		err = errors.Join(err, s.retract(ctx, target, store, name))
	}
	m.Closed = err == nil
	return err
}

// definition is merge for one biz_type alone, whose error keeps nobody from the others.
func (s *Store) definition(rows []placed, margin int64) (hapax.Tag, error) {
	def, err := merge(rows, len(s.dbs), margin)
	if err == nil {
		def, err = def.WithDefaults()
	}
	if err != nil && !errors.Is(err, hapax.ErrInvalidArgument) {
		err = fmt.Errorf("%w: %w", hapax.ErrInvalidArgument, err)
	}
	return def, err
}

func shutAlready(err error) error {
	return fmt.Errorf("%w: its rows are closed already; correct that and repeat, or open them with --undo", err)
}

// stillOurs refuses rows that were closed for a store, and are not any more.
func (s *Store) stillOurs(bizType string, rows []placed, store string) error {
	if len(rows) == 0 || !closed(rows) {
		return errChanged(bizType)
	}
	return notOurs(rows, store)
}

// retract deletes the tag of a move that failed while it was opened, if its rows are not all closed for
// the store any more: the lock was lost with a connection, and the way back came before the tag.
func (s *Store) retract(ctx context.Context, target moves.Target, store, bizType string) (verdict error) {
	ctx = context.WithoutCancel(ctx)
	_ = s.alone(ctx, func(turn) error { // if it fails, the error of the move tells
		rows, err := s.all(ctx)
		if err != nil {
			return err
		}
		if verdict = s.stillOurs(bizType, rows[bizType], store); verdict != nil {
			_, _, err := moves.Withdraw(ctx, target, bizType)
			if !errors.Is(err, hapax.ErrTagNotFound) {
				verdict = errors.Join(verdict, err)
			}
		}
		return nil
	})
	return verdict
}

// placed is a row, and the database that it is in.
type placed struct {
	row // with the biz_type that it has or had before it was closed
	closing

	name string // its biz_type as it is
	db   int
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
		triggered := map[int64]closing{}
		if err == nil {
			triggered, err = db.triggered(limited)
		}
		cancel()
		if err != nil {
			return nil, db.Fail(ctx, "tiny_id_info", err)
		}
		for _, r := range rows {
			p := placed{row: r, name: r.bizType, db: i}
			if p.bizType, p.closing = cutName(r.bizType); p.fence == open {
				p.closing = triggered[r.id]
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
