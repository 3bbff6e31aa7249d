package testservers_test

import (
	"bufio"
	"context"
	"database/sql"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/etcdstore"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/postgresstore"
	"github.com/hapax-id/hapax/store/witness"
)

var (
	idleSizes = flag.String("idle-sizes", "3,10,60,100", "how many programs TestIdleFleetSoak starts, one after the other")
	idleFor   = flag.Duration("idle-for", 3*time.Minute, "how long it counts")
	idleLimit = flag.Bool("idle-limit", true, "whether it fails above the limits")
)

// An engine is a server under a fleet, and what it counts.
type engine struct {
	name   string
	start  func(t *testing.T) *testservers.Server
	open   func(ctx context.Context, url string) (driver.Store, error)
	counts func(t *testing.T, s *testservers.Server) map[string]float64
	limits map[string]float64 // a node and second
}

var engines = []engine{
	{
		"PostgreSQL",
		func(t *testing.T) *testservers.Server { return testservers.Postgres(t) },
		func(ctx context.Context, url string) (driver.Store, error) {
			return opened(postgresstore.Open(ctx, url, sqlstore.Options{}))
		},
		postgresCounts,
		map[string]float64{"transactions": 1.3, "rows read": 8},
	},
	{
		"Redis",
		func(t *testing.T) *testservers.Server { return testservers.Redis(t) },
		func(ctx context.Context, url string) (driver.Store, error) {
			return opened(redisstore.Open(ctx, url, redisstore.Options{}))
		},
		redisCounts,
		map[string]float64{"requests": 1.4},
	},
	{
		"etcd",
		func(t *testing.T) *testservers.Server { return testservers.Etcd(t) },
		func(ctx context.Context, url string) (driver.Store, error) {
			return opened(etcdstore.Open(ctx, url, etcdstore.Options{}))
		},
		etcdCounts,
		map[string]float64{"requests": 1.3},
	},
}

func opened[S driver.Store](s S, err error) (driver.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// TestIdleFleetSoak counts what programs ask of their store that are granted nothing: each
// opens a guarded store of its own, and takes one number. What that is a node and second does
// not grow with their number. tools/idle runs it and prints the table.
func TestIdleFleetSoak(t *testing.T) {
	patience.Soak(t, "a crowd, and minutes in which it is idle")
	for _, e := range engines {
		for size := range strings.SplitSeq(*idleSizes, ",") {
			n, err := strconv.Atoi(size)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(e.name+"/"+size, func(t *testing.T) { idle(t, e, n) })
		}
	}
}

func idle(t *testing.T, e engine, n int) {
	server := e.start(t)
	var fleet []*witness.Guarded
	for i := range n {
		g, err := witness.Open(t.Context(), func(ctx context.Context) (driver.Store, error) { return e.open(ctx, server.URL) },
			filepath.Join(t.TempDir(), "witness"), witness.Options{Name: fmt.Sprint("n", i)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		fleet = append(fleet, g)
	}
	for i, g := range fleet {
		patience.Until(t, fmt.Sprintf("that program %d serves", i), func() bool { return g.Status().State == witness.Serving })
		if i == 0 {
			def, err := hapax.Tag{Name: "t"}.WithDefaults()
			if err == nil {
				_, err = g.CreateTag(t.Context(), def, hapax.CreateExplicit)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := g.Allocate(t.Context(), "t", 1, ""); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, e, server.URL)
	before, began := e.counts(t, server), time.Now()
	pause(t, *idleFor)
	after, took := e.counts(t, server), time.Since(began).Seconds()
	for what, count := range after {
		each := (count - before[what]) / took / float64(n)
		t.Logf("%s, %d programs: %.2f %s a node and second, %.0f a second in all", e.name, n, each, what, each*float64(n))
		if what == "bytes of log" {
			t.Logf("%s, %d programs: %.0f MB of log a day", e.name, n, each*float64(n)*86400/1e6)
		}
		if most := e.limits[what]; *idleLimit && most > 0 && each > most {
			t.Errorf("%d programs: %.2f %s a node and second; want %.1f at most", n, each, what, most)
		}
	}
}

// settle waits until the surveys of the joins are over: where a hundred programs start at once on
// few cores, some are marked silent and join again for a minute.
func settle(t *testing.T, e engine, url string) {
	s, err := e.open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for last := ""; ; pause(t, 15*time.Second) {
		moved := ""
		for _, row := range []string{driver.RowJoins, driver.RowChanges} {
			value, err := s.(driver.Rows).Row(t.Context(), driver.TableGuard, row)
			if err != nil {
				t.Fatal(err)
			}
			moved += string(value) + " "
		}
		if moved == last {
			t.Logf("%s: joins and changes %s", e.name, moved)
			return
		}
		last = moved
	}
}

// pause lets the fleet be idle.
func pause(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

func postgresCounts(t *testing.T, s *testservers.Server) map[string]float64 {
	db, err := sql.Open("pgx", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var commits, returned, fetched, log float64
	for range 2 { // what a session has done shows when it is idle
		pause(t, time.Second)
		err = db.QueryRowContext(t.Context(), `SELECT xact_commit, tup_returned, tup_fetched, pg_current_wal_lsn() - '0/0'::pg_lsn
			FROM pg_stat_database WHERE datname = current_database()`).Scan(&commits, &returned, &fetched, &log)
		if err != nil {
			t.Fatal(err)
		}
	}
	return map[string]float64{"transactions": commits, "rows read": fetched, "rows and index entries returned": returned, "bytes of log": log}
}

func redisCounts(t *testing.T, s *testservers.Server) map[string]float64 {
	opts, err := redis.ParseURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(opts)
	defer c.Close()
	text, err := c.Info(t.Context(), "all").Result()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name == "total_commands_processed" {
			counts["commands, with those of scripts,"], _ = strconv.ParseFloat(value, 64)
		}
		if command, ok := strings.CutPrefix(name, "cmdstat_"); ok && (command == "evalsha" || command == "eval" || command == "hget") {
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			count, _ := strconv.ParseFloat(calls, 64)
			if command != "hget" {
				counts["requests"] += count
			}
		}
	}
	return counts
}

func etcdCounts(t *testing.T, s *testservers.Server) map[string]float64 {
	reply, err := http.Get("http://" + s.Addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	counts := map[string]float64{}
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "} "); ok && strings.HasPrefix(name, "grpc_server_handled_total{") && strings.Contains(name, "etcdserverpb.KV") {
			count, _ := strconv.ParseFloat(value, 64)
			counts["requests"] += count
		}
	}
	return counts
}
