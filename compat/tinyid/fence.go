package tinyid

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
	"github.com/hapax-id/hapax/internal/moves"
)

// A fence is the way in which a moved row is closed for TinyID. No mark would do: TinyID
// adds the step in Java, where a sum beyond 64 bits is a negative number, which the row
// takes.
type fence int

const (
	open    fence = iota
	renamed       // its biz_type begins with movedPrefix, so that TinyID finds none
	trigger       // a trigger refuses TinyID's update, where the name cannot be changed
)

const (
	movedPrefix   = "~moved~"
	maxBizType    = 63 // characters
	triggerPrefix = "hapax_moved_"
)

func (f fence) String() string {
	if f == trigger {
		return "a trigger refuses TinyID's updates"
	}
	return "its biz_type begins with " + movedPrefix
}

// closed reports whether all rows of a biz_type are closed.
func closed(rows []placed) bool {
	return !slices.ContainsFunc(rows, func(r placed) bool { return r.fence == open })
}

// closes tells how the rows of a biz_type are closed, or will be if the account may.
func closes(rows []placed) string {
	f := renamed
	for _, r := range rows {
		if r.fence == trigger || utf8.RuneCountInString(movedPrefix+r.bizType) > maxBizType {
			f = trigger
		}
	}
	return f.String()
}

// triggered returns the rows that have a trigger, as far as the account may see triggers.
func (db *database) triggered(ctx context.Context) (map[int64]bool, error) {
	rows, err := db.SQL.QueryContext(ctx, "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE 'hapax\\_moved\\_%'")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[int64]bool{}
	for rows.Next() {
		var name string
		var id int64
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(name, triggerPrefix+"%d", &id); err == nil {
			all[id] = true
		}
	}
	return all, rows.Err()
}

// closeRows closes the rows of a biz_type in all databases, by their names or else by
// triggers. Each keeps its max_id. It fails where another command has closed the last of them:
// that one makes the tag, perhaps in another store.
func (s *Store) closeRows(ctx context.Context, bizType string) error {
	rows, err := s.all(ctx)
	if err != nil {
		return err
	}
	if closed(rows[bizType]) {
		return anotherClosed(bizType)
	}
	for _, r := range rows[bizType] {
		if r.fence != open {
			continue
		}
		if err := s.dbs[r.db].closeRow(ctx, r.row); err != nil {
			return err
		}
	}
	return nil
}

func anotherClosed(bizType string) error {
	return fmt.Errorf("%w: row %q of tiny_id_info has changed, or was closed by another command, since it was read: repeat this where the row is still to be moved", hapax.ErrInvalidArgument, bizType)
}

func (db *database) closeRow(ctx context.Context, r row) error {
	limited, cancel := db.Limit(ctx)
	defer cancel()
	if utf8.RuneCountInString(movedPrefix+r.bizType) <= maxBizType {
		// TinyID names the biz_type in its update, so that one that has read the row already
		// is late, too.
		done, err := db.SQL.ExecContext(limited, "UPDATE tiny_id_info SET biz_type = ?, version = version + 1 WHERE id = ? AND biz_type = ?", movedPrefix+r.bizType, r.id, r.bizType)
		if err == nil {
			var n int64
			if n, err = done.RowsAffected(); err == nil && n == 0 {
				err = anotherClosed(r.bizType)
			}
		}
		if !mysqldb.Denied(err) {
			return db.Fail(ctx, "tiny_id_info", err)
		}
	}
	// One that counts the version up by two may pass: Reopen does.
	_, err := db.SQL.ExecContext(limited, fmt.Sprintf("CREATE TRIGGER %s%d BEFORE UPDATE ON tiny_id_info FOR EACH ROW "+
		"IF OLD.id = %[2]d AND NEW.version < OLD.version + 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this biz_type was moved to native tags of hapax'; END IF", triggerPrefix, r.id))
	if mysqldb.Denied(err) {
		return fmt.Errorf("%w: row %q of tiny_id_info in the database at %s stays open for TinyID, so that it is not moved: the account may neither change its biz_type (or %s%s is too long or taken) nor create a trigger; grant it UPDATE or TRIGGER on the table: %w",
			hapax.ErrInvalidArgument, r.bizType, db.Address, movedPrefix, r.bizType, err)
	}
	return db.Fail(ctx, "tiny_id_info", err)
}

// PlanReopen tells for each biz_type that a move closed which mark it goes on from, and
// writes nothing.
func PlanReopen(ctx context.Context, s *Store, target moves.Target) ([]Move, error) {
	rows, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	by := map[string][]string{}
	for bizType, all := range rows {
		if slices.ContainsFunc(all, func(r placed) bool { return r.fence != open }) {
			by[closes(all)] = append(by[closes(all)], bizType)
		}
	}
	var all []Move
	for _, f := range []fence{renamed, trigger} {
		slices.Sort(by[f.String()])
		some, err := moves.PlanReopen(ctx, target, by[f.String()], f.String())
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// Reopen gives the rows back to TinyID: it deletes each native tag, whose mark is above all
// that was and can be issued natively, and sets the rows to that. It can be repeated.
func Reopen(ctx context.Context, s *Store, target moves.Target, all []Move, progress func(done, total int)) error {
	return moves.Apply(ctx, all, func(ctx context.Context, m *Move) error {
		rows, err := s.all(ctx)
		if err != nil {
			return err
		}
		// Before the rows are opened: at no time do both issue its numbers.
		mark, err := moves.Withdraw(ctx, target, m.Tag.Name)
		if err != nil {
			return err
		}
		for _, r := range rows[m.Tag.Name] {
			if err := s.dbs[r.db].reopen(ctx, r, mark-1); err != nil {
				return err
			}
		}
		m.Before, m.After, m.Closed = mark, mark-1, false
		return nil
	}, progress)
}

func (db *database) reopen(ctx context.Context, r placed, maxID int64) error {
	limited, cancel := db.Limit(ctx)
	defer cancel()
	_, err := db.SQL.ExecContext(limited, "UPDATE tiny_id_info SET biz_type = ?, max_id = GREATEST(max_id, ?), version = version + 2 WHERE id = ?", r.bizType, maxID, r.id)
	// The trigger goes last: without it TinyID would go on from the old max_id.
	if err == nil && r.fence == trigger {
		_, err = db.SQL.ExecContext(limited, fmt.Sprintf("DROP TRIGGER IF EXISTS %s%d", triggerPrefix, r.id))
	}
	var now row
	if err == nil {
		err = now.scan(db.SQL.QueryRowContext(limited, "SELECT "+columns+" FROM tiny_id_info WHERE id = ?", r.id).Scan)
	}
	if err == nil && (now.bizType != r.bizType || now.maxID < maxID) || errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: row %q of tiny_id_info has changed meanwhile: repeat", hapax.ErrInvalidArgument, r.bizType)
	}
	return db.Fail(ctx, "tiny_id_info", err)
}
