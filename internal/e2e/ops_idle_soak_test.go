package e2e

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// TestIdleFleetSoak tells what servers that nobody asks for anything cost their store:
// transactions, or commands, a second, and bytes of its log a day.
func TestIdleFleetSoak(t *testing.T) {
	patience.Soak(t, "it measures what an idle fleet costs")
	const during = 30 * time.Second
	for _, store := range []struct {
		name  string
		start func(*testing.T) *testservers.Server
		count func(*testing.T, *testservers.Server) (transactions, bytes int64)
	}{
		{"postgres", func(t *testing.T) *testservers.Server { return testservers.Postgres(t) }, postgresCosts},
		{"mariadb", func(t *testing.T) *testservers.Server { return testservers.MariaDB(t) }, mariaDBCosts},
		{"redis", func(t *testing.T) *testservers.Server { return testservers.Redis(t) }, redisCosts},
	} {
		t.Run(store.name, func(t *testing.T) {
			server := store.start(t)
			server.MustControl()
			dir, nodes := t.TempDir(), []*serving{}
			for _, want := range []int{3, 10} {
				for len(nodes) < want {
					s := serve(t, dir, nil, "--store", server.URL, "--data", fmt.Sprint("node", len(nodes)))
					takeSoon(t, s, "orders", 1)
					nodes = append(nodes, s)
				}
				patience.Slow(10 * time.Second) // surveys are over
				before, wrote := store.count(t, server)
				patience.Slow(during)
				after, written := store.count(t, server)
				t.Logf("%s, %2d nodes: %5.1f transactions/s, %6.1f MB a day", store.name, want,
					float64(after-before)/during.Seconds(), float64(written-wrote)/during.Seconds()*86400/1e6)
			}
		})
	}
}

func postgresCosts(t *testing.T, s *testservers.Server) (transactions, bytes int64) {
	t.Helper()
	db, err := sql.Open("pgx", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	patience.Slow(time.Second) // backends tell of theirs once a second
	err = db.QueryRowContext(t.Context(), "SELECT sum(xact_commit)::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint FROM pg_stat_database").Scan(&transactions, &bytes)
	if err != nil {
		t.Fatal(err)
	}
	return transactions, bytes
}

func mariaDBCosts(t *testing.T, s *testservers.Server) (transactions, bytes int64) {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", "root@tcp("+u.Host+")/hapax")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for name, to := range map[string]*int64{"Com_update": &transactions, "Innodb_os_log_written": &bytes, "Com_select": nil, "Com_insert": nil, "Com_delete": nil, "Com_update_multi": nil, "Com_stmt_execute": nil} {
		var value int64
		if err := db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&name, &value); err != nil {
			t.Fatal(err)
		}
		if to == nil {
			to = &transactions
			if name == "Com_stmt_execute" { // counted under its kind, too
				continue
			}
		}
		*to += value
	}
	return transactions, bytes
}

func redisCosts(t *testing.T, s *testservers.Server) (transactions, bytes int64) {
	t.Helper()
	return redisInfo(t, s, "stats", "total_commands_processed"), redisInfo(t, s, "persistence", "aof_current_size")
}

// redisInfo returns one number of INFO.
func redisInfo(t *testing.T, s *testservers.Server, section, field string) int64 {
	t.Helper()
	var d net.Dialer
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "INFO %s\r\nQUIT\r\n", section); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), field+":"); found {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("INFO %s has no %s", section, field)
	return 0
}
