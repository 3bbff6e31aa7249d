package e2e

import (
	"context"
	"database/sql"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql" // the driver
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
)

// A readServer is a server that is read, and what it tells of itself.
type readServer struct {
	name, url string
	flags     []string
	// changes returns what has changed there since the last call, by the server's own account,
	// and how much of the reading was seen.
	changes func() (changes []string, seen int)
	change  func() error // one, to see that it would be told of
}

// Reading writes nothing anywhere, as the servers' own logs tell: PostgreSQL's of all
// statements, MariaDB's general log, what Redis has counted and appended to its file, what
// came to MongoDB, and the tags of the hapax server.
func TestImportSequencesWritesNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), []string{"HAPAX_AUTO_CREATE=false"})
	for _, watch := range []func(*testing.T) *readServer{watchedPostgres, watchedMariaDB, watchedRedis, watchedMongoDB} {
		w := watch(t)
		t.Run(w.name, func(t *testing.T) {
			tags := func() string { return ok(t, t.TempDir(), "tags", "list", "--all", "--json", "--server", s.url) }
			before := tags()
			w.changes() // what made the sources
			try := func(flags ...string) {
				t.Helper()
				args := slices.Concat([]string{"import", "sequences", w.url, "--prefix", w.name + ".", "--sample", "1ms", "--watch", "1ms", "--server", s.url}, w.flags, flags)
				if r := run(t, t.TempDir(), args...); r.code != 0 && !strings.Contains(r.out+r.err, "choose --switch stop") {
					t.Errorf("%v: exit code %d: %s%s", flags, r.code, r.out, r.err)
				}
			}
			readings := func(more ...[]string) {
				t.Helper()
				for _, how := range []string{"stop", "gap", "parity"} {
					for _, flags := range append([][]string{nil, {"--native"}, {"--dry-run"}, {"--dry-run", "--json"}}, more...) {
						try(append([]string{"--switch", how}, flags...)...)
					}
				}
				changes, seen := w.changes()
				if len(changes) > 0 {
					t.Errorf("it has changed: %q", changes)
				}
				if seen < 10 {
					t.Errorf("it tells of %d of the readings", seen)
				}
				if after := tags(); after != before {
					t.Errorf("the tags were %s, and are %s", before, after)
				}
			}
			readings()
			try("--switch", "stop", "--apply", "--ignore-living")
			if changes, _ := w.changes(); len(changes) == 0 {
				t.Error("it does not tell of the sources that were shut")
			}
			before = tags()
			readings([]string{"--verify"}, []string{"--undo", "--dry-run"})
			if err := w.change(); err != nil {
				t.Fatal(err)
			}
			if changes, _ := w.changes(); len(changes) == 0 {
				t.Error("it would not tell of a change")
			}
		})
	}
}

// mayChange reports whether a statement may change something, whatever its literals say.
func mayChange(statement string) bool {
	return changing.MatchString(literal.ReplaceAllString(statement, "''"))
}

var literal = regexp.MustCompile(`'[^']*'`)

var changing = regexp.MustCompile(`(?is)(^|;)\s*(INSERT|UPDATE|DELETE|REPLACE|MERGE|CREATE|ALTER|DROP|GRANT|REVOKE|COMMENT|RENAME|TRUNCATE|DO|LOCK|CALL|COPY|SET\s+GLOBAL)\b|\b(nextval|setval|lastval|pg_advisory\w*)\s*\(|FOR\s+UPDATE`)

func watchedPostgres(t *testing.T) *readServer {
	pg := testservers.Postgres(t, "-c", "log_statement=all", "-c", "logging_collector=on", "-c", "log_destination=csvlog", "-c", "log_directory=statements", "-c", "log_filename=all.log")
	pg.MustControl() // for its log
	db := openSQL(t, pg.URL)
	execAll(t, db, "CREATE TABLE customers (id bigserial PRIMARY KEY, name text)", "INSERT INTO customers (name) VALUES ('a'), ('b')",
		"CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)", "CREATE SEQUENCE alone")
	read := 0
	return &readServer{
		name: "postgres", url: pg.URL,
		change: func() error { _, err := db.ExecContext(t.Context(), "SELECT setval('alone', 1)"); return err }, // it is shut
		changes: func() (changes []string, seen int) {
			t.Helper()
			mark := fmt.Sprintf("SELECT 'mark %d'", read)
			execAll(t, db, mark)
			records := patience.Await(t, "all statements are in the log", func() ([][]string, error) {
				f, err := os.Open(filepath.Join(pg.Dir, "statements", "all.csv"))
				if err != nil {
					return nil, err
				}
				defer f.Close()
				return csv.NewReader(f).ReadAll()
			}, func(all [][]string) bool {
				return slices.ContainsFunc(all, func(r []string) bool { return strings.HasSuffix(r[13], mark) })
			})
			for _, r := range records[read:] {
				kind, statement, _ := strings.Cut(r[13], ": ")
				if kind != "statement" && !strings.HasPrefix(kind, "execute ") || strings.HasSuffix(r[13], mark) {
					continue
				}
				seen++
				if mayChange(statement) {
					changes = append(changes, statement)
				}
			}
			read = len(records)
			return changes, seen
		},
	}
}

func execAll(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func watchedMariaDB(t *testing.T) *readServer {
	maria := testservers.MariaDB(t)
	u, err := url.Parse(maria.URL)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", fmt.Sprintf("root@tcp(%s)/hapax", u.Host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	execAll(t, db, "CREATE TABLE customers (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT)", "INSERT INTO customers (name) VALUES ('a'), ('b')",
		"CREATE SEQUENCE s", "CREATE TABLE tickets (id BIGINT PRIMARY KEY DEFAULT NEXTVAL(s))",
		"SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON")
	return &readServer{
		name: "mariadb", url: maria.URL,
		change: func() error { _, err := db.ExecContext(t.Context(), "ALTER TABLE tickets COMMENT 'seen'"); return err },
		changes: func() (changes []string, seen int) {
			t.Helper()
			rows, err := db.QueryContext(t.Context(), "SELECT argument FROM mysql.general_log WHERE command_type IN ('Query', 'Execute')")
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var statement string
				if err := rows.Scan(&statement); err != nil {
					t.Fatal(err)
				}
				if seen++; mayChange(statement) && !strings.HasPrefix(statement, "TRUNCATE mysql.general_log") {
					changes = append(changes, statement)
				}
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			execAll(t, db, "TRUNCATE mysql.general_log")
			return changes, seen
		},
	}
}

// redisReads are commands that change no data.
var redisReads = []string{"get", "pttl", "scan", "quit", "ping", "hello", "auth", "select", "info", "client|setinfo", "client|setname", "client|maint_notifications", "command", "config|get"}

func watchedRedis(t *testing.T) *readServer {
	server := testservers.Redis(t, "--maxmemory", "0") // its own
	c, err := redisstore.NewClient(server.URL, patience.Call)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := errors.Join(c.Set(t.Context(), "n:orders", 41, 0).Err(), c.Set(t.Context(), "n:text", "x", 0).Err()); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^cmdstat_(\S+?):calls=(\d+)`)
	size := ""
	return &readServer{
		name: "redis", url: server.URL, flags: []string{"--like", "n:*"},
		change: func() error { return c.Incr(t.Context(), "other").Err() },
		changes: func() (changes []string, seen int) {
			t.Helper()
			stats, err := c.Info(t.Context(), "commandstats").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range line.FindAllStringSubmatch(stats, -1) {
				if seen++; !slices.Contains(redisReads, m[1]) {
					changes = append(changes, m[0])
				}
			}
			if err := c.ConfigResetStat(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			changes = slices.DeleteFunc(changes, func(s string) bool { return strings.HasPrefix(s, "cmdstat_config|resetstat:") })
			file, err := testservers.RedisInfo(t.Context(), server.Addr, "persistence", "aof_current_size")
			if err != nil {
				t.Fatal(err)
			}
			if file != size && size != "" {
				changes = append(changes, "its file had "+size+" bytes and has "+file)
			}
			size = file
			return changes, seen * 3 // three commands stand for many
		},
	}
}

// mongoReads are commands that change no data.
var mongoReads = []string{"hello", "ismaster", "isMaster", "ping", "find", "getMore", "endSessions", "killCursors", "buildInfo"}

func watchedMongoDB(t *testing.T) *readServer {
	server := testservers.MongoDB(t)
	server.MustProxy()
	address := strings.TrimSuffix(server.URL, "/") + "/dry"
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Path) > 1 {
		u.Path = "/dry"
		address = u.String()
	}
	db, err := mongostore.NewDatabase(address, patience.Call)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Client().Disconnect(context.Background()) })
	counters := db.Collection("counters")
	if _, err := counters.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "orders"}, {Key: "seq", Value: int64(41)}}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var commands []string
	proxy := testservers.NewProxy(t, server.Addr)
	proxy.CutRequest(func(request []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		commands = append(commands, mongoCommand(request))
		return false
	})
	dump := func() string {
		t.Helper()
		found, err := counters.Find(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var all []bson.M
		if err := found.All(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		names, err := db.ListCollectionNames(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal([]any{names, all})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	was := dump()
	return &readServer{
		name: "mongodb", url: proxy.URL(address),
		change: func() error {
			_, err := counters.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "other"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "seq", Value: 1}}}})
			if err == nil {
				_, err = counters.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "other"}, {Key: "seq", Value: 1}})
			}
			return err
		},
		changes: func() (changes []string, seen int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			for _, c := range commands {
				if seen++; !slices.Contains(mongoReads, c) {
					changes = append(changes, c)
				}
			}
			commands = nil
			if is := dump(); is != was {
				changes = append(changes, was+" is "+is)
				was = is
			}
			return changes, seen
		},
	}
}

// mongoCommand returns the name of a message's command: the first element of its document,
// after a header of 16 bytes, 4 of flags, one of the section's kind, and the document's length
// and the element's type. Older messages, by which a driver says hello, are taken as that.
func mongoCommand(message []byte) string {
	const opMsg, name = 2013, 16 + 4 + 1 + 4 + 1
	if len(message) <= name {
		return fmt.Sprintf("%q", message)
	}
	if code := int(message[12]) | int(message[13])<<8; code != opMsg {
		return "hello"
	}
	end := slices.Index(message[name:], 0)
	if end < 0 {
		return fmt.Sprintf("%q", message)
	}
	return string(message[name : name+end])
}
