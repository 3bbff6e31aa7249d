package sequences

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math"
	"regexp"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
)

// Why AUTO_INCREMENT has one way only: a number from elsewhere that is inserted moves the
// counter above it, so that a writer that goes on would issue the numbers that hapax issues
// next; and its increment is the server's, for all tables and new sessions alone.
const oneWay = "AUTO_INCREMENT moves above every number that is inserted, also those of hapax: choose --switch stop"

// triggerName is that of the trigger that shuts a table.
func triggerName(table string) string { return cut("hapax_shut_" + table) }

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

// cut keeps to MySQL's 64 letters.
func cut(name string) string {
	if r := []rune(name); len(r) > 64 {
		return string(r[:64])
	}
	return name
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

// Steps implements Database. In a script, what Shut looks at afterwards is a statement that
// fails where the source is past the tag's first number.
func (m *mySQL) Steps(s *Source, how Switch, first int64) ([]string, error) {
	steps, err := m.steps(s, how, first)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	if strings.HasPrefix(steps[0], createTrigger+" `") { // it cannot be repeated, and the table is not to be open in between
		p := s.parts[0]
		steps[0] = fmt.Sprintf("LOCK TABLES %s WRITE//\nDROP TRIGGER IF EXISTS %s//\n%s//\nUNLOCK TABLES", quoteTick(p.name), quoteTick(s.trigger(p)), steps[0])
	}
	const past = "SELECT EXP(IF(%s >= %d, 1000, 0)) AS `an error here: past the tag's first number`%s" // Script says what to do
	switch p := s.parts[0]; s.Kind {
	case generatorKind:
		steps = append(steps, fmt.Sprintf(past, fmt.Sprintf("%s + %d", quoteTick(p.field), m.opts.AllocationSize), first,
			fmt.Sprintf(" FROM %s WHERE %s", quoteTick(p.name), generatorWhere(p, quoteTick, mysqldb.Quote))))
	case "auto_increment":
		fresh := ""
		if !m.maria && !m.old {
			fresh = freshCounters + "//\n" // of the same session
		}
		steps = append(steps, fresh+fmt.Sprintf(past, "AUTO_INCREMENT", first+1,
			fmt.Sprintf(" FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s", mysqldb.Quote(p.name))))
	}
	return steps, nil
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

func (m *mySQL) steps(s *Source, how Switch, first int64) (steps []string, err error) {
	if s.Kind == generatorKind {
		return m.generatorSteps(s, how)
	}
	if err := checkParity(s, how); err != nil {
		return nil, err
	}
	for _, p := range s.parts {
		if p.closed != nil && (p.closed.How == how || how == Parity) {
			continue
		}
		mark := Mark{Tag: s.Tag, How: how, At: p.position, Max: p.max, Step: p.step, Servers: p.servers, Comment: p.comment}
		if p.closed != nil {
			mark.Max, mark.Step, mark.Servers, mark.Comment = p.closed.Max, p.closed.Step, p.closed.Servers, p.closed.Comment
		}
		if s.Kind == "auto_increment" {
			if how != Stop {
				return nil, fmt.Errorf("%w: %s", hapax.ErrNotSupported, oneWay)
			}
			steps = append(steps, m.shutTable(p, mark))
			continue
		}
		// There are no transactions around these: the sequence first gets an end in front of
		// the tag, so that nothing that happens between two of them does harm.
		name := quoteTick(p.name)
		// An end has to be above the least value.
		most := max(first-1, p.min+1)
		if p.closed != nil && p.closed.How == Parity {
			most = p.position + halvedMargin
		}
		steps = append(steps, fmt.Sprintf("ALTER SEQUENCE %s MAXVALUE %d NOCYCLE", name, most))
		switch how {
		case Parity:
			steps = append(steps, fmt.Sprintf("ALTER SEQUENCE %s INCREMENT BY 2 MAXVALUE %d RESTART WITH %d", name, p.max, first+1-first%2))
		case Stop:
			steps = append(steps, fmt.Sprintf("SELECT SETVAL(%s, %d, 1)", name, most))
			mark.At = most
		default:
			mark.At = most
		}
		// The mark last: it says that all of this was done.
		steps = append(steps, fmt.Sprintf("ALTER TABLE %s COMMENT %s", name, mysqldb.Quote(mark.text())))
	}
	return steps, nil
}

// shutTable is the statement after which a table takes no row without a number.
func (m *mySQL) shutTable(p part, mark Mark) string {
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
	steps, err := m.steps(s, how, first)
	if err != nil || len(steps) == 0 {
		return err
	}
	at, err := m.Position(ctx, s)
	if err != nil {
		return err
	}
	halved := s.Closed != nil && s.Closed.How == Parity
	if at >= first && !halved {
		return &PassedError{At: at}
	}
	if s.Kind != "auto_increment" && s.Kind != generatorKind {
		return m.shutSequences(ctx, s, steps, first, halved)
	}
	if err := m.run(ctx, steps); err != nil {
		return err
	}
	// Once more: what was added before the trigger stood counts.
	if at, err = m.Position(ctx, s); err != nil {
		return err
	}
	if at < first {
		return nil
	}
	for _, p := range s.parts { // else a repeated call would take it for shut in time
		if err := m.run(ctx, []string{"DROP TRIGGER IF EXISTS " + quoteTick(s.trigger(p))}); err != nil {
			return err
		}
	}
	return &PassedError{At: at}
}

// shutSequences sets the end of each sequence first, and looks once more where it is.
func (m *mySQL) shutSequences(ctx context.Context, s *Source, steps []string, first int64, halved bool) error {
	for k, step := range steps {
		if err := m.run(ctx, []string{step}); err != nil {
			return err
		}
		if k > 0 || halved {
			continue
		}
		at, err := m.Position(ctx, s)
		if err == nil && at >= first {
			// Its end is given back, so that it is left as it was found.
			err = m.run(ctx, []string{fmt.Sprintf("ALTER SEQUENCE %s MAXVALUE %d", quoteTick(s.parts[0].name), s.parts[0].max)})
			if err == nil {
				return &PassedError{At: at}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Script implements Database.
func (m *mySQL) Script(variable string, steps []string) string {
	var b strings.Builder
	for _, step := range steps {
		document, text := hereDocument("DELIMITER //\n" + step + "//")
		fmt.Fprintf(&b, "hapax_mysql \"$%s\" %s || { echo 'If a value is out of range, the source is past its tag'\"'\"'s first number: make the plan anew.' >&2; exit 1; }\n%s", variable, document, text)
	}
	return b.String()
}

func (m *mySQL) run(ctx context.Context, steps []string) error {
	conn, err := m.db.SQL.Conn(ctx)
	if err != nil {
		return m.fail(ctx, "a session", err)
	}
	defer conn.Close()
	// A statement that waits for a table has all later ones wait behind it, and the server's own limit may be a
	// year.
	wait := max(1, int64(m.opts.Timeout.Seconds()))
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", wait)); err != nil {
		return m.fail(ctx, "a session", err)
	}
	for _, step := range steps {
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
	return m.run(ctx, steps)
}
