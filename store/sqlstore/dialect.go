package sqlstore

import (
	"context"
	"database/sql"
	"slices"
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
	quiet  string // a statement that waits for writers of the rows; empty: none is needed

	texts bool // values are texts; see dialect.text

	// enter sets a session up and asks the server what it is, in one round trip where it can. The
	// mark is that of the connection, by which the session is known again.
	enter func(ctx context.Context, c *sql.Conn, mark string) (server, error)

	// inspect asks the server on the other end what it is.
	inspect func(ctx context.Context, c *sql.Conn) (server, error)

	// counts refuses a handle whose driver counts rows otherwise than the store needs; nil: none does.
	counts func(ctx context.Context, c *sql.Conn, s *Store) error

	// bind puts the database's placeholders into a query.
	bind func(query string) string

	// args converts arguments: text as string, bytes as []byte.
	args func(args []any) []any

	// get reads rows. steps has a statement for each shape of a step, in a database where the shape
	// settles the statement.
	get   string
	steps []string

	// findRows reads the items' rows into them, and locks the rows if lock is set. stepRows makes a
	// step, by itself or, with locked rows, inside a transaction.
	findRows func(ctx context.Context, c *sql.Conn, s *Store, items []*item, lock bool) error
	stepRows func(ctx context.Context, c *sql.Conn, s *Store, step driver.Step, items []*item, locked lockedRows) (driver.Result, error)

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
	anyRow string // finds a row

	whole, meta, metaInsert, metaClosed, clock, scan, get string
	steps                                                 []string // see postgresSteps

	names *strings.Replacer // of the tables, and of the expression that reads a value
}

// fromHere ends a query that applies only in the store that it names.
const fromHere = " FROM {meta} WHERE name = '" + metaStoreID + "' AND value = ?"

func newStatements(d *dialect, prefix string) statements {
	s := statements{
		// What reads a whole table does so along its key: see the session of PostgreSQL.
		whole:      "SELECT name, value FROM {meta} WHERE format = ? AND EXISTS (SELECT 1 FROM {rows}) ORDER BY name",
		meta:       "SELECT name, value, format FROM {meta} ORDER BY name",
		metaInsert: "INSERT INTO {meta} (name, value, format) VALUES (?, ?, ?)",
		metaClosed: "INSERT INTO {meta} (name, value, format) VALUES (?, ?, ?), (?, ?, ?)",
		clock:      "SELECT " + d.clock,
		scan: "SELECT '' AS name, value" + fromHere +
			" UNION ALL (SELECT name, {value} FROM {rows} WHERE tbl = ? AND name > ? ORDER BY name LIMIT ?)",
		get:    d.get,
		steps:  slices.Clone(d.steps),
		anyRow: "SELECT 1 FROM {rows} ORDER BY tbl, name LIMIT 1",
		names:  strings.NewReplacer("{meta}", prefix+"meta", "{rows}", prefix+"rows", "{value}", bounded),
		schema: d.schema(prefix),
	}
	all := []*string{&s.whole, &s.meta, &s.metaInsert, &s.metaClosed, &s.clock, &s.scan, &s.get, &s.anyRow}
	for i := range s.steps {
		all = append(all, &s.steps[i])
	}
	for _, q := range all {
		*q = d.bind(s.names.Replace(*q))
	}
	return s
}
