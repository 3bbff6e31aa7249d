package sequences

import (
	"net/url"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// What reads writes nothing, as the servers themselves tell: PostgreSQL has given no
// transaction a number, and MariaDB's log has no statement that changes anything. Nothing
// that is printed has a password.
func TestDryRunWritesNothing(t *testing.T) {
	pg := testservers.Postgres(t, "-c", "autovacuum=off")
	maria := testservers.MariaDB(t)
	p := openSQL(t, "pgx", pg.URL)
	do(t, p, postgresShop)
	address, m := newMariaDB(t, maria)
	do(t, m, mariaShop...)
	do(t, m, "SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON")
	const secret = "s3cret"
	do(t, p, "ALTER ROLE postgres PASSWORD '"+secret+"'")
	u, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), secret)
	const transactions = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	before := number(t, p, transactions)
	read := read(t, importing{}, u.String(), address)
	all, err := read.Move(t.Context(), memstore.New(), mount.MoveOptions{IgnoreLiving: true, Bar: quietly})
	if err != nil || len(all.Tags) < 5 {
		t.Fatal(all, err)
	}
	native, err := read.NativeYAML(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(read.YAML("")+native, secret) {
		t.Error("the plan has the password")
	}
	if after := number(t, p, transactions); after != before {
		t.Errorf("PostgreSQL has numbered %d transactions", after-before)
	}
	const changing = `FROM mysql.general_log WHERE command_type = 'Query' AND argument REGEXP '^[[:space:]]*(INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP|GRANT|RENAME|TRUNCATE|SET GLOBAL)'`
	if n := number(t, m, "SELECT COUNT(*) "+changing); n > 0 {
		t.Errorf("MariaDB has logged %d changes", n)
	}
	if n := number(t, m, "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE '%information_schema.COLUMNS%'"); n == 0 {
		t.Error("MariaDB has logged nothing of the reading")
	}
	do(t, m, "CREATE TABLE seen (id INT)")
	if n := number(t, m, "SELECT COUNT(*) "+changing); n == 0 {
		t.Error("MariaDB's log would not tell of a change")
	}
	do(t, p, "CREATE TABLE seen (id int)")
	if after := number(t, p, transactions); after == before {
		t.Error("PostgreSQL would not tell of a change")
	}
}
