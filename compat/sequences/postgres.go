package sequences

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax"
)

// postgres reads PostgreSQL 10 and later, and what speaks as it does.
type postgres struct {
	db   *sql.DB
	opts Options
}

func openPostgres(ctx context.Context, raw string, o Options) (*postgres, error) {
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: the URL of PostgreSQL: %w", hapax.ErrInvalidArgument, err) // pgx leaves the password out
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "hapax"
	}
	if !o.Write {
		cfg.RuntimeParams["default_transaction_read_only"] = "on"
	}
	limit := fmt.Sprintf("%d", o.Timeout.Milliseconds())
	// A statement that waits for a lock has all later ones wait behind it, and the server bounds neither by
	// default.
	cfg.RuntimeParams["statement_timeout"], cfg.RuntimeParams["lock_timeout"] = limit, limit
	cfg.ConnectTimeout = o.Timeout
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(2)
	p := &postgres{db, o}
	if err := p.check(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return p, nil
}

// check refuses a server whose sequences may be behind.
func (p *postgres) check(ctx context.Context) error {
	var replica bool
	if err := p.db.QueryRowContext(ctx, "SELECT pg_is_in_recovery()").Scan(&replica); err != nil {
		return dbError(err)
	}
	if replica {
		return fmt.Errorf("%w: this PostgreSQL is a replica, which may be behind: give the URL of the primary", hapax.ErrInvalidArgument)
	}
	return nil
}

func (p *postgres) Close() error { return p.db.Close() }

// Script implements Database.
func (p *postgres) Script(variable string, steps []string) string {
	var b strings.Builder
	for _, step := range steps {
		document, text := hereDocument(step)
		fmt.Fprintf(&b, "%s %s | psql -v ON_ERROR_STOP=1 -q \"$%s\"\n%s", ForStore, document, variable, text)
	}
	return b.String()
}

const pgSequences = `
SELECT c.oid, n.nspname, c.relname, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
       coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 2, 3`

// pgFeeds are the columns that sequences feed: by a default, as an identity, or as their
// owner. Those of a partition are of its table, which has its rows.
const pgFeeds = `
WITH RECURSIVE feeds AS (
  SELECT d.objid AS seq, d.refobjid AS rel, d.refobjsubid AS num FROM pg_depend d
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
    AND d.objid IN (SELECT seqrelid FROM pg_sequence)
  UNION
  SELECT d.refobjid, ad.adrelid, ad.adnum FROM pg_depend d JOIN pg_attrdef ad ON ad.oid = d.objid
  WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid IN (SELECT seqrelid FROM pg_sequence)
), whole AS (
  SELECT f.seq, f.rel, a.attname FROM feeds f JOIN pg_attribute a ON a.attrelid = f.rel AND a.attnum = f.num
  UNION
  SELECT w.seq, i.inhparent, w.attname FROM whole w JOIN pg_class c ON c.oid = w.rel JOIN pg_inherits i ON i.inhrelid = c.oid
  WHERE c.relispartition
)
SELECT f.seq, n.nspname, c.relname, a.attname, a.attidentity::text, format_type(a.atttypid, a.atttypmod),
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS NULL
          AND (SELECT amname FROM pg_class ic JOIN pg_am am ON am.oid = ic.relam WHERE ic.oid = i.indexrelid) = 'btree'),
  has_column_privilege(c.oid, a.attnum, 'SELECT')
FROM whole f JOIN pg_class c ON c.oid = f.rel JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = f.attname
WHERE NOT c.relispartition AND c.relkind IN ('r', 'p', 'f')
ORDER BY 2, 3, 4`

// pgUnfed are integer keys that no sequence makes, and that are no other table's, each with
// its default.
const pgUnfed = `
SELECT n.nspname, c.relname, a.attname, coalesce(pg_get_expr(ad.adbin, ad.adrelid), '')
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
LEFT JOIN pg_attrdef ad ON ad.adrelid = c.oid AND ad.adnum = a.attnum
WHERE i.indisprimary AND i.indnkeyatts = 1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg_toast%'
  AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype) AND a.attidentity = ''
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_attrdef'::regclass AND d.objid = ad.oid
                  AND d.refclassid = 'pg_class'::regclass AND d.refobjid IN (SELECT seqrelid FROM pg_sequence))
  AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.contype = 'f' AND k.conrelid = c.oid AND k.conkey[1] = a.attnum)
ORDER BY 1, 2`

// pgLast is the largest number of each type.
var pgLast = map[string]int64{"smallint": math.MaxInt16, "integer": math.MaxInt32, "bigint": math.MaxInt64, "numeric": math.MaxInt64}

// Sources implements Database.
func (p *postgres) Sources(ctx context.Context, like string) (all []*Source, others []string, err error) {
	parts, err := p.sequences(ctx)
	if err != nil {
		return nil, nil, err
	}
	kinds, err := p.feeds(ctx, parts)
	if err != nil {
		return nil, nil, err
	}
	all = group(parts, kinds)
	kept := all[:0]
	for _, s := range all {
		if !s.matchesAny(like) {
			continue
		}
		if err := p.read(ctx, s); err != nil {
			return nil, nil, err
		}
		kept = append(kept, s)
	}
	generators, strange, err := p.generators(ctx, like)
	if err != nil {
		return nil, nil, err
	}
	unfed, err := p.unfed(ctx, like, append(slices.Clone(kept), generators...)) // also by --feeds
	return append(kept, generators...), append(strange, unfed...), err
}

// sequences returns all sequences, by their identity.
func (p *postgres) sequences(ctx context.Context) (map[int64]*part, error) {
	rows, err := p.db.QueryContext(ctx, pgSequences)
	if err != nil {
		return nil, dbError(err)
	}
	defer rows.Close()
	all := map[int64]*part{}
	for rows.Next() {
		var oid int64
		q := &part{}
		if err := rows.Scan(&oid, &q.schema, &q.name, &q.step, &q.min, &q.max, &q.cache, &q.cycle, &q.comment); err != nil {
			return nil, dbError(err)
		}
		q.closed = readMark(q.comment)
		all[oid] = q
	}
	return all, dbError(rows.Err())
}

// feeds finds the columns of sequences, and returns what kind of source each sequence is.
func (p *postgres) feeds(ctx context.Context, parts map[int64]*part) (map[*part]string, error) {
	rows, err := p.db.QueryContext(ctx, pgFeeds)
	if err != nil {
		return nil, dbError(err)
	}
	defer rows.Close()
	kinds := map[*part]string{}
	for rows.Next() {
		var seq int64
		var schema, table, identity string
		var c Column
		var readable bool
		if err := rows.Scan(&seq, &schema, &table, &c.Name, &identity, &c.Type, &c.Index, &readable); err != nil {
			return nil, dbError(err)
		}
		q := parts[seq]
		if q == nil {
			continue // of another session's temporary table
		}
		c.Table, c.Qualified, c.schema, c.table = pgName(schema, table), pgQualified(schema, table), schema, table
		c.Create = fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", pgQualified(schema, table), pgColumnName(c.Name))
		c.Widen = pgWiden(c, schema, table)
		c.Always = identity == "a"
		base, _, _ := strings.Cut(c.Type, "(")
		c.Last = pgLast[base]
		// This has read ask for no highest number, which the account may not know.
		if !readable {
			c.Max = -1
		}
		q.columns = append(q.columns, c)
		if identity != "" {
			kinds[q] = "identity"
		} else if kinds[q] == "" {
			kinds[q] = "serial"
		}
	}
	if err := rows.Err(); err != nil {
		return nil, dbError(err)
	}
	for _, q := range parts { // such as Hibernate's, which no default names
		if err := given(ctx, p, p.opts, q, pgName(q.schema, q.name)); err != nil {
			return nil, err
		}
	}
	return kinds, nil
}

func pgWiden(c Column, schema, table string) string {
	return fmt.Sprintf("ALTER TABLE %s ALTER %s TYPE bigint", pgQualified(schema, table), pgColumnName(c.Name))
}

// group makes one source of the sequences that share a column.
func group(parts map[int64]*part, kinds map[*part]string) []*Source {
	var all []*Source
	by := map[string]*Source{} // by column
	sorted := make([]*part, 0, len(parts))
	for _, q := range parts {
		sorted = append(sorted, q)
	}
	slices.SortFunc(sorted, func(a, b *part) int {
		return cmp.Or(cmp.Compare(a.schema, b.schema), cmp.Compare(a.name, b.name))
	})
	for _, q := range sorted {
		s := &Source{}
		for _, c := range q.columns {
			if other := by[c.String()]; other != nil && other != s {
				other.parts, other.Feeds, other.Names = append(other.parts, s.parts...), append(other.Feeds, s.Feeds...), append(other.Names, s.Names...)
				all = slices.DeleteFunc(all, func(x *Source) bool { return x == s })
				s = other
			}
		}
		if len(s.parts) == 0 {
			s.Kind = cmp.Or(kinds[q], "sequence")
			all = append(all, s)
		}
		s.parts, s.Names = append(s.parts, *q), append(s.Names, pgName(q.schema, q.name))
		for _, c := range q.columns {
			if !slices.ContainsFunc(s.Feeds, func(have Column) bool { return have.String() == c.String() }) {
				s.Feeds = append(s.Feeds, c)
			}
			by[c.String()] = s
		}
	}
	nameTags(all)
	return all
}

// nameTags names each source's tag: by the table that it feeds, or else by itself.
func nameTags(all []*Source) {
	tables := map[string]int{}
	for _, s := range all {
		if len(s.Feeds) == 1 {
			tables[s.Feeds[0].Table]++
		}
	}
	for _, s := range all {
		switch {
		case s.Closed != nil && s.Closed.Tag != "":
			s.Tag = s.Closed.Tag
		case len(s.parts) > 0 && s.parts[0].closed != nil:
			s.Tag = s.parts[0].closed.Tag
		case len(s.Feeds) == 1 && tables[s.Feeds[0].Table] == 1:
			s.Tag = s.Feeds[0].Table
		case len(s.Feeds) == 1:
			s.Tag = s.Feeds[0].String()
		default:
			s.Tag = s.Names[0]
		}
	}
}

// read finds where a source is.
func (p *postgres) read(ctx context.Context, s *Source) error {
	for k := range s.parts {
		q := &s.parts[k]
		var called bool
		err := p.db.QueryRowContext(ctx, "SELECT last_value, is_called FROM "+q.quoted()).Scan(&q.position, &called)
		if denied(err) {
			s.wrong("this account may not read %s: GRANT SELECT ON SEQUENCE %s TO …", pgName(q.schema, q.name), q.quoted())
			continue
		}
		if err != nil {
			return dbError(err)
		}
		// One that was never called gives last_value itself next. Between the numbers of one that was halved are
		// the tag's.
		switch {
		case called:
		case q.closed != nil:
			q.position -= q.step
		default:
			q.position--
		}
		switch {
		case q.step < 0:
			s.wrong("%s descends by %d: hapax only counts up", q.name, -q.step)
		case q.cycle && q.closed == nil:
			s.wrong("%s cycles: after %d it begins again at %d; ALTER SEQUENCE %s NO CYCLE first", q.name, q.max, q.min, q.quoted())
		}
	}
	for k := range s.Feeds {
		c := &s.Feeds[k]
		switch {
		case c.Last == 0:
			s.wrong("%s is %s: no column of whole numbers", c, c.Type)
			c.Last = math.MaxInt64
			continue
		case c.Max < 0:
			c.Max = 0
			s.wrong("this account may not read %s: GRANT SELECT ON %s TO …", c, c.Table)
			continue
		}
		if !c.Index {
			s.note("%s has no index, so that its highest number takes a scan: %s", c, c.Create)
		}
		var most sql.Null[int64]
		err := p.db.QueryRowContext(ctx, fmt.Sprintf("SELECT max(%s)::bigint FROM %s", quoteDouble(c.Name), pgQuoted(c.schema, c.table))).Scan(&most)
		if isTimeout(err) {
			s.wrong("the highest number in %s was not found within %v: %s", c, p.opts.Timeout, c.Create)
			continue
		}
		if err != nil {
			return dbError(err)
		}
		c.Max = most.V
		if c.Always {
			s.note("%s is GENERATED ALWAYS: the switch makes it BY DEFAULT, so that it takes numbers", c)
		}
	}
	s.conclude()
	return nil
}

// Position implements Database.
func (p *postgres) Position(ctx context.Context, s *Source) (int64, error) {
	most := int64(math.MinInt64)
	for _, q := range s.parts {
		var at int64
		var err error
		if q.row != "" || q.field != "" {
			at, err = p.generatorAt(ctx, q)
		} else {
			err = p.db.QueryRowContext(ctx, fmt.Sprintf("SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM %s", q.quoted())).Scan(&at)
		}
		if err != nil {
			return 0, dbError(err)
		}
		most = max(most, at)
	}
	return most, nil
}

func (p *postgres) unfed(ctx context.Context, like string, fed []*Source) (all []string, err error) {
	rows, err := p.db.QueryContext(ctx, pgUnfed)
	if err != nil {
		return nil, dbError(err)
	}
	defer rows.Close()
	for rows.Next() {
		var schema, table, column, standard string
		if err := rows.Scan(&schema, &table, &column, &standard); err != nil {
			return nil, dbError(err)
		}
		if name := pgName(schema, table); matches(like, name) && !feedsAny(fed, name, column) {
			all = append(all, unfedText(name, column, standard))
		}
	}
	return all, dbError(rows.Err())
}

// pgName shows a name with its schema, unless that is public.
func pgName(schema, name string) string {
	if schema == "public" {
		return name
	}
	return schema + "." + name
}

// pgPlain matches a name that needs no quotes.
var pgPlain = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// pgQualified returns a name with its schema, quoted where it has to be.
func pgQualified(schema, name string) string {
	if pgPlain.MatchString(schema) && pgPlain.MatchString(name) {
		return schema + "." + name
	}
	return pgQuoted(schema, name)
}

// pgColumnName returns a column's name, quoted where it has to be.
func pgColumnName(name string) string {
	if pgPlain.MatchString(name) {
		return name
	}
	return quoteDouble(name)
}

func quoteDouble(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func pgQuoted(schema, name string) string { return quoteDouble(schema) + "." + quoteDouble(name) }

func (p part) quoted() string { return pgQuoted(p.schema, p.name) }

// sqlText returns a text as a literal of SQL.
func sqlText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func denied(err error) bool { return pgCode(err) == "42501" }

// isTimeout reports whether a statement took too long.
func isTimeout(err error) bool {
	return pgCode(err) == "57014" || errors.Is(err, context.DeadlineExceeded)
}

func pgCode(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// markPrefix begins the comment of a sequence that was shut.
const markPrefix = "shut by hapax: "

func readMark(text string) *Mark {
	rest, ok := strings.CutPrefix(text, markPrefix)
	m := new(Mark)
	if !ok || json.Unmarshal([]byte(rest), m) != nil {
		return nil
	}
	return m
}

// text returns a mark as it stands beside a source; empty for none.
func (m *Mark) text() string {
	if m == nil {
		return ""
	}
	b, _ := json.Marshal(m) // texts and numbers always can be
	return markPrefix + string(b)
}

// own returns the part of a mark's text by which a command knows its own.
func (m *Mark) own() string {
	text := fmt.Sprintf(`"how":%q,"store":%q,"first":%d,`, m.How, m.Store, m.First)
	if m.Token != 0 {
		text += fmt.Sprintf(`"token":%d,`, m.Token)
	}
	return text + `"at":`
}

// ofStore is the part of a mark's text that names a store.
func ofStore(id string) string { return fmt.Sprintf(`"store":%q`, id) }
