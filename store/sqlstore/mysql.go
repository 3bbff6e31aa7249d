package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/hapax-id/hapax"
)

// Names are VARBINARY, so that they are compared and ordered byte by byte,
// trailing spaces included.
//
//go:embed mysql.sql
var mysqlScript string

var mysqlDialect = dialect{
	name:    MySQL,
	script:  mysqlScript,
	enter:   mysqlEnter,
	inspect: mysqlInspect,
	bind:    func(query string) string { return query },
	args:    mysqlArgs,
	counts:  mysqlCounts,

	findRows: mysqlFind,
	stepRows: mysqlStepRows,

	clock:    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
	classify: mysqlClassify,
	answered: func(err error) bool { return mysqlNumber(err) != 0 },
}

// mysqlEnter sets a session up. The strict mode refuses values that a column cannot hold instead of
// cutting them. A chained transaction would keep what was acknowledged open, and a limit of rows would
// hide some. The isolation level is the one that every binlog format allows; the name of its
// variable depends on the version.
func mysqlEnter(ctx context.Context, c *sql.Conn, _ string) (server, error) {
	for _, statement := range []string{
		"SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', " +
			"completion_type = 0, sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0",
		"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
	} {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return server{}, err
		}
	}
	return mysqlInspect(ctx, c)
}

// mysqlCounts refuses a handle that counts each row which a statement has found, also where that
// changed nothing: a tag that was there would count like one that was added, and be two handles' own.
func mysqlCounts(ctx context.Context, c *sql.Conn, s *Store) error {
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // the row is for the server to count
	const twice = "INSERT INTO {rows} (tbl, name, value) SELECT v.tbl, v.name, v.value FROM (" + mysqlValues + " UNION ALL " + mysqlValues + ") v ON DUPLICATE KEY UPDATE value = {rows}.value"
	result, err := tx.ExecContext(ctx, s.sql.names.Replace(twice), "probe", s.run, "", "probe", s.run, "")
	if err != nil {
		return err
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return err
	case n != 1:
		return fmt.Errorf("%w: the database handle counts rows that a statement has found and not changed: open it without clientFoundRows", hapax.ErrStoreUnsafe)
	}
	return nil
}

// mysqlInspect reads the variables that the server has of those that matter;
// which exist depends on its kind and version.
func mysqlInspect(ctx context.Context, c *sql.Conn) (server, error) {
	vars, err := mysqlPairs(ctx, c, `SHOW GLOBAL VARIABLES WHERE Variable_name IN (
		'version', 'server_uuid', 'server_uid', 'hostname', 'port', 'wsrep_on', 'group_replication_group_name',
		'read_only', 'super_read_only', 'innodb_read_only',
		'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin')`)
	if err != nil {
		return server{}, err
	}
	var srv server
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if v := vars[name]; v != "" && v != "OFF" && v != "0" {
			srv.readOnly = "the server has " + name + " = " + v
		}
	}
	if v := vars["innodb_flush_log_at_trx_commit"]; v != "1" {
		srv.lossy = append(srv.lossy, "innodb_flush_log_at_trx_commit is "+v+", 1 is safe")
	}
	if v := vars["sync_binlog"]; vars["log_bin"] == "ON" && v != "1" {
		srv.lossy = append(srv.lossy, "sync_binlog is "+v+", 1 is safe")
	}
	switch srv.identity, err = mysqlCluster(ctx, c, vars); {
	case err != nil:
		return server{}, err
	case srv.identity != "":
		srv.settle = []string{"SET SESSION wsrep_sync_wait = 15", "SET SESSION group_replication_consistency = 'BEFORE'"}
		// Without a start: every working member is the same primary, whenever it was started.
		return srv, nil
	case vars["server_uuid"] != "":
		srv.identity = "server_uuid " + vars["server_uuid"]
	default:
		srv.identity = strings.TrimSpace(vars["hostname"] + ":" + vars["port"] + " " + vars["server_uid"])
	}
	start, err := mysqlStart(ctx, c, vars["version"])
	if err == nil && start != "" {
		srv.identity += "/start " + start
	}
	return srv, err
}

// mysqlStart returns when the server was started, by its own clock at that time, in seconds
// since 1970; empty where it does not tell. One statement asks for the time and for how long
// the server has been running: both count from the statement's begin, so that the difference is
// the same each time, also after the clock was set.
func mysqlStart(ctx context.Context, c *sql.Conn, version string) (string, error) {
	schema := "performance_schema"
	if strings.Contains(version, "MariaDB") {
		schema = "information_schema"
	}
	rows, err := texts(ctx, c, "SELECT CAST(UNIX_TIMESTAMP() - VARIABLE_VALUE AS SIGNED) FROM "+schema+".global_status WHERE VARIABLE_NAME = 'Uptime'")
	switch {
	case err != nil && mysqlNumber(err) == 0:
		return "", err
	case err != nil, len(rows) != 1:
		return "", nil //nolint:nilerr // the account may not ask
	}
	return rows[0][0], nil
}

// mysqlCluster returns the identity of the cluster that the server is a working
// member of. That it is configured to be one does not count.
func mysqlCluster(ctx context.Context, c *sql.Conn, vars map[string]string) (string, error) {
	if vars["wsrep_on"] == "ON" {
		status, err := mysqlPairs(ctx, c, "SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_state_uuid', 'wsrep_cluster_status')")
		if err != nil {
			return "", err
		}
		if id := status["wsrep_cluster_state_uuid"]; id != "" && status["wsrep_cluster_status"] == "Primary" {
			return "cluster " + id, nil
		}
	}
	group := vars["group_replication_group_name"]
	if group == "" {
		return "", nil
	}
	rows, err := texts(ctx, c, "SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE MEMBER_ID = @@server_uuid")
	if err != nil {
		return "", err
	}
	if len(rows) == 1 && rows[0][0] == "ONLINE" {
		return "group " + group, nil
	}
	return "", nil
}

// mysqlPairs returns the rows of a SHOW statement.
func mysqlPairs(ctx context.Context, c *sql.Conn, query string) (map[string]string, error) {
	rows, err := texts(ctx, c, query)
	return pairs(rows), err
}

// mysqlArgs makes bytes of texts: a text literal would have a character set.
func mysqlArgs(args []any) []any {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = []byte(s)
		}
	}
	return args
}

// mysqlNumber returns the number of a server's error, or 0 for any other. The Go
// driver has it in a field, and no method that returns it.
func mysqlNumber(err error) uint16 {
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct {
			continue
		}
		if f := v.FieldByName("Number"); f.IsValid() && f.Kind() == reflect.Uint16 {
			return uint16(f.Uint())
		}
	}
	return 0
}

func mysqlClassify(err error) class {
	if errors.Is(err, driver.ErrBadConn) { // the driver says so only if nothing was sent
		return undone
	}
	switch mysqlNumber(err) {
	case 1040, 1203, // too many connections, of all or of the account
		1020,             // the row was changed since it was read: rolled back, where MariaDB isolates snapshots
		1205, 1213, 3101, // lock wait timeout, deadlock, conflict in a group: rolled back
		1047: // the node of a cluster is not ready
		return undone
	case 1050, 1060, 1062: // table, column, key
		return exists
	case 1054:
		return noColumn
	case 1146:
		return noTable
	case 1193:
		return noVariable
	case 1290, 1792, 1836:
		return readOnly
	case 1044, 1045, 1142, 1143, 1227, 1698:
		return forbidden
	}
	return unknown
}
