package sequences

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
)

// generatorKind is the kind of a row of a table from which JPA's generators take numbers.
const generatorKind = "generator table"

// counting are the columns by which the tables of Hibernate, EclipseLink and OpenJPA are
// known. The first value that nobody took may be an allocation behind what is handed out.
var counting = []string{"next_val", "seq_count", "gen_val", "gen_value", "sequence_value"}

// hiValue is the column of Hibernate's older tables, whose values are to be multiplied by a
// size that no database knows.
const hiValue = "sequence_next_hi_value"

// generating is what the two engines have of such tables.
type generating interface {
	list(ctx context.Context, query string, each func(scan func(...any) error) error) error
	column(ctx context.Context, table, column string) (Column, error)
	highest(ctx context.Context, c Column) (int64, error)
	name(name string) string                                           // quoted
	marks(ctx context.Context, table string) (map[string]*Mark, error) // of rows that are shut
}

const generatorColumns = `SELECT table_name, column_name, data_type FROM information_schema.columns
WHERE table_schema NOT IN ('pg_catalog', 'information_schema', 'mysql', 'performance_schema', 'sys') AND table_schema = %s ORDER BY table_name, ordinal_position`

// generatorsOf returns the rows of generators' tables, and which tables look like one and
// are not understood.
func generatorsOf(ctx context.Context, g generating, current string, o Options, like string) (all []*Source, strange []string, err error) {
	type column struct{ name, kind string }
	tables := map[string][]column{}
	var names []string
	err = g.list(ctx, fmt.Sprintf(generatorColumns, current), func(scan func(...any) error) error {
		var table string
		var c column
		err := scan(&table, &c.name, &c.kind)
		if tables[table] == nil {
			names = append(names, table)
		}
		tables[table] = append(tables[table], c)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, table := range names {
		key, value := "", ""
		for _, c := range tables[table] {
			lower := strings.ToLower(c.name)
			switch {
			case lower == hiValue:
				strange = append(strange, fmt.Sprintf("%s: its column %s is to be multiplied by a size that the database does not know: create its tags by hand, above the columns", table, c.name))
			case slices.Contains(counting, lower):
				value = c.name
			default:
				key = c.name
			}
		}
		switch {
		case value == "":
			continue
		case len(tables[table]) > 2:
			if matches(like, table) {
				strange = append(strange, fmt.Sprintf("%s: its column %s is one that JPA's generators have, and its others are not: if numbers come from it, create its tags by hand, above the columns", table, value))
			}
			continue
		}
		found, err := rowsOf(ctx, g, table, key, value, o, like)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, found...)
	}
	return all, strange, nil
}

// rowsOf returns the rows of a generators' table as sources.
func rowsOf(ctx context.Context, g generating, table, key, value string, o Options, like string) (all []*Source, err error) {
	marks, err := g.marks(ctx, table)
	if err != nil {
		return nil, err
	}
	keyed := sqlText(table)
	if key != "" {
		keyed = g.name(key)
	}
	err = g.list(ctx, fmt.Sprintf("SELECT %s, %s FROM %s ORDER BY 1", keyed, g.name(value), g.name(table)), func(scan func(...any) error) error {
		p := part{name: table, field: value, step: 1, cache: 1, max: math.MaxInt64, comment: key}
		var row string
		if err := scan(&row, &p.position); err != nil {
			return err
		}
		if key != "" {
			p.row = row
		}
		p.closed = marks[p.row]
		if p.closed == nil {
			// A process may hold an allocation above the value, which its row does not tell.
			p.position = min(p.position, math.MaxInt64-o.AllocationSize) + o.AllocationSize
		} else {
			p.position = p.closed.At
		}
		s := &Source{Tag: row, Kind: generatorKind, Names: []string{table + "/" + row}, parts: []part{p}}
		if _, err := strconv.Atoi(row); err == nil { // OpenJPA has rows without names
			s.Tag = table + "." + row
		}
		if p.closed != nil {
			s.Tag = p.closed.Tag
		}
		s.note("%d numbers above its value may be held by a process: --allocation-size", o.AllocationSize)
		all = append(all, s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	// After the list is read: each look at a column is another query, and few connections are open.
	kept := all[:0]
	for _, s := range all {
		row := strings.TrimPrefix(s.Names[0], table+"/")
		fed, given := o.Feeds[row]
		if !given {
			fed = []string{row + ".id"}
		}
		for _, name := range fed {
			at := strings.LastIndex(name, ".")
			c, err := g.column(ctx, name[:at], name[at+1:])
			if err == nil && c.Last > 0 {
				c.Max, err = g.highest(ctx, c)
			}
			switch {
			case err != nil && given:
				return nil, err
			case err != nil, c.Last == 0:
				s.wrong("which columns it feeds is not known: give --feeds %s=TABLE.COLUMN for each", row)
			default:
				s.Feeds = append(s.Feeds, c)
			}
		}
		s.conclude()
		if s.matchesAny(like) {
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// given adds the columns that a sequence feeds and only a person can know of.
func given(ctx context.Context, g generating, o Options, p *part, name string) error {
	for _, fed := range o.Feeds[name] {
		at := strings.LastIndex(fed, ".")
		c, err := g.column(ctx, fed[:at], fed[at+1:])
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(p.columns, func(have Column) bool { return have.String() == c.String() }) {
			p.columns = append(p.columns, c)
		}
	}
	return nil
}

// onlyStop refuses other ways: nothing bounds such a row.
func onlyStop(how Switch) error {
	if how == Stop {
		return nil
	}
	return fmt.Errorf("%w: a generator's table has no bound and no second increment: choose --switch stop", hapax.ErrNotSupported)
}

// generatorMark is what is remembered of a row that is shut.
func (p part) generatorMark(s *Source, o Options, first int64) *Mark {
	return &Mark{Tag: s.Tag, How: Stop, Store: o.Store, First: first, Token: o.Token, At: p.position, Step: 1, Comment: p.row}
}

// hexMarks reads marks from the bodies of triggers, by row.
func hexMarks(bodies []string) map[string]*Mark {
	all := map[string]*Mark{}
	for _, body := range bodies {
		if m := triggerMark(body); m != nil {
			all[m.Comment] = m
		}
	}
	return all
}

func (p *postgres) list(ctx context.Context, query string, each func(scan func(...any) error) error) error {
	rows, err := p.db.QueryContext(ctx, query)
	if err != nil {
		return dbError(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return dbError(err)
		}
	}
	return dbError(rows.Err())
}

func (p *postgres) name(name string) string { return quoteDouble(name) }

func (p *postgres) marks(ctx context.Context, table string) (map[string]*Mark, error) {
	var bodies []string
	err := p.list(ctx, fmt.Sprintf("SELECT f.prosrc FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid WHERE t.tgrelid = to_regclass(%s) AND f.prosrc LIKE '%%%s%%'", sqlText(quoteDouble(table)), remembers), func(scan func(...any) error) error {
		var body string
		err := scan(&body)
		bodies = append(bodies, body)
		return err
	})
	return hexMarks(bodies), err
}

func (p *postgres) generators(ctx context.Context, like string) ([]*Source, []string, error) {
	return generatorsOf(ctx, p, "current_schema()", p.opts, like)
}

// generatorWhere is the condition for a row.
func generatorWhere(p part, quoted func(string) string, text func(string) string) string {
	if p.row == "" {
		return "TRUE"
	}
	return quoted(p.comment) + " = " + text(p.row)
}

func (p *postgres) generatorAt(ctx context.Context, q part) (int64, error) {
	var at int64
	err := p.db.QueryRowContext(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s", quoteDouble(q.field), quoteDouble(q.name), generatorWhere(q, quoteDouble, sqlText))).Scan(&at)
	if err != nil || q.closed != nil {
		return at, dbError(err)
	}
	return at + p.opts.AllocationSize, nil
}

func (p *postgres) generatorSteps(s *Source, how Switch, first int64) ([]string, error) {
	if err := onlyStop(how); err != nil {
		return nil, err
	}
	q := s.parts[0]
	if q.closed != nil {
		return nil, nil
	}
	trigger, mark := quoteDouble(shutName(q)), q.generatorMark(s, p.opts, first)
	is := func(string) string { return "TRUE" }
	if q.row != "" {
		is = func(record string) string { return record + "." + quoteDouble(q.comment) + " = " + sqlText(q.row) }
	}
	const refuse = "RAISE EXCEPTION 'these numbers come from hapax'"
	// Of an INSERT there is no OLD, and of a DELETE no NEW.
	function := dollarQuoted("shut", fmt.Sprintf(`
  DECLARE %s TEXT DEFAULT X'%s';
  BEGIN
    IF TG_OP = 'INSERT' THEN
      IF %s THEN %s; END IF;
      RETURN NEW;
    END IF;
    IF %s THEN %[4]s; END IF;
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    RETURN NEW;
  END `, remembers, hex.EncodeToString([]byte(mark.text())), is("NEW"), refuse, is("OLD")))
	// The lock first, so that no allocation is taken between the look and the trigger.
	return []string{block(fmt.Sprintf(`
DECLARE at bigint; was text;
BEGIN
  LOCK TABLE %[1]s IN EXCLUSIVE MODE;
  was := %[9]s;
  IF strpos(was, '%[10]x') > 0 THEN RETURN; END IF;
  IF was <> '' THEN %[11]s END IF;
  SELECT %[2]s + %[3]d FROM %[1]s WHERE %[4]s INTO at;
  IF at >= %[5]d THEN RAISE EXCEPTION 'the generator is past %[5]d' USING ERRCODE = '%[6]s', DETAIL = at; END IF;
  CREATE OR REPLACE FUNCTION %[7]s() RETURNS trigger LANGUAGE plpgsql AS %[8]s;
  DROP TRIGGER IF EXISTS %[7]s ON %[1]s;
  CREATE TRIGGER %[7]s BEFORE INSERT OR UPDATE OR DELETE ON %[1]s FOR EACH ROW EXECUTE FUNCTION %[7]s();
END `, quoteDouble(q.name), quoteDouble(q.field), p.opts.AllocationSize, generatorWhere(q, quoteDouble, sqlText), first, passedCode,
		trigger, function, pgTrigger(q), mark.own(), raiseTaken(s.Names[0])))}, nil
}

// pgTrigger is what finds the body of a row's trigger.
func pgTrigger(q part) string {
	return fmt.Sprintf("coalesce((SELECT f.prosrc FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid WHERE t.tgrelid = %s::regclass AND t.tgname = %s), '')",
		sqlText(quoteDouble(q.name)), sqlText(shutName(q)))
}

// shutName names the trigger of a row. Only a hash keeps row b_c of table a and row c of table a_b apart.
func shutName(q part) string {
	return fmt.Sprintf("hapax_shut_%x", hashOf(q.name+"\x00"+q.row))
}

func (p *postgres) generatorBackSteps(s *Source, next int64) ([]string, error) {
	q := s.parts[0]
	if q.closed == nil {
		return nil, nil
	}
	// The trigger would refuse the update. Nobody sees the row without it before the commit.
	return []string{block(fmt.Sprintf(`
DECLARE was text;
BEGIN
  LOCK TABLE %[2]s IN ACCESS EXCLUSIVE MODE;
  was := %[6]s;
  IF strpos(was, '%[7]x') = 0 THEN %[8]s END IF;
  DROP TRIGGER %[1]s ON %[2]s;
  DROP FUNCTION %[1]s();
  UPDATE %[2]s SET %[3]s = greatest(%[3]s, %[4]d) WHERE %[5]s;
END `, quoteDouble(shutName(q)), quoteDouble(q.name), quoteDouble(q.field), next+p.opts.AllocationSize, generatorWhere(q, quoteDouble, sqlText),
		pgTrigger(q), q.closed.text(), raiseTaken(s.Names[0])))}, nil
}

func (m *mySQL) list(ctx context.Context, query string, each func(scan func(...any) error) error) error {
	return m.rows(ctx, query, each)
}

func (m *mySQL) name(name string) string { return quoteTick(name) }

func (m *mySQL) marks(ctx context.Context, table string) (map[string]*Mark, error) {
	var bodies []string
	err := m.rows(ctx, "SELECT ACTION_STATEMENT FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ?", func(scan func(...any) error) error {
		var body string
		err := scan(&body)
		bodies = append(bodies, body)
		return err
	}, m.schema, table)
	return hexMarks(bodies), err
}

func (m *mySQL) generatorAt(ctx context.Context, q part) (at int64, err error) {
	err = m.rows(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s", quoteTick(q.field), quoteTick(q.name), generatorWhere(q, quoteTick, mysqldb.Quote)), func(scan func(...any) error) error { return scan(&at) })
	if err != nil || q.closed != nil {
		return at, err
	}
	return at + m.opts.AllocationSize, nil
}

func (m *mySQL) generatorSteps(s *Source, how Switch, first int64) ([]shutting, error) {
	if err := onlyStop(how); err != nil {
		return nil, err
	}
	q := s.parts[0]
	if q.closed != nil {
		return nil, nil
	}
	is := func(string) string { return "" }
	if q.row != "" {
		is = func(record string) string {
			return " AND " + record + "." + quoteTick(q.comment) + " = " + mysqldb.Quote(q.row)
		}
	}
	mark := q.generatorMark(s, m.opts, first)
	body := func(declare, record string) string {
		return fmt.Sprintf(` ON %s FOR EACH ROW
BEGIN
%s  IF COALESCE(%s, 0) <> 1%s THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'these numbers come from hapax';
  END IF;
END`, quoteTick(q.name), declare, opens, is(record))
	}
	var steps []string
	for _, g := range generatorGuards(q) {
		steps = append(steps, m.createTrigger()+" "+g.name+" BEFORE "+g.event+body("", g.record))
	}
	// The mark last: it says that all of this was done.
	steps = append(steps, m.createTrigger()+" "+quoteTick(shutName(q))+" BEFORE UPDATE"+body(fmt.Sprintf("  DECLARE %s TEXT DEFAULT X'%x';\n", remembers, mark.text()), "OLD"))
	return []shutting{{q, mark, steps}}, nil
}

// A guard is a trigger beside the one that holds the mark: a program may count by taking its row away
// and putting it back.
type guard struct{ name, event, record string }

func generatorGuards(q part) []guard {
	return []guard{{quoteTick(shutName(q) + "_d"), "DELETE", "OLD"}, {quoteTick(shutName(q) + "_i"), "INSERT", "NEW"}}
}

// unguard returns the statements that drop what stands beside the mark.
func (s *Source) unguard(q part) (steps []string) {
	if s.Kind == generatorKind {
		for _, g := range generatorGuards(q) {
			steps = append(steps, "DROP TRIGGER IF EXISTS "+g.name)
		}
	}
	return steps
}

// opens is the variable of a session by which a trigger lets the command through that opens a generator.
const opens = "@hapax_opens"

func (m *mySQL) generatorBackSteps(s *Source, next int64) ([]string, error) {
	q := s.parts[0]
	if q.closed == nil {
		return nil, nil
	}
	// Raised while the trigger stands: a program that came between would take a block of the tag's numbers. It
	// goes last, as its mark says that the rest is to be undone.
	steps := []string{
		"SET " + opens + " = 1",
		fmt.Sprintf("UPDATE %s SET %s = GREATEST(%s, %d) WHERE %s", quoteTick(q.name), quoteTick(q.field), quoteTick(q.field), next+m.opts.AllocationSize, generatorWhere(q, quoteTick, mysqldb.Quote)),
		"SET " + opens + " = NULL",
	}
	return append(append(steps, s.unguard(q)...), "DROP TRIGGER IF EXISTS "+quoteTick(shutName(q))), nil
}
