package sqlstore

import (
	"context"
	"database/sql"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore/internal/handle"
)

// A Dialect names a kind of database.
type Dialect string

// The dialects.
const (
	MySQL      Dialect = "mysql" // and MariaDB
	PostgreSQL Dialect = "postgres"
)

// DefaultPrefix begins the names of the tables unless there is another prefix.
const DefaultPrefix = "hapax_"

// A dialect is what differs between the databases. Queries have question marks
// for their arguments.
type dialect struct {
	name   Dialect
	script string // creates the tables

	// bytes and hash are the types of the columns for bytes and for hashes.
	bytes, hash string

	// session are the statements that set a session up.
	session []string

	// enter sets a session up and asks the server what it is, in one round trip where it can. The
	// mark is that of the connection, by which the session is known again.
	enter func(ctx context.Context, c *sql.Conn, d *dialect, mark string) (server, error)

	// inspect asks the server on the other end what it is.
	inspect func(ctx context.Context, c *sql.Conn) (server, error)

	// bind puts the database's placeholders into a query.
	bind func(query string) string

	// args converts arguments: text as string, bytes as []byte.
	args func(args []any) []any

	// allocate is the assignments of an allocation. Their arguments are those
	// that allocateArgs returns for the hash of the caller's last key, the new
	// one, and the width.
	allocate     string
	allocateArgs func(last, next string, width int64) []any

	// raise is the assignment that raises the mark to its argument, if it is
	// below.
	raise string

	// returning ends a query that allocate or raise is part of, and swap runs it.
	// It returns the new mark, and reports whether a row was changed. run is -1
	// where the last key was that of the last allocation, but the run is not
	// known, and 0 where it was not.
	returning string
	swap      func(ctx context.Context, c *sql.Conn, query string, args []any) (mark, run int64, ok bool, err error)

	// mark is a query for one tag's new mark, key and run; setMarks gives those of
	// {marks} to their tags.
	mark, setMarks string

	// guarded returns the queries of guarded calls, given the condition that the
	// store is the one it was (from its FROM on) and the comparison of a tag with
	// its definition. answer runs one of them; its arguments are in order.
	guarded func(d *dialect, here, same string) map[guardedCall]*guardedQuery
	answer  func(ctx context.Context, c *sql.Conn, s *Store, call guardedCall, p pulse, args []any) (guardedAnswer, error)

	// handBackAll notes in given which hand-backs it has made, where the beat was.
	handBackAll func(ctx context.Context, c *sql.Conn, s *Store, all []driver.HandBackOf, given []bool, query query) error

	clock    string                // the server's time in microseconds since 1970
	classify func(err error) class // what a server's error means
	answered func(err error) bool  // whether the error came from the server itself
}

// A server is what a connection leads to.
type server struct {
	identity string   // see driver.Contact.Primary; empty: unknown
	settle   []string // statements by which a session of a cluster sees what others acknowledged
	readOnly string   // why it does not accept writes; empty: it does
	lossy    []string // settings that let it lose what it acknowledged
}

func dialectOf(d Dialect) (*dialect, error) {
	switch d {
	case MySQL:
		return &mysqlDialect, nil
	case PostgreSQL:
		return &postgresDialect, nil
	}
	return nil, &hapax.ValueError{Field: "dialect", Value: string(d), Allowed: `"mysql" or "postgres"`, Err: hapax.ErrInvalidArgument}
}

// Schema returns the script that creates the tables, as New does; mysql.sql and
// postgres.sql beside this file are it for the default prefix. The prefix
// begins their names: lower-case letters, digits and underscores, at most 32;
// empty: DefaultPrefix.
func Schema(d Dialect, prefix string) (string, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if err := handle.CheckPrefix(prefix); err != nil {
		return "", err
	}
	impl, err := dialectOf(d)
	if err != nil {
		return "", err
	}
	return strings.Join(impl.schema(prefix), ";\n\n") + ";\n", nil
}

// schema returns the statements that create the tables.
func (d *dialect) schema(prefix string) []string {
	script := strings.ReplaceAll(strings.TrimSuffix(d.script, ";\n"), " "+DefaultPrefix, " "+prefix)
	return strings.Split(script, ";\n\n")
}

// statements are the queries of one store.
type statements struct {
	schema []string
	anyOf  []string // a query for each table but meta, that finds a row of it

	whole                                                                    string // see Store.isWhole
	meta, metaInsert, here, clock                                            string
	tag, tagsNamed, tagPage, tagInsert, tagAllocate, tagRun, tagEdit, tagEnd string
	tagBegin                                                                 string // where the run began
	tagEndAll                                                                string // see mysqlHandBackAll
	tagsLocked, tagSetMarks                                                  string // see lockTags, AllocateAllWith
	row, rowPage, rowInsert, rowUpdate, rowDelete                            string

	fenced, addFencing, tagHeal string
	guarded                     map[guardedCall]*guardedQuery

	// See olderStatements.
	format, setFormat, renameID                                         string
	olderWorkers, olderHeld, olderPools, olderMoved, olderKept, rowMove string
	addFormat, moveOlder, fillTags                                      []string
}

// A hand-back, in a query of its own and under a pulse: its assignments, and what
// it expects of the tag.
const (
	ending = "key_hash = '', run = 0, token = token + 1, mark = ?"
	held   = "NOT deleted AND mark = ? AND token = ? AND key_hash = ? AND mark - run <= ?"
)

// definition is what a tag is changed and compared by.
var definition = []string{"kind", "start", "step", "min_step", "max_step", "delta", "remainder", "pool", "extra", "deleted", "token"}

func newStatements(d *dialect, prefix string) statements {
	// A write applies only in the store whose ID it names.
	here := " FROM {meta} WHERE name IN ('" + metaStoreID + "', '" + metaStoreIDBefore + "') AND value = ?"
	still := " AND EXISTS (SELECT 1" + here + ")"
	same := strings.Join(definition, " = ? AND ") + " = ?"
	columns := "name, mark, " + strings.Join(definition, ", ")
	s := statements{
		guarded: d.guarded(d, here, same),

		// What reads a whole table does so along its key: see the session of PostgreSQL.
		whole:      "SELECT name, value FROM {meta} WHERE format = ? AND EXISTS (SELECT 1 FROM {rows}) AND NOT EXISTS (SELECT token FROM {tags} WHERE name = '') ORDER BY name",
		meta:       "SELECT name, value FROM {meta} ORDER BY name",
		metaInsert: "INSERT INTO {meta} (name, value, format) VALUES (?, ?, ?)",
		here:       "SELECT 1" + here,
		clock:      "SELECT " + d.clock,

		tag:         "SELECT " + columns + " FROM {tags} WHERE name = ?",
		tagsNamed:   "SELECT " + columns + " FROM {tags}",
		tagsLocked:  "SELECT " + columns + ", key_hash, run FROM {tags}",
		tagSetMarks: d.setMarks,
		tagPage:     "SELECT " + columns + " FROM {tags} WHERE name > ? ORDER BY name LIMIT ?",
		tagInsert:   "INSERT INTO {tags} (" + columns + ", key_hash, run) SELECT ?, ?" + strings.Repeat(", ?", len(definition)) + ", '', 0" + here,
		tagAllocate: "UPDATE {tags} SET " + d.allocate + " WHERE name = ? AND " + same + " AND mark <= ?" + still +
			d.returning,
		tagBegin: "SELECT mark - run FROM {tags} WHERE name = ?",
		tagRun:   "SELECT run FROM {tags} WHERE name = ? AND key_hash = ?",
		// See driver.Tag.Floored. The token stands last in a definition.
		tagEdit: "UPDATE {tags} SET " + strings.Join(definition[:len(definition)-1], " = ?, ") + " = ?," +
			" token = token + CASE WHEN mark >= ? AND mark - run < ? THEN 1 ELSE 0 END," +
			" key_hash = CASE WHEN mark - run < ? THEN '' ELSE key_hash END, run = CASE WHEN mark - run < ? THEN 0 ELSE run END, " + d.raise +
			" WHERE name = ? AND " + same + still + d.returning,
		tagEnd:    "UPDATE {tags} SET " + ending + " WHERE name = ? AND " + held + still,
		tagEndAll: "UPDATE {tags} t JOIN ({returns}) h ON t.name = h.name SET " + strings.Replace(ending, "mark = ?", "t.mark = h.mark", 1),
		tagHeal: "UPDATE {tags} SET mark = GREATEST(mark, ?), token = GREATEST(token, ?) + 1, key_hash = '', run = 0" +
			" WHERE name = ? AND kind = ? AND pool = ?" + still,

		fenced:     "SELECT token FROM {tags} WHERE name = ''",
		addFencing: "ALTER TABLE {tags} ADD COLUMN token BIGINT NOT NULL DEFAULT 0",

		row:       "SELECT value FROM {rows} WHERE tbl = ? AND name = ?",
		rowPage:   "SELECT name, value FROM {rows} WHERE tbl = ? AND name > ? ORDER BY name LIMIT ?",
		rowInsert: "INSERT INTO {rows} (tbl, name, value) SELECT ?, ?, ?" + here,
		rowUpdate: "UPDATE {rows} SET value = ? WHERE tbl = ? AND name = ? AND value = ?" + still,
		rowDelete: "DELETE FROM {rows} WHERE tbl = ? AND name = ? AND value = ?" + still,
	}
	s.olderStatements(d)
	names := strings.NewReplacer("{meta}", prefix+"meta", "{tags}", prefix+"tags", "{rows}", prefix+"rows", "{pools}", prefix+"pools", "{workers}", prefix+"workers")
	for _, list := range [][]string{s.addFormat, s.moveOlder, s.fillTags} {
		for i := range list {
			list[i] = names.Replace(list[i])
		}
	}
	for _, q := range []*string{
		&s.whole, &s.meta, &s.metaInsert, &s.here, &s.clock,
		&s.tag, &s.tagsNamed, &s.tagPage, &s.tagInsert, &s.tagAllocate, &s.tagRun, &s.tagBegin, &s.tagEdit, &s.tagEnd, &s.tagEndAll, &s.tagsLocked, &s.tagSetMarks,
		&s.row, &s.rowPage, &s.rowInsert, &s.rowUpdate, &s.rowDelete, &s.fenced, &s.addFencing, &s.tagHeal,
		&s.format, &s.setFormat, &s.renameID, &s.olderWorkers, &s.olderHeld, &s.olderPools, &s.olderMoved, &s.olderKept, &s.rowMove,
	} {
		*q = d.bind(names.Replace(*q))
	}
	for _, q := range s.guarded {
		q.compile(d, names)
	}
	s.schema = d.schema(prefix)
	s.anyOf = []string{"SELECT 1 FROM " + prefix + "tags ORDER BY name LIMIT 1", "SELECT 1 FROM " + prefix + "rows ORDER BY tbl, name LIMIT 1"}
	return s
}
