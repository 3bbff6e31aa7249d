// Package testdb makes the tables of foreign systems on a real server, for tests.
package testdb

import (
	"crypto/rand"
	"database/sql"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax/internal/testservers"
)

// Leaf is Leaf's table, as its own script makes it.
const Leaf = `CREATE TABLE leaf_alloc (
	biz_tag varchar(128) NOT NULL DEFAULT '',
	max_id bigint(20) NOT NULL DEFAULT '1',
	step int(11) NOT NULL,
	description varchar(256) DEFAULT NULL,
	update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
	PRIMARY KEY (biz_tag)
) ENGINE=InnoDB`

// TinyID are TinyID's tables.
var TinyID = []string{
	`CREATE TABLE tiny_id_info (
	id bigint(20) unsigned NOT NULL AUTO_INCREMENT,
	biz_type varchar(63) NOT NULL DEFAULT '',
	begin_id bigint(20) NOT NULL DEFAULT '0',
	max_id bigint(20) NOT NULL DEFAULT '0',
	step int(11) DEFAULT '0',
	delta int(11) NOT NULL DEFAULT '1',
	remainder int(11) NOT NULL DEFAULT '0',
	create_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
	update_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
	version bigint(20) NOT NULL DEFAULT '0',
	PRIMARY KEY (id),
	UNIQUE KEY uniq_biz_type (biz_type)
) ENGINE=InnoDB DEFAULT CHARSET=utf8`,
	`CREATE TABLE tiny_id_token (
	id int(11) unsigned NOT NULL AUTO_INCREMENT,
	token varchar(255) NOT NULL DEFAULT '',
	biz_type varchar(63) NOT NULL DEFAULT '',
	remark varchar(255) NOT NULL DEFAULT '',
	create_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
	update_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
	PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8`,
}

// A Database is an empty one on a server, with an account that may do anything.
type Database struct {
	*sql.DB
	URL  string // of hapax
	Name string
}

// New makes a database and runs the statements in it.
func New(t testing.TB, server *testservers.Server, statements ...string) Database {
	t.Helper()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	name := "t" + strings.ToLower(rand.Text())
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.Net, cfg.Addr = "tcp", u.Host
	cfg.Logger = &mysql.NopLogger{}
	cfg.InterpolateParams = true
	root := open(t, cfg)
	if _, err := root.ExecContext(t.Context(), "CREATE DATABASE "+name+" DEFAULT CHARACTER SET utf8mb4"); err != nil {
		t.Fatal(err)
	}
	cfg = cfg.Clone()
	cfg.DBName = name
	u.Path = "/" + name
	d := Database{open(t, cfg), u.String(), name}
	d.Run(t, statements...)
	return d
}

func open(t testing.TB, cfg *mysql.Config) *sql.DB {
	t.Helper()
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Run runs statements.
func (d Database) Run(t testing.TB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := d.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// Number returns the number that a query tells.
func (d Database) Number(t testing.TB, query string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := d.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// ReadOnly makes an account that may only read a database, and returns the URL for it.
func ReadOnly(t testing.TB, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	name, database := "r"+strings.ToLower(rand.Text()), strings.Trim(u.Path, "/")
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, database
	Database{DB: open(t, cfg)}.Run(t, "CREATE USER "+name+"@'%' IDENTIFIED BY 'p'", strings.Join([]string{"GRANT SELECT ON", database + ".*", "TO", name + "@'%'"}, " "))
	u.User = url.UserPassword(name, "p")
	return u.String()
}
