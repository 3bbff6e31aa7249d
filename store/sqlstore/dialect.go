package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/hapax-id/hapax"
)

// A Dialect names a kind of database.
type Dialect string

// The dialects.
const (
	MySQL      Dialect = "mysql" // and MariaDB
	PostgreSQL Dialect = "postgres"
)

// DefaultPrefix begins the names of the tables unless the URL has another
// prefix.
const DefaultPrefix = "hapax_"

var prefixPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,31}$`)

// A dialect is what differs between the databases. Queries have question marks
// for their arguments.
type dialect interface {
	name() Dialect

	// connector makes plain connections, with the session set up.
	connector() driver.Connector

	// inspect asks the server on the other end what it is.
	inspect(ctx context.Context, s session) (server, error)

	// schema returns the statements that create the tables.
	schema(prefix string) []string

	// bind puts the database's placeholders into a query.
	bind(query string) string

	// args converts arguments: text as string, bytes as []byte.
	args(args []any) []any

	// raise returns the assignment that sets a tag's mark to the expression, and
	// what ends the UPDATE, so that swap can return the new mark.
	raise(expression string) (assignment, suffix string)

	// swap runs an UPDATE of at most one tag, and returns its mark and whether
	// there was one.
	swap(ctx context.Context, db *sql.DB, query string, args []any) (mark int64, ok bool, err error)

	// clock is an expression for the server's time in microseconds since 1970.
	clock() string

	// classify tells what a server's error means.
	classify(err error) class

	// answered tells whether the error came from the server itself.
	answered(err error) bool
}

// A server is what a connection leads to.
type server struct {
	identity string   // of the primary; empty: unknown
	quorum   bool     // commits survive the loss of this server
	readOnly string   // why it does not accept writes; empty: it does
	lossy    []string // settings that let it lose what it acknowledged
}

// Schema returns the script that creates the tables, as Open does; mysql.sql and
// postgres.sql beside this file are it for the default prefix. The prefix
// begins their names: lower-case letters, digits and underscores, at most 32;
// empty: DefaultPrefix.
func Schema(d Dialect, prefix string) (string, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if err := checkPrefix(prefix); err != nil {
		return "", err
	}
	var impl dialect
	switch d {
	case MySQL:
		impl = &mysqlDialect{}
	case PostgreSQL:
		impl = &postgresDialect{}
	default:
		return "", &hapax.ValueError{Field: "dialect", Value: string(d), Allowed: `"mysql" or "postgres"`, Err: hapax.ErrInvalidArgument}
	}
	return strings.Join(impl.schema(prefix), ";\n\n") + ";\n", nil
}

// tables returns the statements of a script, with the prefix of their tables.
func tables(script, prefix string) []string {
	script = strings.ReplaceAll(strings.TrimSuffix(script, ";\n"), " "+DefaultPrefix, " "+prefix)
	return strings.Split(script, ";\n\n")
}

func checkPrefix(prefix string) error {
	if !prefixPattern.MatchString(prefix) {
		return &hapax.ValueError{Field: "prefix", Value: prefix, Allowed: "1 to 32 of a-z, 0-9 and _, no digit first", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// parseURL chooses the dialect by the URL's scheme. No error holds the URL,
// which may hold a password.
func parseURL(raw string, opts Options) (dialect, string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, "", fmt.Errorf("%w: the store URL is malformed; special characters in its user, password and parameters must be percent-encoded", hapax.ErrInvalidArgument)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, "", fmt.Errorf("%w: the store URL's parameters are malformed", hapax.ErrInvalidArgument)
	}
	prefix := DefaultPrefix
	if query.Has("prefix") {
		prefix = query.Get("prefix")
		query.Del("prefix")
	}
	if err := checkPrefix(prefix); err != nil {
		return nil, "", err
	}
	u.RawQuery = query.Encode()
	var d dialect
	switch u.Scheme {
	case "mysql":
		d, err = newMySQL(u, query, opts)
	case "postgres", "postgresql":
		d, err = newPostgres(u, opts)
	default:
		err = &hapax.ValueError{Field: "scheme", Value: u.Scheme, Allowed: `"mysql" or "postgres"`, Err: hapax.ErrInvalidArgument}
	}
	return d, prefix, err
}

// statements are the queries of one store.
type statements struct {
	schema []string
	tables []string // one query for each table, which fails if it is missing

	meta, metaAll, metaInsert, metaUpdate       string
	clock                                       string
	tag, tagPage, tagInsert, tagSwap            string
	pool, pools, poolInsert                     string
	worker, workers, workerInsert, workerUpdate string
}

const (
	tagColumns    = "name, kind, start, step, min_step, max_step, mark, pool, deleted"
	workerColumns = "pool, id, mark, epoch, holder, expires"
)

func newStatements(d dialect, prefix string) statements {
	// A write applies only in the store whose ID it names.
	const here = " FROM {meta} WHERE name = 'store_id' AND value = ?"
	mark, returning := d.raise("GREATEST(mark + ?, ?)")
	s := statements{
		schema: d.schema(prefix),

		meta:       "SELECT value FROM {meta} WHERE name = ?",
		metaAll:    "SELECT name, value FROM {meta}",
		metaInsert: "INSERT INTO {meta} (name, value) VALUES (?, ?)",
		metaUpdate: "UPDATE {meta} SET value = ? WHERE name = ? AND value = ?",

		clock: "SELECT " + d.clock(),

		tag:       "SELECT " + tagColumns + " FROM {tags} WHERE name = ?",
		tagPage:   "SELECT " + tagColumns + " FROM {tags} WHERE name > ? ORDER BY name LIMIT ?",
		tagInsert: "INSERT INTO {tags} (" + tagColumns + ") SELECT ?, ?, ?, ?, ?, ?, ?, ?, FALSE" + here,
		tagSwap: "UPDATE {tags} SET kind = ?, start = ?, step = ?, min_step = ?, max_step = ?, pool = ?, deleted = ?, " +
			mark +
			" WHERE name = ? AND kind = ? AND start = ? AND step = ? AND min_step = ? AND max_step = ? AND pool = ? AND deleted = ?" +
			" AND mark <= ? AND EXISTS (SELECT 1" + here + ")" + returning,

		pool:       "SELECT layout FROM {pools} WHERE name = ?",
		pools:      "SELECT name, layout FROM {pools} ORDER BY name",
		poolInsert: "INSERT INTO {pools} (name, layout) SELECT ?, ?" + here,

		worker:       "SELECT " + workerColumns + " FROM {workers} WHERE pool = ? AND id = ?",
		workers:      "SELECT " + workerColumns + " FROM {workers} WHERE pool = ? ORDER BY id",
		workerInsert: "INSERT INTO {workers} (" + workerColumns + ") SELECT ?, ?, ?, ?, ?, ?" + here,
		workerUpdate: "UPDATE {workers} SET mark = ?, epoch = ?, holder = ?, expires = ?" +
			" WHERE pool = ? AND id = ? AND epoch = ? AND mark = ? AND EXISTS (SELECT 1" + here + ")",
	}
	names := strings.NewReplacer("{meta}", prefix+"meta", "{tags}", prefix+"tags", "{pools}", prefix+"pools", "{workers}", prefix+"workers")
	for _, q := range []*string{
		&s.meta, &s.metaAll, &s.metaInsert, &s.metaUpdate, &s.clock, &s.tag, &s.tagPage, &s.tagInsert, &s.tagSwap,
		&s.pool, &s.pools, &s.poolInsert, &s.worker, &s.workers, &s.workerInsert, &s.workerUpdate,
	} {
		*q = d.bind(names.Replace(*q))
	}
	for _, table := range []string{"meta", "tags", "pools", "workers"} {
		s.tables = append(s.tables, "SELECT 1 FROM "+prefix+table+" LIMIT 1")
	}
	return s
}
