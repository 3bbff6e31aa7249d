package sequences

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
)

// Why AUTO_INCREMENT has one way only: a number from elsewhere that is inserted moves the
// counter above it, so that a writer that goes on would issue the numbers that hapax issues
// next; and its increment is the server's, for all tables and new sessions alone.
const oneWay = "AUTO_INCREMENT moves above every number that is inserted, also those of hapax: choose --switch stop"

// triggerName is that of the trigger that shuts a table.
func triggerName(table string) string {
	name := "hapax_shut_" + table
	// MySQL takes 64 letters: where longer names were cut, two tables would have one trigger.
	if len(name) > 64 {
		name = fmt.Sprintf("hapax_shut_%x", hashOf(name))
	}
	return name
}

// trigger names what shuts a part.
func (s *Source) trigger(p part) string {
	if s.Kind == generatorKind {
		return shutName(p)
	}
	return triggerName(p.name)
}

func hashOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // it never fails
	return h.Sum64()
}

// remembers is the variable of a trigger that holds a mark, in hexadecimal: a comment would
// not get past every client.
const remembers = "hapax_shut"

var rememberedText = regexp.MustCompile(remembers + ` TEXT DEFAULT X'([0-9a-f]*)'`)

// triggerMark reads what a trigger remembers.
func triggerMark(body string) *Mark {
	found := rememberedText.FindStringSubmatch(body)
	if found == nil {
		return nil
	}
	text, err := hex.DecodeString(found[1])
	if err != nil {
		return nil
	}
	return readMark(string(text))
}

// halvedMargin is how far a sequence that was halved may come before it is shut.
const halvedMargin = 10_000

// Steps implements Database. A script has one step for a source, since a session ends with it:
// under the same lock as Shut it looks at what Shut looks at, by statements that fail.
func (m *mySQL) Steps(s *Source, how Switch, first int64) ([]string, error) {
	all, err := m.steps(s, how, first)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	const fails = "SELECT EXP(IF(%s, 1000, 0)) AS `an error here: %s`%s" // Script says what to do
	var lines []string
	end := func() []string { return []string{strings.Join(lines, "//\n")} }
	if m.cluster {
		lines = m.claim()
		end = func() []string { return []string{strings.Join(append(lines, unclaim), "//\n")} }
	} else {
		lines = append(lines, fmt.Sprintf(fails, fmt.Sprintf("COALESCE(GET_LOCK(%s, %d), 0) = 0", mysqldb.Quote(m.lock()), m.seconds()), "another command is at work", ""))
	}
	if s.Kind != generatorKind && s.Kind != "auto_increment" {
		for _, one := range all {
			lines = append(lines, m.compound(one, first))
		}
		return end(), nil
	}
	one := all[0]
	lines = append(lines, fmt.Sprintf(fails, fmt.Sprintf("EXISTS (SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = %s AND TRIGGER_NAME = %s AND LOCATE('%x', ACTION_STATEMENT) = 0)",
		mysqldb.Quote(one.name), mysqldb.Quote(s.trigger(one.part)), one.mark.own()), "another command has shut it", ""))
	if strings.HasPrefix(one.steps[0], createTrigger+" `") { // it cannot be repeated, and the table is not to be open in between
		lines = append(lines, fmt.Sprintf("LOCK TABLES %s WRITE", quoteTick(one.name)))
		lines = append(append(lines, s.unguard(one.part)...), "DROP TRIGGER IF EXISTS "+quoteTick(s.trigger(one.part)))
		lines = append(append(lines, one.steps...), "UNLOCK TABLES")
	} else {
		lines = append(lines, one.steps...)
	}
	const past = "past the tag's first number"
	if s.Kind == generatorKind {
		lines = append(lines, fmt.Sprintf(fails, fmt.Sprintf("%s + %d >= %d", quoteTick(one.field), m.opts.AllocationSize, first), past,
			fmt.Sprintf(" FROM %s WHERE %s", quoteTick(one.name), generatorWhere(one.part, quoteTick, mysqldb.Quote))))
		return end(), nil
	}
	if !m.maria && !m.old {
		lines = append(lines, freshCounters)
	}
	lines = append(lines, fmt.Sprintf(fails, fmt.Sprintf("AUTO_INCREMENT >= %d", first+1), past,
		fmt.Sprintf(" FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s", mysqldb.Quote(one.name))))
	return end(), nil
}

// compound is a block that shuts a sequence, unless it was done before: some of its statements
// must not be repeated. It looks where the sequence is before it has an end and after, as Shut
// does: an end below the next value is no error to the server.
func (m *mySQL) compound(one shutting, first int64) string {
	taken := "was <> " + mysqldb.Quote(one.comment)
	if one.closed != nil {
		taken += fmt.Sprintf(" OR LOCATE(%s, was) = 0", mysqldb.Quote(ofStore(m.opts.Store)))
	}
	name, steps := quoteTick(one.name), slices.Clone(one.steps)
	if one.closed == nil {
		const beyond = "IF (SELECT %s FROM %s) >= %d THEN%s SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it is past the number that its tag begins with: make the plan anew'; END IF"
		steps = slices.Insert(steps, 1, fmt.Sprintf(beyond, "next_not_cached_value - 1", name, first, fmt.Sprintf(" ALTER SEQUENCE %s MAXVALUE %d;", name, one.max)))
		steps = slices.Insert(steps, 0, fmt.Sprintf(beyond, fmt.Sprintf("GREATEST(next_not_cached_value - 1, %d) + %d", one.min, one.step), name, first, ""))
	}
	after := ""
	if one.mark.How == Parity { // as Shut repeats it
		after = fmt.Sprintf("\n  IF (SELECT increment FROM %s) <> 2 THEN\n    %s;\n  END IF;", name, one.steps[len(one.steps)-1])
	}
	return fmt.Sprintf(`BEGIN NOT ATOMIC
  DECLARE was TEXT;
  SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s INTO was;
  IF LOCATE(%s, was) = 0 THEN
    IF %s THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it is not as it was read: another command has shut or opened it';
    END IF;
    %s;
  END IF;%s
END`, mysqldb.Quote(one.name), mysqldb.Quote(one.mark.own()), taken, strings.Join(steps, ";\n    "), after)
}

// A shutting is a part that is to be shut, and how.
type shutting struct {
	part

	mark  *Mark
	steps []string
}

// createTrigger begins a statement that makes a trigger, and can be repeated where the server
// knows how: it is not to be open for a moment.
func (m *mySQL) createTrigger() string {
	if m.maria || m.version >= 8_00_29 {
		return createTrigger + " IF NOT EXISTS"
	}
	return createTrigger
}

const createTrigger = "CREATE TRIGGER"

func (m *mySQL) steps(s *Source, how Switch, first int64) (all []shutting, err error) {
	if s.Kind == generatorKind {
		return m.generatorSteps(s, how, first)
	}
	if err := checkParity(s, how); err != nil {
		return nil, err
	}
	for _, p := range s.parts {
		if p.closed != nil && (p.closed.How == how || how == Parity) {
			if p.unfinished() {
				all = append(all, shutting{p, p.closed, []string{p.halve(p.closed)}})
			}
			continue
		}
		mark := &Mark{Tag: s.Tag, How: how, Store: m.opts.Store, First: first, Token: m.opts.Token, At: p.position, Max: p.max, Step: p.step, Servers: p.servers, Comment: p.comment}
		if p.closed != nil {
			mark.First, mark.Max, mark.Step, mark.Servers, mark.Comment = p.closed.First, p.closed.Max, p.closed.Step, p.closed.Servers, p.closed.Comment
			mark.Token = cmp.Or(mark.Token, p.closed.Token)
		}
		if s.Kind == "auto_increment" {
			if how != Stop {
				return nil, fmt.Errorf("%w: %s", hapax.ErrNotSupported, oneWay)
			}
			all = append(all, shutting{p, mark, []string{m.shutTable(p, mark)}})
			continue
		}
		// There are no transactions around these: the sequence first gets an end in front of
		// the tag, so that nothing that happens between two of them does harm.
		name := quoteTick(p.name)
		// An end has to be above the least value.
		most := max(endBelow(first, p.step), p.min+1)
		// The mark is on the numbers that it counts by, for the way back.
		end := most + ((p.position+1-most)%p.step+p.step)%p.step
		if p.closed != nil && p.closed.How == Parity && !p.unfinished() {
			most = p.position + halvedMargin
			end = most
		}
		steps := []string{fmt.Sprintf("ALTER SEQUENCE %s MAXVALUE %d NOCYCLE", name, most)}
		comment := func() string { return fmt.Sprintf("ALTER TABLE %s COMMENT %s", name, mysqldb.Quote(mark.text())) }
		// The mark last: it says that all of this was done. But a sequence that counts by two
		// already, and has none, could not be told from one that always did.
		switch how {
		case Parity:
			steps = append(steps, comment(), p.halve(mark))
		case Stop:
			mark.At = end
			steps = append(steps, fmt.Sprintf("DO SETVAL(%s, %d, 1)", name, most), comment())
		default:
			mark.At = end
			steps = append(steps, comment())
		}
		all = append(all, shutting{p, mark, steps})
	}
	return all, nil
}

// halve is the statement after which a sequence that ends in front of the tag goes on with every
// other number above it.
func (p part) halve(m *Mark) string {
	most := m.Max
	if most <= m.First { // a command that was killed has set this end
		most = math.MaxInt64 - 1
	}
	return fmt.Sprintf("ALTER SEQUENCE %s INCREMENT BY 2 MAXVALUE %d RESTART WITH %d", quoteTick(p.name), most, m.First+1-m.First%2)
}

// unfinished reports whether a part was to be halved, and has its mark alone.
func (p part) unfinished() bool { return p.closed != nil && p.closed.How == Parity && p.step != 2 }

// shutTable is the statement after which a table takes no row without a number.
func (m *mySQL) shutTable(p part, mark *Mark) string {
	column := quoteTick(p.field)
	return fmt.Sprintf(m.createTrigger()+` %s BEFORE INSERT ON %s FOR EACH ROW
BEGIN
  DECLARE %s TEXT DEFAULT X'%x';
  IF NEW.%s IS NULL OR NEW.%s = 0 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the numbers of this table come from hapax: insert one';
  END IF;
END`, quoteTick(triggerName(p.name)), quoteTick(p.name), remembers, mark.text(), column, column)
}

// Shut implements Database. A table is asked for its counter once nobody adds to it: the
// statement waits for whoever writes to it.
func (m *mySQL) Shut(ctx context.Context, s *Source, how Switch, first int64) error {
	all, err := m.steps(s, how, first)
	if err != nil || len(all) == 0 {
		return err
	}
	return m.alone(ctx, s, func(conn *sql.Conn) error {
		halved := s.Closed != nil && s.Closed.How == Parity
		at, err := m.Position(ctx, s)
		if reach := m.reach(s, at); err == nil && reach >= first && !halved {
			err = &PassedError{At: reach}
		}
		switch {
		case err != nil:
			return err
		case s.Kind == "auto_increment" || s.Kind == generatorKind:
			err = m.shutTables(ctx, conn, s, all[0], first)
		default:
			err = m.shutSequences(ctx, conn, s, all, first, halved)
		}
		if err != nil {
			return err
		}
		for _, one := range all { // an operator may be at it by hand
			now, err := m.markNow(ctx, conn, s, one.part)
			if err == nil && (now == nil || now.own() != one.mark.own()) {
				err = &TakenError{By: now}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// reach returns the highest number that a source at a position may still give before it is shut:
// no end of a sequence is below its next value or at its least one, and each may stand for
// numbers above it.
func (m *mySQL) reach(s *Source, at int64) int64 {
	most := at
	for _, p := range s.parts {
		if p.closed == nil && s.Kind != "auto_increment" && s.Kind != generatorKind {
			most = max(most, max(at, p.min)+p.step)
		}
	}
	return most
}

// shutTables has a trigger shut a table.
func (m *mySQL) shutTables(ctx context.Context, conn *sql.Conn, s *Source, one shutting, first int64) error {
	// What a command that was killed left beside the mark may not be made twice.
	if err := m.run(ctx, conn, slices.Concat(s.unguard(one.part), one.steps)); err != nil {
		return err
	}
	// Once more: what was added before the trigger stood counts.
	at, err := m.Position(ctx, s)
	if err != nil || at < first {
		return err
	}
	// A repeated call would take it for shut in time.
	if err := m.run(ctx, conn, append([]string{"DROP TRIGGER IF EXISTS " + quoteTick(s.trigger(one.part))}, s.unguard(one.part)...)); err != nil {
		return err
	}
	return &PassedError{At: at}
}

// shutSequences sets the end of the first sequence first, and looks once more where they are.
func (m *mySQL) shutSequences(ctx context.Context, conn *sql.Conn, s *Source, all []shutting, first int64, halved bool) error {
	for k, one := range all {
		for j, step := range one.steps {
			if err := m.run(ctx, conn, []string{step}); err != nil {
				return err
			}
			if k > 0 || j > 0 || halved {
				continue
			}
			at, err := m.Position(ctx, s)
			if err == nil && at >= first {
				// Its end is given back, so that it is left as it was found.
				err = m.run(ctx, conn, []string{fmt.Sprintf("ALTER SEQUENCE %s MAXVALUE %d", quoteTick(one.name), one.max)})
				if err == nil {
					return &PassedError{At: at}
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// lock names the lock that commands hold while they shut or open a source of the database: its
// statements are several, and none of them compares.
func (m *mySQL) lock() string { return fmt.Sprintf("hapax_shut_%x", hashOf(m.schema)) }

func (m *mySQL) seconds() int64 { return max(1, int64(m.opts.Timeout.Seconds())) }

// The row by which a command is alone in a cluster, whose servers each have locks of their own: of
// two inserts that meet there one fails, by its key or when it is committed. Its table stays.
const (
	claimTable = "hapax_shut"
	unclaim    = "DELETE FROM " + claimTable
)

func (m *mySQL) claim() []string {
	return []string{
		"CREATE TABLE IF NOT EXISTS " + claimTable + " (at_work VARCHAR(9) NOT NULL PRIMARY KEY, store VARCHAR(255) NOT NULL) ENGINE=InnoDB",
		"INSERT INTO " + claimTable + " VALUES ('a command', " + mysqldb.Quote(m.opts.Store) + ")",
	}
}

// enter waits for the turn of this command, and returns the statement that ends it.
func (m *mySQL) enter(ctx context.Context, conn *sql.Conn) (release string, err error) {
	busy := fmt.Errorf("%w: another command shuts or opens sources of this database; repeat this when it has ended", hapax.ErrStoreUnavailable)
	if m.cluster {
		steps := m.claim()
		if err := m.run(ctx, conn, steps[:1]); err != nil {
			return "", err
		}
		if _, err := conn.ExecContext(ctx, steps[1]); mysqldb.Met(err) {
			return "", fmt.Errorf("%w, and if it was killed, give the database %s first", busy, unclaim)
		} else if err != nil {
			return "", m.fail(ctx, "a lock", err)
		}
		return unclaim, nil
	}
	var got sql.Null[int64]
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", m.lock(), m.seconds()).Scan(&got); err != nil {
		return "", m.fail(ctx, "a lock", err)
	}
	if got.V != 1 {
		return "", busy
	}
	return "DO RELEASE_LOCK(" + mysqldb.Quote(m.lock()) + ")", nil
}

// alone calls do while no other command shuts or opens a source, if the source is as it was read.
func (m *mySQL) alone(ctx context.Context, s *Source, do func(*sql.Conn) error) (err error) {
	conn, err := m.db.SQL.Conn(ctx)
	if err != nil {
		return m.fail(ctx, "a session", err)
	}
	defer conn.Close()
	// A statement that waits for a table has all later ones wait behind it, and the server's own limit may be a
	// year.
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", m.seconds())); err != nil {
		return m.fail(ctx, "a session", err)
	}
	release, err := m.enter(ctx, conn)
	if err != nil {
		return err
	}
	defer func() {
		_, err2 := conn.ExecContext(context.WithoutCancel(ctx), release)
		if err2 != nil && err == nil {
			err = m.fail(ctx, "a lock", err2)
		}
	}()
	for _, p := range s.parts {
		now, err := m.markNow(ctx, conn, s, p)
		if err == nil {
			err = taken(now, p.closed)
		}
		if err != nil {
			return err
		}
	}
	return do(conn)
}

// markNow reads the mark of a part.
func (m *mySQL) markNow(ctx context.Context, conn *sql.Conn, s *Source, p part) (*Mark, error) {
	query, args, markOf := "SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", []any{m.schema, p.name}, readMark
	if s.Kind == generatorKind || s.Kind == "auto_increment" {
		query, markOf = "SELECT ACTION_STATEMENT FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ? AND TRIGGER_NAME = ?", triggerMark
		args = append(args, s.trigger(p))
	}
	var text string
	err := conn.QueryRowContext(ctx, query, args...).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return markOf(text), m.fail(ctx, "a mark", err)
}

// Script implements Database.
func (m *mySQL) Script(variable string, steps []string) string {
	var b strings.Builder
	hint := ""
	if m.cluster {
		hint = " Then give the database: " + unclaim + "."
	}
	for _, step := range steps {
		document, text := hereDocument("DELIMITER //\n" + step + "//")
		fmt.Fprintf(&b, "%s %s | hapax_mysql \"$%s\" || { echo 'If a value is out of range, the source is past its tag'\"'\"'s first number, or another command has shut it: make the plan anew.%s' >&2; exit 1; }\n%s", ForStore, document, variable, hint, text)
	}
	return b.String()
}

func (m *mySQL) run(ctx context.Context, conn *sql.Conn, steps []string) error {
	for _, step := range steps {
		if m.before != nil {
			if err := m.before(step); err != nil {
				return err
			}
		}
		_, err := conn.ExecContext(ctx, step)
		if mysqldb.Denied(err) {
			return fmt.Errorf("%w: this account may not shut it; have its owner run the plan that the command prints: %w", hapax.ErrNotSupported, err)
		}
		if err != nil {
			return m.fail(ctx, "shutting or opening a source", err)
		}
	}
	return nil
}

// BackSteps implements Database.
func (m *mySQL) BackSteps(s *Source, next int64) (steps []string, err error) {
	if s.Kind == generatorKind {
		return m.generatorBackSteps(s, next)
	}
	if len(s.parts) > 1 {
		return nil, fmt.Errorf("%w: %s fed the same columns from ranges of their own, which are not known any more: restart each by hand above %d", hapax.ErrNotSupported, strings.Join(s.Names, " and "), next)
	}
	for _, p := range s.parts {
		if p.closed == nil {
			continue
		}
		if s.Kind == "auto_increment" { // the counter first: the trigger keeps everybody from it
			steps = append(steps, fmt.Sprintf("ALTER TABLE %s AUTO_INCREMENT = %d", quoteTick(p.name), next), "DROP TRIGGER IF EXISTS "+quoteTick(triggerName(p.name)))
			continue
		}
		step := max(p.closed.Step, 1)
		next := max(aboveBlock(next, step), p.position+1)
		// On the numbers of its old step: others may count between them.
		next += ((p.closed.At-next)%step + step) % step
		most := p.closed.Max
		if next > most-step { // the tag went on above it
			most = math.MaxInt64 - 1
		}
		if p.closed.Servers {
			step = 0
		}
		// The mark goes last: it stands until all is undone.
		steps = append(steps,
			fmt.Sprintf("ALTER SEQUENCE %s INCREMENT BY %d MAXVALUE %d RESTART WITH %d", quoteTick(p.name), step, most, next),
			fmt.Sprintf("ALTER TABLE %s COMMENT %s", quoteTick(p.name), mysqldb.Quote(p.closed.Comment)))
	}
	return steps, nil
}

// Reopen implements Database.
func (m *mySQL) Reopen(ctx context.Context, s *Source, next int64) error {
	steps, err := m.BackSteps(s, next)
	if err != nil {
		return err
	}
	return m.alone(ctx, s, func(conn *sql.Conn) error { return m.run(ctx, conn, steps) })
}
