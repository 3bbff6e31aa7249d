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

// A row is closed in two steps, each for one store, by its code: moving before the native tag is
// there, so that a command that was killed in between can be repeated, and moved after it.
const (
	movedPrefix   = "~moved:" // then the code of the store and ~
	movingPrefix  = "~to:"
	namelessMoved = "~moved~" // of a build that noted no store
	maxBizType    = 63        // characters
	movedTrigger  = "hapax_moved_"
	movingTrigger = "hapax_moving_"
)

var (
	shutName   = regexp.MustCompile(`^(~moved:|~to:)([a-z2-7]{8})~((?s).*)$`)
	shutMarked = regexp.MustCompile(`for store ([a-z2-7]{8})'`)
)

// codeOf returns what stands for a store in a name that has no room for its ID.
func codeOf(storeID string) string {
	sum := sha256.Sum256([]byte(storeID))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// A closing tells how a row is closed.
type closing struct {
	fence fence
	by    string // the code of the store; empty where a build noted none
	moved bool   // the native tag was there
}

// cutName returns the biz_type that a row had before it was closed by its name, and how it was.
func cutName(bizType string) (was string, c closing) {
	if found := shutName.FindStringSubmatch(bizType); found != nil {
		return found[3], closing{renamed, found[2], found[1] == movedPrefix}
	}
	if was, ok := strings.CutPrefix(bizType, namelessMoved); ok {
		return was, closing{fence: renamed, moved: true}
	}
	return bizType, closing{}
}

// isRenamed reports whether a row is closed by its name.
func isRenamed(bizType string) bool {
	_, c := cutName(bizType)
	return c.fence == renamed
}

// fits reports whether a row can be closed by its name.
func fits(bizType string) bool {
	return utf8.RuneCountInString(movedPrefix+codeOf("")+"~"+bizType) <= maxBizType
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

// triggered returns the rows that have a trigger, as far as the account may see triggers.
func (db *database) triggered(ctx context.Context) (map[int64]closing, error) {
	rows, err := db.SQL.QueryContext(ctx, "SELECT TRIGGER_NAME, ACTION_STATEMENT FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE 'hapax\\_mov%'")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[int64]closing{}
	for rows.Next() {
		var name, body string
		var id int64
		if err := rows.Scan(&name, &body); err != nil {
			return nil, err
		}
		c := closing{fence: trigger}
		if found := shutMarked.FindStringSubmatch(body); found != nil {
			c.by = found[1]
		}
		if _, err := fmt.Sscanf(name, movedTrigger+"%d", &id); err == nil {
			c.moved = true
			all[id] = c
		} else if _, err := fmt.Sscanf(name, movingTrigger+"%d", &id); err == nil && !all[id].moved {
			all[id] = c
		}
	}
	return all, rows.Err()
}

// isClosed reports whether any of the rows of a biz_type is closed.
func isClosed(rows []placed) bool {
	return slices.ContainsFunc(rows, func(r placed) bool { return r.fence != open })
}

// isMoved reports whether the native tag of a biz_type was there since its rows were closed.
func isMoved(rows []placed) bool {
	return slices.ContainsFunc(rows, func(r placed) bool { return r.moved })
}

// notOurs refuses rows of which one was closed for another store: both would issue its numbers.
func notOurs(rows []placed, store string) error {
	for _, r := range rows {
		what := fmt.Sprintf("row %q of tiny_id_info", r.bizType)
		switch {
		case r.fence == open || r.by == codeOf(store):
		case r.by == "":
			return fmt.Errorf("%w: %s is closed, and names no store: a build that noted none has closed it: give --undo of that build, and repeat", hapax.ErrInvalidArgument, what)
		default:
			return moves.NotOurs(what, "with the code "+r.by, fmt.Sprintf("%s, with the code %s", store, codeOf(store)))
		}
	}
	return nil
}

// A turn is a session in each database that holds the lock of commands which close or open rows there.
// Such rows are changed by these sessions alone: with a session its lock is lost.
type turn []*sql.Conn

const lock = "CONCAT('hapax_tinyid_', MD5(DATABASE()))"

// alone calls do while no other command closes or opens rows of the databases. The servers of a Galera
// cluster have no lock in common, and may refuse to take one: there only what a change compares tells that
// another command was faster.
func (s *Store) alone(ctx context.Context, do func(held turn) error) error {
	var held turn
	var locked []bool
	defer func() {
		for i, conn := range held {
			if i < len(locked) && locked[i] {
				limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), surveyIn)
				_, _ = conn.ExecContext(limited, "DO RELEASE_LOCK("+lock+")") // if it fails, the session is over
				cancel()
			}
			_ = conn.Close()
		}
	}()
	for _, db := range s.dbs {
		limited, cancel := db.Limit(ctx)
		defer cancel()
		conn, err := db.SQL.Conn(limited)
		if err != nil {
			return db.Fail(ctx, "a session", err)
		}
		held = append(held, conn)
		galera := s.galera
		if !galera {
			var name, value string
			err := conn.QueryRowContext(limited, "SHOW GLOBAL VARIABLES LIKE 'wsrep\\_on'").Scan(&name, &value)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return db.Fail(ctx, "a lock", err)
			}
			galera = value == "ON"
		}
		locked = append(locked, !galera)
		if galera {
			continue
		}
		var got sql.Null[int64]
		if err := conn.QueryRowContext(limited, "SELECT GET_LOCK("+lock+", 1)").Scan(&got); err != nil {
			return db.Fail(ctx, "a lock", err)
		}
		if got.V != 1 {
			return fmt.Errorf("%w: another command closes or opens rows of the database at %s; repeat this when it has ended", hapax.ErrStoreUnavailable, db.Address)
		}
	}
	return do(held)
}

// closeRows closes the rows of a biz_type in all databases for a store, by their names or else by
// triggers. Each keeps its max_id.
func (s *Store) closeRows(ctx context.Context, held turn, rows []placed, code string) error {
	for _, r := range rows {
		if r.fence != open {
			continue
		}
		if err := s.dbs[r.db].closeRow(ctx, held[r.db], r.row, code); err != nil {
			return err
		}
	}
	return nil
}

// finish has the rows say that the native tag is there. It fails if the lock was lost.
func (s *Store) finish(ctx context.Context, held turn, rows []placed) error {
	for _, r := range rows {
		if r.moved {
			continue
		}
		db, conn := s.dbs[r.db], held[r.db]
		limited, cancel := db.Limit(ctx)
		var err error
		if r.fence == renamed {
			err = rename(limited, conn, r, movedPrefix+r.by+"~"+r.bizType, 0)
		} else if err = bar(limited, conn, movedTrigger, r.id, "this biz_type was moved to native tags of hapax for store "+r.by); err == nil {
			_, err = conn.ExecContext(limited, fmt.Sprintf("DROP TRIGGER IF EXISTS %s%d", movingTrigger, r.id))
		}
		cancel()
		if err != nil && !mysqldb.Denied(err) { // it stays closed as it is
			return db.Fail(ctx, "tiny_id_info", err)
		}
	}
	return nil
}

// rename gives a row a name, and a max_id if its own is lower. It fails if the name is not any more as it
// was read.
func rename(ctx context.Context, conn *sql.Conn, r placed, name string, maxID int64) error {
	done, err := conn.ExecContext(ctx, "UPDATE tiny_id_info SET biz_type = ?, max_id = GREATEST(max_id, ?), version = version + 2 WHERE id = ? AND biz_type = ?", name, maxID, r.id, r.name)
	if err != nil {
		return err
	}
	n, err := done.RowsAffected()
	if err == nil && n == 0 {
		err = errChanged(r.bizType)
	}
	return err
}

// bar makes a trigger that refuses TinyID's update of a row. One that counts the version up by two
// may pass: Reopen does.
func bar(ctx context.Context, conn *sql.Conn, prefix string, id int64, why string) error {
	_, err := conn.ExecContext(ctx, fmt.Sprintf("CREATE TRIGGER %s%d BEFORE UPDATE ON tiny_id_info FOR EACH ROW "+
		"IF OLD.id = %[2]d AND NEW.version < OLD.version + 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '%[3]s'; END IF", prefix, id, why))
	return err
}

func errChanged(bizType string) error {
	return fmt.Errorf("%w: row %q of tiny_id_info has changed since it was read: repeat this if it is still to be done", hapax.ErrInvalidArgument, bizType)
}

func (db *database) closeRow(ctx context.Context, conn *sql.Conn, r row, code string) error {
	limited, cancel := db.Limit(ctx)
	defer cancel()
	if fits(r.bizType) {
		// TinyID names the biz_type in its update, so that one that has read the row already
		// is late, too.
		done, err := conn.ExecContext(limited, "UPDATE tiny_id_info SET biz_type = ?, version = version + 1 WHERE id = ? AND biz_type = ?", movingPrefix+code+"~"+r.bizType, r.id, r.bizType)
		if err == nil {
			var n int64
			if n, err = done.RowsAffected(); err == nil && n == 0 {
				err = errChanged(r.bizType)
			}
		}
		if !mysqldb.Denied(err) {
			return db.Fail(ctx, "tiny_id_info", err)
		}
	}
	err := bar(limited, conn, movingTrigger, r.id, "this biz_type is being moved to native tags of hapax for store "+code)
	if mysqldb.Denied(err) {
		return fmt.Errorf("%w: row %q of tiny_id_info in the database at %s stays open for TinyID, so that it is not moved: the account may neither change its biz_type (or %s%s is too long or taken) nor create a trigger; grant it UPDATE or TRIGGER on the table: %w",
			hapax.ErrInvalidArgument, r.bizType, db.Address, movedPrefix+code+"~", r.bizType, err)
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
	var all []Move
	for _, bizType := range slices.Sorted(maps.Keys(rows)) {
		these := rows[bizType]
		if !isClosed(these) {
			continue
		}
		m := Move{Tag: hapax.Tag{Name: bizType}, Closed: true, Closes: closes(these), Reason: notOurs(these, store)}
		if m.Reason == nil {
			planned, err := moves.PlanReopen(ctx, target, []string{bizType}, closes(these))
			if err != nil {
				return nil, err
			}
			if m = planned[0]; !isMoved(these) { // without a tag nothing was issued natively
				m.Reason = nil
				m.Before = max(m.Before, top(these)+1)
				m.After = m.Before
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// Reopen gives the rows back to TinyID: it deletes each native tag, whose mark is above all
// that was and can be issued natively, and sets the rows to that. It can be repeated.
func Reopen(ctx context.Context, s *Store, target moves.Target, all []Move, progress func(done, total int)) error {
	return moves.Apply(ctx, all, func(ctx context.Context, m *Move) error {
		store, err := target.StoreID(ctx)
		if err != nil {
			return err
		}
		return s.alone(ctx, func(held turn) error {
			rows, err := s.all(ctx)
			these := rows[m.Tag.Name]
			if err == nil { // another store's move may have come after the plan
				err = notOurs(these, store)
			}
			if err != nil || !isClosed(these) {
				return err
			}
			// Before the rows are opened: at no time do both issue its numbers.
			was, _, err := moves.Withdraw(ctx, target, m.Tag.Name)
			mark := was.Mark
			if errors.Is(err, hapax.ErrTagNotFound) && !isMoved(these) {
				mark, err = top(these)+1, nil
			}
			if err != nil {
				return err
			}
			for _, r := range these {
				if err := s.dbs[r.db].reopen(ctx, held[r.db], r, mark-1); err != nil {
					return err
				}
			}
			m.Before, m.After, m.Closed = mark, mark-1, false
			return nil
		})
	}, progress)
}

func (db *database) reopen(ctx context.Context, conn *sql.Conn, r placed, maxID int64) error {
	limited, cancel := db.Limit(ctx)
	defer cancel()
	err := rename(limited, conn, r, r.bizType, maxID)
	// The trigger goes last: without it TinyID would go on from the old max_id.
	if err == nil && r.fence == trigger {
		for _, prefix := range []string{movingTrigger, movedTrigger} {
			if _, err2 := conn.ExecContext(limited, fmt.Sprintf("DROP TRIGGER IF EXISTS %s%d", prefix, r.id)); err == nil {
				err = err2
			}
		}
	}
	var now row
	if err == nil {
		err = now.scan(conn.QueryRowContext(limited, "SELECT "+columns+" FROM tiny_id_info WHERE id = ?", r.id).Scan)
	}
	if err == nil && (now.bizType != r.bizType || now.maxID < maxID) || errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: row %q of tiny_id_info has changed meanwhile: repeat", hapax.ErrInvalidArgument, r.bizType)
	}
	return db.Fail(ctx, "tiny_id_info", err)
}
