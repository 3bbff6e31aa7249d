package server

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/postgresstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A shop has a store, and a table with the numbers that were issued, in two databases.
type shop struct {
	t          *testing.T
	store      string // URL
	storeDB    *sql.DB
	orders     *sql.DB
	ordersURL  string
	reference  string // to it
	snowflakes bool
	floors     bool
	step       int64 // of the tag; default 20
	batch      int   // numbers of a call; default 10
	busy       int   // times as many calls; default 1

	clock movedClock
	at    time.Time // what the clock is set to before the next fleet writes; zero: nothing

	hides   func() (end func()) // has the column not be read until calls were refused; may be nil
	refused atomic.Int64        // calls that were refused meanwhile
	hidden  int                 // times that it was hidden
}

// A movedClock is the system's, and can be set.
type movedClock struct{ by atomic.Int64 }

func (c *movedClock) Now() (time.Time, time.Duration) {
	wall, mono := hapax.SystemClock{}.Now()
	return wall.Add(time.Duration(c.by.Load())), mono
}

func (c *movedClock) set(to time.Time) {
	wall, _ := hapax.SystemClock{}.Now()
	c.by.Store(int64(to.Sub(wall)))
}

var shops atomic.Int64

func newShop(t *testing.T) *shop {
	server := testservers.SharedPostgres(t)
	open := func(dsn string) *sql.DB {
		db, err := sql.Open("pgx", dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	s := &shop{t: t, reference: fmt.Sprintf("FLOORS_TEST_DB%d", shops.Add(1))}
	admin := open(server.URL)
	for _, d := range []struct {
		name string
		url  *string
		db   **sql.DB
	}{{"floors", &s.store, &s.storeDB}, {"orders", &s.ordersURL, &s.orders}} {
		name := fmt.Sprintf("%s_%d", d.name, time.Now().UnixNano())
		s.exec(admin, "CREATE DATABASE "+name)
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.Path = "/" + name
		*d.url, *d.db = u.String(), open(u.String())
	}
	s.exec(s.orders, "CREATE TABLE orders (id bigint, n int)", "CREATE INDEX ON orders (id)") // not unique
	t.Setenv(s.reference, s.ordersURL)
	s.reference = "env:" + s.reference
	return s
}

func (s *shop) exec(db *sql.DB, statements ...string) {
	s.t.Helper()
	for _, q := range statements {
		if _, err := db.ExecContext(s.t.Context(), q); err != nil {
			s.t.Fatalf("%s: %v", q, err)
		}
	}
}

// node is a server's service over the store, with a data directory of its own.
type node struct {
	*service.Service

	guard *witness.Guarded
	file  *witness.Witness
	logs  *logs
	end   func()
}

// logs keeps messages.
type logs struct {
	slog.Handler

	mu     sync.Mutex // guards what follows
	all    []string
	levels []slog.Level // of all
}

func (l *logs) Enabled(context.Context, slog.Level) bool { return true }
func (l *logs) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logs) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r.Message)
	l.levels = append(l.levels, r.Level)
	return nil
}

// count returns how often a message was logged at a level.
func (l *logs) count(level, message string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, m := range l.all {
		if m == message && l.levels[i].String() == level {
			n++
		}
	}
	return n
}

func (l *logs) has(message string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.all, "\n"), message)
}

func (s *shop) node(dir string) *node {
	s.t.Helper()
	n := s.join(dir)
	s.open(n)
	return n
}

// join has a node join, which takes a while, and open has it serve.
func (s *shop) join(dir string) *node {
	s.t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	w, err := witness.OpenFile(filepath.Join(dir, "witness"))
	if err != nil {
		s.t.Fatal(err)
	}
	n := &node{logs: &logs{Handler: slog.DiscardHandler}, file: w}
	n.guard, err = witness.GuardOpened(func(ctx context.Context) (driver.Store, error) {
		return postgresstore.Open(ctx, s.store, sqlstore.Options{Timeout: patience.Call, MaxConns: 3})
	}, w, witness.Options{Heartbeat: 100 * time.Millisecond, Timeout: patience.Call, Log: slog.New(n.logs)})
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *shop) open(n *node) {
	s.t.Helper()
	var err error
	step := cmp.Or(s.step, 20)
	tag := service.TagConfig{Step: step, MinStep: step, MaxStep: step}
	if s.snowflakes {
		tag = service.TagConfig{Kind: hapax.KindSnowflake}
	}
	if s.floors {
		tag.FloorFrom = []api.FloorFrom{{URL: s.reference, Table: "orders", Column: "id"}}
	}
	n.Service, err = service.New(s.t.Context(), n.guard, service.Options{
		Tags: map[string]service.TagConfig{"orders": tag}, Floors: Columns, Logger: slog.New(n.logs), Clock: &s.clock,
		MaxWait: patience.Call, StoreTimeout: patience.Call, Holder: fmt.Sprintf("node-%d", time.Now().UnixNano()),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	n.end = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Call)
		defer cancel()
		err := errors.Join(n.Close(ctx), n.guard.Close(), n.file.Close())
		if patience.Soaking() && hapax.IsTransient(err) { // nothing was handed back, which is a gap
			s.t.Logf("a node ended with %v", err)
		} else if err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(n.end)
}

// A floorFleet is what three nodes did.
type floorFleet struct {
	began   time.Time     // when they first wrote, by their clock
	opening time.Duration // how long they took until then
	raised  bool          // a mark was behind, and they said so
	refused int           // calls, since a column could not be read
}

// issue has each of three nodes write rows with numbers, and returns after their end.
func (s *shop) issue(dir string, batches int) (f floorFleet) {
	s.t.Helper()
	var nodes [3]*node
	var wg sync.WaitGroup
	for i := range nodes {
		nodes[i] = s.join(filepath.Join(dir, fmt.Sprint(i)))
	}
	patience.Until(s.t, "all nodes serve", func() bool {
		return !slices.ContainsFunc(nodes[:], func(n *node) bool { return n.guard.Status().State != witness.Serving })
	})
	if !s.at.IsZero() { // now, for no service takes a clock back
		s.clock.set(s.at)
	}
	opening := time.Now()
	for _, n := range nodes {
		s.open(n)
	}
	var began sync.Once
	before := s.refused.Load()
	for _, n := range nodes {
		wg.Go(func() {
			ids := make([]hapax.ID, cmp.Or(s.batch, 10))
			for range batches * cmp.Or(s.busy, 1) {
				if err := s.write(n, ids); err != nil {
					s.t.Error(err)
					return
				}
				began.Do(func() {
					f.opening = time.Since(opening)
					f.began, _ = s.clock.Now()
				})
			}
		})
	}
	wg.Wait()
	for _, n := range nodes {
		f.raised = f.raised || n.logs.has(service.FloorRaised) || s.snowflakes && n.logs.has(service.WorkersAbove)
		n.end()
	}
	f.refused = int(s.refused.Load() - before)
	return f
}

// write takes numbers, again while a column cannot be read, and writes them as rows.
func (s *shop) write(n *node, ids []hapax.ID) error {
	k, err := n.NextN(s.t.Context(), "orders", ids)
	for over := time.Now().Add(patience.Long); k == 0 && time.Now().Before(over); k, err = n.NextN(s.t.Context(), "orders", ids) {
		switch {
		case (s.hides != nil || patience.Soaking()) && errors.Is(err, api.ErrFloorUnread): // or the machine was too busy to read it within its bound
			s.refused.Add(1)
		case !hapax.IsTransient(err): // else the node has joined again, on a machine that was busy
			return err
		}
		patience.Again()
	}
	numbers := make([]int64, k)
	for i, id := range ids[:k] {
		numbers[i] = int64(id)
	}
	_, err2 := s.orders.ExecContext(s.t.Context(), "INSERT INTO orders SELECT unnest($1::bigint[]), 1", numbers)
	return errors.Join(err, err2)
}

func (s *shop) tables() (all []string) {
	rows, err := s.storeDB.QueryContext(s.t.Context(), "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'hapax%'")
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, name)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return all
}

// backUp keeps the store as it is, and restore puts that back.
func (s *shop) backUp() {
	s.exec(s.storeDB, "DROP SCHEMA IF EXISTS kept CASCADE", "CREATE SCHEMA kept")
	for _, name := range s.tables() {
		s.exec(s.storeDB, fmt.Sprintf("CREATE TABLE kept.%s AS TABLE %s", name, name))
	}
}

func (s *shop) restore() {
	for _, name := range s.tables() {
		s.exec(s.storeDB, fmt.Sprintf("DELETE FROM %s; INSERT INTO %s TABLE kept.%s", name, name, name))
	}
}

func (s *shop) number(query string) (n int64) {
	s.t.Helper()
	if err := s.orders.QueryRowContext(s.t.Context(), query).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *shop) duplicates() int64 {
	return s.number("SELECT count(*) - count(DISTINCT id) FROM orders")
}

// A store is restored when no node, no witness and no data directory is left: what the
// rows tell keeps every number from coming twice. Without it the same test sees them.
func TestStoreRestoredWithoutWitnesses(t *testing.T) {
	t.Run("without floors", func(t *testing.T) { newShop(t).losses(1) })
	t.Run("with floors", func(t *testing.T) {
		s := newShop(t)
		s.floors = true
		s.losses(3)
	})
}

// losses has fleets of new nodes go on, round after round, over a store that went back to
// where it was before the fleet before.
func (s *shop) losses(rounds int) {
	t := s.t
	t.Helper()
	dir := t.TempDir()
	s.issue(filepath.Join(dir, "first"), 2)
	s.backUp()
	last := s.issue(filepath.Join(dir, "more"), 2)
	refused, most := 0, int64(0)
	for round := range rounds {
		s.restore()
		end := func() {}
		if s.hides != nil && round%2 == 1 {
			end = s.hides()
		}
		s.at = last.began.Add(-last.opening) // so that snowflakes of the two meet
		last = s.issue(filepath.Join(dir, fmt.Sprint("new", round)), 2)
		end()
		refused += last.refused
		most = max(most, s.duplicates())
		if s.floors && most > 0 {
			t.Fatalf("round %d: %d numbers are there twice", round, most)
		}
		if last.raised != s.floors {
			t.Errorf("round %d: a mark that was raised is told of: %v", round, last.raised)
		}
		if round%25 == 24 {
			t.Logf("%d rounds are over", round+1)
		}
	}
	if !s.floors && most == 0 {
		t.Errorf("%d rounds without floors, and no number is there twice", rounds)
	}
	if s.hides != nil && refused == 0 {
		t.Error("no column that could not be read was noticed")
	}
	t.Logf("%d rounds: %d numbers in %d rows are there twice; %d refusals while the column could not be read", rounds, most, s.number("SELECT count(*) FROM orders"), refused)
}

// A column that cannot be read has its tag refused by name, and no other, until it can, or
// an operator says where it goes on.
func TestColumnThatCannotBeRead(t *testing.T) {
	s := newShop(t)
	s.floors = true
	dir := t.TempDir()
	s.issue(filepath.Join(dir, "first"), 1)
	s.backUp()
	s.issue(filepath.Join(dir, "more"), 2)
	s.restore()
	most := s.number("SELECT max(id) FROM orders")
	s.exec(s.orders, "ALTER TABLE orders RENAME TO hidden")
	n := s.node(filepath.Join(dir, "new"))
	next := func() (hapax.ID, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience.Call)
		defer cancel()
		return n.Next(ctx, "orders")
	}
	id, err := next()
	if !errors.Is(err, api.ErrFloorUnread) || !strings.Contains(err.Error(), `"orders"`) || strings.Contains(err.Error(), "postgres://") {
		t.Errorf("with a column that cannot be read: %d, %v", id, err)
	}
	if _, err := n.Next(t.Context(), "other"); err != nil {
		t.Errorf("another tag: %v", err)
	}
	s.exec(s.orders, "ALTER TABLE hidden RENAME TO orders", "DROP INDEX orders_id_idx")
	for over := time.Now().Add(patience.Long); ; {
		if _, err = next(); err == nil || strings.Contains(err.Error(), "CREATE INDEX") {
			break // a refusal is kept for a moment
		}
		if time.Now().After(over) {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "CREATE INDEX CONCURRENTLY") {
		t.Errorf("without an index: %v", err)
	}
	s.exec(s.orders, "CREATE INDEX ON orders (id)")
	for over := time.Now().Add(patience.Long); ; {
		if id, err = next(); err == nil || time.Now().After(over) {
			break
		}
	}
	if err != nil || int64(id) <= most {
		t.Errorf("once it can be read: %d, %v; the column holds %d", id, err, most)
	}
	// Each cause is told once, however often it is met, and so is the end.
	const refused, read = "a tag is refused: no witness knows how far it was issued, and its columns cannot be read", "the columns of a tag that was refused are read again"
	if told := n.logs.count("ERROR", refused); told != 2 {
		t.Errorf("two causes are told as errors %d times", told)
	}
	if told := n.logs.count("INFO", read); told != 1 {
		t.Errorf("the end of it is told %d times", told)
	}
	if tag, err := n.Tag(t.Context(), "orders"); err != nil || strings.Contains(tag.Extra, "postgres") {
		t.Errorf("the store has %+v, %v", tag, err)
	}
	n.end()

	// The same, and an operator speaks.
	s.restore()
	s.exec(s.orders, "ALTER TABLE orders RENAME TO hidden")
	n = s.node(filepath.Join(dir, "newer"))
	if _, err := next(); err == nil {
		t.Error("a tag whose column cannot be read is issued")
	}
	extra, err := define.WithFloors("", define.FloorsStated())
	if err != nil {
		t.Fatal(err)
	}
	floor := int64(1_000_000)
	if _, err := n.UpdateTag(t.Context(), "orders", driver.TagUpdate{Floor: &floor, Extra: &extra}); err != nil {
		t.Fatal(err)
	}
	for over := time.Now().Add(patience.Long); ; {
		if id, err = next(); err == nil || time.Now().After(over) {
			break
		}
	}
	if err != nil || int64(id) < floor {
		t.Errorf("once an operator has spoken: %d, %v", id, err)
	}
	if tag, err := n.Tag(t.Context(), "orders"); err != nil || len(define.Shown(tag).FloorFrom) != 1 {
		t.Errorf("the columns are gone: %+v, %v", tag, err)
	}
}

// A worker goes on above the newest number in a column, also where the clock is behind it.
func TestSnowflakeFloor(t *testing.T) {
	for _, floors := range []bool{false, true} {
		t.Run(fmt.Sprint("floors ", floors), func(t *testing.T) {
			s := newShop(t)
			s.floors, s.snowflakes = floors, true
			dir := t.TempDir()
			s.issue(filepath.Join(dir, "first"), 1)
			layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
			if err != nil {
				t.Fatal(err)
			}
			ahead, err := layout.Parse(hapax.ID(s.number("SELECT max(id) FROM orders")))
			if err != nil {
				t.Fatal(err)
			}
			for i := range ahead {
				if ahead[i].Name == hapax.FieldTime {
					ahead[i].Value += 1500 // a burst that ran ahead, or a clock that was
					if !floors {
						ahead[i].Value += 600_000 // nobody waits for it, and no clock comes up to it meanwhile
					}
				}
			}
			most, err := layout.Compose(ahead)
			if err != nil {
				t.Fatal(err)
			}
			s.exec(s.orders, fmt.Sprintf("INSERT INTO orders VALUES (%d, 2)", most))
			s.exec(s.storeDB, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public") // wiped
			n := s.node(filepath.Join(dir, "new"))
			id, err := n.Next(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			if above := id > most; above != floors {
				t.Errorf("issued %d; the column holds %d", id, most)
			}
		})
	}
}

// Setting columns reads them once, and checks them.
func TestSetFloors(t *testing.T) {
	s := newShop(t)
	s.exec(s.orders, "INSERT INTO orders VALUES (4711, 1)", "CREATE TABLE texts (id text PRIMARY KEY)")
	n := s.node(t.TempDir())
	if _, err := n.Next(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FLOORS_TEST_DEAF", "postgres://u@127.0.0.1:1/x")
	set := func(all ...api.FloorFrom) (hapax.Tag, error) {
		extra, err := define.WithFloors("", all)
		if err != nil {
			t.Fatal(err)
		}
		return n.UpdateTag(t.Context(), "orders", driver.TagUpdate{Extra: &extra})
	}
	for name, f := range map[string]api.FloorFrom{
		"a password in it": {URL: s.ordersURL, Table: "orders", Column: "id"},
		"no such column":   {URL: s.reference, Table: "orders", Column: "none"},
		"no numbers":       {URL: s.reference, Table: "texts", Column: "id"},
		"no index":         {URL: s.reference, Table: "orders", Column: "n"},
		"no variable":      {URL: "env:FLOORS_TEST_NONE", Table: "orders", Column: "id"},
		"no answer":        {URL: "env:FLOORS_TEST_DEAF", Table: "orders", Column: "id"},
	} {
		_, err := set(f)
		if err == nil || strings.Contains(err.Error(), s.ordersURL) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "no answer" && (errors.Is(err, hapax.ErrStoreUnavailable) || !strings.Contains(err.Error(), "env:FLOORS_TEST_DEAF, orders.id")) {
			t.Errorf("%s is told as %v", name, err)
		}
	}
	tag, err := set(api.FloorFrom{URL: s.reference, Table: "orders", Column: "id"})
	if err != nil || tag.Mark != 4712 || len(define.Shown(tag).FloorFrom) != 1 {
		t.Errorf("the tag is %+v, %v", tag, err)
	}
	if id, err := n.Next(t.Context(), "orders"); err != nil || id < 4712 {
		t.Errorf("issued %d, %v", id, err)
	}
	s.exec(s.orders, fmt.Sprintf("INSERT INTO orders VALUES (%d, 1)", tag.Mark+1_000_000))
	store, err := postgresstore.Open(t.Context(), s.store, sqlstore.Options{Timeout: patience.Call, Look: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var d doctor
	d.floors(t.Context(), store)
	if len(d.found) != 1 || d.found[0].Harm != HarmDanger {
		t.Errorf("doctor finds %+v", d.found)
	}
	if tag, err = set(define.FloorsNone()...); err != nil || tag.Extra != "" {
		t.Errorf("the tag is %+v, %v", tag, err)
	}
}
