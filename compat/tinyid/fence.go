package tinyid

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
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

// A row is closed in two steps, so that a command that was killed in between, before the native
// tag was there, can be repeated: first for one store, by its code, and for good once the tag is
// there.
const (
	movedPrefix   = "~moved~"
	movingPrefix  = "~to:" // then the code of the store and ~
	maxBizType    = 63     // characters
	movedTrigger  = "hapax_moved_"
	movingTrigger = "hapax_moving_"
)

var (
	movingName   = regexp.MustCompile(`^` + movingPrefix + `([a-z2-7]{8})~(.*)$`)
	movingMarked = regexp.MustCompile(`for store ([a-z2-7]{8})'`)
)

// codeOf returns what stands for a store in a name that has no room for its ID.
func codeOf(storeID string) string {
	sum := sha256.Sum256([]byte(storeID))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// cutName returns the biz_type that a row had before it was closed by its name, and the code of
// the store that is moving it; empty where the move is over.
func cutName(bizType string) (was, by string, renamed bool) {
	if found := movingName.FindStringSubmatch(bizType); found != nil {
		return found[2], found[1], true
	}
	was, renamed = strings.CutPrefix(bizType, movedPrefix)
	return was, "", renamed
}

// isRenamed reports whether a row is closed by its name.
func isRenamed(bizType string) bool {
	_, _, renamed := cutName(bizType)
	return renamed
}

// fits reports whether a row can be closed by its name.
func fits(bizType string) bool {
	return utf8.RuneCountInString(movingPrefix+codeOf("")+"~"+bizType) <= maxBizType
}

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
		if r.fence == trigger || r.fence == open && !fits(r.bizType) {
			f = trigger
		}
	}
	return f.String()
}

// triggered returns the rows that have a trigger, as far as the account may see triggers, and by
// which store each is being moved; empty where the move is over.
func (db *database) triggered(ctx context.Context) (map[int64]string, error) {
	rows, err := db.SQL.QueryContext(ctx, "SELECT TRIGGER_NAME, ACTION_STATEMENT FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE 'hapax\\_mov%'")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[int64]string{}
	for rows.Next() {
		var name, body string
		var id int64
		if err := rows.Scan(&name, &body); err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(name, movedTrigger+"%d", &id); err == nil {
			all[id] = ""
		} else if _, err := fmt.Sscanf(name, movingTrigger+"%d", &id); err == nil {
			found := movingMarked.FindStringSubmatch(body)
			if _, over := all[id]; found != nil && !over {
				all[id] = found[1]
			}
		}
	}
	return all, rows.Err()
}

// isMoving reports whether a command for the store with that code has closed a row of the
// biz_type, and not ended.
func isMoving(rows []placed, code string) bool {
	return slices.ContainsFunc(rows, func(r placed) bool { return r.by == code })
}

// ofAnother reports whether a command for a store with another code than that has closed a row of
// the biz_type, and not ended.
func ofAnother(rows []placed, code string) bool {
	return slices.ContainsFunc(rows, func(r placed) bool { return r.by != "" && r.by != code })
}

func errOfAnother(bizType string) error {
	return fmt.Errorf("%w: row %q of tiny_id_info was closed by a command for another store, which was killed or is at work: repeat it for that store, or give it --undo", hapax.ErrInvalidArgument, bizType)
}

// closeRows closes the rows of a biz_type in all databases for a store, by their names or else by
// triggers. Each keeps its max_id. It fails where another command has closed the last of them:
// that one makes the tag, perhaps in another store.
func (s *Store) closeRows(ctx context.Context, bizType, code string) error {
	rows, err := s.all(ctx)
	switch {
	case err != nil:
		return err
	case ofAnother(rows[bizType], code):
		return errOfAnother(bizType)
	case closed(rows[bizType]) && !isMoving(rows[bizType], code):
		return anotherClosed(bizType)
	}
	for _, r := range rows[bizType] {
		if r.fence != open {
			continue
		}
		if err := s.dbs[r.db].closeRow(ctx, r.row, code); err != nil {
			return err
		}
	}
	return nil
}

// finish has the rows closed for good.
func (s *Store) finish(ctx context.Context, rows []placed) error {
	for _, r := range rows {
		if r.by == "" {
			continue
		}
		db := s.dbs[r.db]
		limited, cancel := db.Limit(ctx)
		var err error
		if r.fence == renamed {
			_, err = db.SQL.ExecContext(limited, "UPDATE tiny_id_info SET biz_type = ?, version = version + 2 WHERE id = ? AND biz_type = ?", movedPrefix+r.bizType, r.id, movingPrefix+r.by+"~"+r.bizType)
		} else if err = db.bar(limited, movedTrigger, r.id, "this biz_type was moved to native tags of hapax"); err == nil {
			_, err = db.SQL.ExecContext(limited, fmt.Sprintf("DROP TRIGGER IF EXISTS %s%d", movingTrigger, r.id))
		}
		cancel()
		if err != nil && !mysqldb.Denied(err) { // a row of that name is there: this one stays closed as it is
			return db.Fail(ctx, "tiny_id_info", err)
		}
	}
	return nil
}

// bar makes a trigger that refuses TinyID's update of a row. One that counts the version up by two
// may pass: Reopen does.
func (db *database) bar(ctx context.Context, prefix string, id int64, why string) error {
	_, err := db.SQL.ExecContext(ctx, fmt.Sprintf("CREATE TRIGGER %s%d BEFORE UPDATE ON tiny_id_info FOR EACH ROW "+
		"IF OLD.id = %[2]d AND NEW.version < OLD.version + 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '%[3]s'; END IF", prefix, id, why))
	return err
}

func anotherClosed(bizType string) error {
	return fmt.Errorf("%w: row %q of tiny_id_info has changed, or was closed by another command, since it was read: repeat this where the row is still to be moved", hapax.ErrInvalidArgument, bizType)
}

func (db *database) closeRow(ctx context.Context, r row, code string) error {
	limited, cancel := db.Limit(ctx)
	defer cancel()
	if fits(r.bizType) {
		// TinyID names the biz_type in its update, so that one that has read the row already
		// is late, too.
		done, err := db.SQL.ExecContext(limited, "UPDATE tiny_id_info SET biz_type = ?, version = version + 1 WHERE id = ? AND biz_type = ?", movingPrefix+code+"~"+r.bizType, r.id, r.bizType)
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
	err := db.bar(limited, movingTrigger, r.id, "this biz_type is being moved to native tags of hapax for store "+code)
	if err == nil { // another command may have ended since the row was read
		var now map[int64]string
		if now, err = db.triggered(limited); err == nil && now[r.id] != code {
			_, err = db.SQL.ExecContext(limited, fmt.Sprintf("DROP TRIGGER IF EXISTS %s%d", movingTrigger, r.id))
			err = errors.Join(anotherClosed(r.bizType), err)
			return err
		}
	}
	if mysqldb.Denied(err) {
		return fmt.Errorf("%w: row %q of tiny_id_info in the database at %s stays open for TinyID, so that it is not moved: the account may neither change its biz_type (or %s%s is too long or taken) nor create a trigger; grant it UPDATE or TRIGGER on the table: %w",
			hapax.ErrInvalidArgument, r.bizType, db.Address, movingPrefix+code+"~", r.bizType, err)
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
	store, err := target.StoreID(ctx)
	if err != nil {
		return nil, err
	}
	code := codeOf(store)
	by := map[string][]string{}
	var all []Move
	for _, bizType := range slices.Sorted(maps.Keys(rows)) {
		these := rows[bizType]
		m := Move{Tag: hapax.Tag{Name: bizType}, Before: top(these) + 1, After: top(these) + 1, Closed: true, Closes: closes(these)}
		switch _, err := target.Tag(ctx, bizType); {
		case !slices.ContainsFunc(these, func(r placed) bool { return r.fence != open }):
		case isMoving(these, code) && errors.Is(err, hapax.ErrTagNotFound): // nothing was issued natively
			all = append(all, m)
		case ofAnother(these, code) && !isMoving(these, code):
			m.Reason = errOfAnother(bizType)
			all = append(all, m)
		default:
			by[closes(these)] = append(by[closes(these)], bizType)
		}
	}
	for _, f := range []fence{renamed, trigger} {
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
		store, err := target.StoreID(ctx)
		if err != nil {
			return err
		}
		code, these := codeOf(store), rows[m.Tag.Name]
		// Before the rows are opened: at no time do both issue its numbers.
		mark, err := moves.Withdraw(ctx, target, m.Tag.Name)
		if errors.Is(err, hapax.ErrTagNotFound) && isMoving(these, code) {
			mark, err = top(these)+1, nil
		}
		if err != nil {
			return err
		}
		for _, r := range these {
			if r.by != "" && r.by != code {
				continue
			}
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
		for _, prefix := range []string{movingTrigger, movedTrigger} {
			if _, err2 := db.SQL.ExecContext(limited, fmt.Sprintf("DROP TRIGGER IF EXISTS %s%d", prefix, r.id)); err == nil {
				err = err2
			}
		}
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
