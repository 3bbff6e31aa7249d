package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A market has a table that a sequence feeds, with no unique index, and writers of both
// ways to number its rows.
type market struct {
	t      *testing.T
	db     *sql.DB
	server *serving
	prefix string
	file   string // with the URL, through the proxy

	ends     atomic.Bool
	old, new atomic.Int64
	writers  sync.WaitGroup
}

var markets atomic.Int64

// newMarket makes a database on the server that admin is connected to.
func newMarket(t *testing.T, server *serving, admin *sql.DB, proxy *testservers.Proxy, address string) *market {
	t.Helper()
	name := fmt.Sprintf("market_%d_%d", os.Getpid(), markets.Add(1))
	m := &market{t: t, server: server, prefix: name + "."}
	m.exec(admin, "CREATE DATABASE "+name)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	m.db = openSQL(t, u.String())
	m.file = write(t, t.TempDir(), "url", proxy.URL(u.String()))
	m.exec(m.db, "CREATE SEQUENCE s CACHE 10", "CREATE TABLE orders (id bigint DEFAULT nextval('s'), new boolean DEFAULT false)",
		"ALTER SEQUENCE s OWNED BY orders.id", "CREATE INDEX ON orders (id)")
	t.Cleanup(m.end)
	return m
}

func openSQL(t *testing.T, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (m *market) exec(db *sql.DB, statements ...string) {
	m.t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(m.t.Context(), s); err != nil {
			m.t.Fatalf("%s: %v", s, err)
		}
	}
}

func (m *market) number(query string) (n int64) {
	m.t.Helper()
	if err := m.db.QueryRowContext(m.t.Context(), query).Scan(&n); err != nil {
		m.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// start starts writers that go on with the sequence, and some of the tag, once it is there.
func (m *market) start(n int) {
	m.db.SetMaxOpenConns(2 * n)
	m.db.SetMaxIdleConns(2 * n)
	client := &http.Client{Timeout: patience.Call, Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	for range n {
		m.writers.Go(func() {
			for !m.ends.Load() {
				if _, err := m.db.ExecContext(context.Background(), "INSERT INTO orders DEFAULT VALUES"); err == nil {
					m.old.Add(1)
				} else {
					patience.Again() // the sequence is shut
				}
			}
		})
		m.writers.Go(func() {
			for !m.ends.Load() {
				ids, err := take(client, m.server.url, m.prefix+"orders", 2)
				if err != nil {
					patience.Again() // there is no such tag yet
				}
				for _, id := range ids {
					if _, err := m.db.ExecContext(context.Background(), "INSERT INTO orders VALUES ($1, true)", int64(id)); err == nil {
						m.new.Add(1)
					}
				}
			}
		})
	}
}

func (m *market) end() {
	m.ends.Store(true)
	m.writers.Wait()
}

// await waits until so many more rows were written.
func (m *market) await(n *atomic.Int64, more int64) {
	m.t.Helper()
	from := n.Load()
	patience.Until(m.t, fmt.Sprintf("%d more rows", more), func() bool { return n.Load() >= from+more }, m.server)
}

// command is hapax import sequences with the flags of the test.
func (m *market) command(server, how string, margin int, flags ...string) []string {
	return append([]string{
		"import", "sequences", "file:" + m.file, "--prefix", m.prefix, "--switch", how, "--margin", fmt.Sprint(margin),
		"--sample", "0s", "--watch", "1ms", "--ignore-living", "--server", server,
	}, flags...)
}

// A point is where the command is killed: at so many of its requests, to the database and
// to the server together, before the request arrives or after the answer was sent.
type point struct {
	at    int
	text  string // instead: at the first request of which it is a part
	after bool
}

// apply runs the command, and kills it at a point; 0 does not. It returns how many requests
// there were, and whether the command was killed.
func (m *market) apply(k *killers, p point, how string, margin int) (requests int, killed bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience.Long)
	defer cancel()
	cmd := command(ctx, m.t.TempDir(), nil, m.command("http://"+k.proxies[1].Addr, how, margin, "--apply")...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	var count atomic.Int64
	var struck atomic.Bool
	matches := func(request []byte) bool {
		if n := int(count.Add(1)); n != p.at && (p.text == "" || struck.Load() || !bytes.Contains(request, []byte(p.text))) {
			return false
		}
		struck.Store(true)
		if !p.after {
			_ = cmd.Process.Kill()
		}
		return true
	}
	for _, proxy := range k.proxies {
		if p.after {
			proxy.CutReply(matches) // the answer is lost, and the command does not go on without
		} else {
			proxy.CutRequest(matches)
		}
		defer proxy.Pass()
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	over, end := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { // the answer has been sent once a proxy holds it back
		defer close(watched)
		for fired := k.fired(); p.after && over.Err() == nil && k.fired() == fired; {
			patience.Again()
		}
		if over.Err() == nil && p.after {
			_ = cmd.Process.Kill()
		}
	}()
	err := cmd.Wait()
	end()
	<-watched
	if p == (point{}) && err != nil {
		m.t.Fatalf("%s: %v: %s", how, err, out.String())
	}
	return int(count.Load()), struck.Load()
}

// Killers are both proxies, and what they stand before.
type killers struct {
	server  *serving
	admin   *sql.DB
	address string
	proxies [2]*testservers.Proxy // before the database, and before the server
}

func (k *killers) fired() int { return k.proxies[0].Fired() + k.proxies[1].Fired() }

func newKillers(t *testing.T) *killers {
	t.Helper()
	pg := testservers.SharedPostgres(t)
	pg.MustProxy()
	k := &killers{address: pg.URL, admin: openSQL(t, pg.URL)}
	k.server = serve(t, t.TempDir(), []string{"HAPAX_AUTO_CREATE=false", "HAPAX_MAX_WAIT=1m"})
	k.proxies = [2]*testservers.Proxy{testservers.NewProxy(t, pg.Addr), testservers.NewProxy(t, strings.TrimPrefix(k.server.url, "http://"))}
	return k
}

// The command is killed at ten points of its way while writers go on, and repeated: no
// number comes twice into a column that has no unique index, none stands above the mark,
// and --verify says so.
func TestImportSequencesKilled(t *testing.T) {
	t.Parallel()
	newKillers(t).all(t, 3, func(i int) []string { return []string{[]string{"stop", "gap", "parity"}[i%3]} })
}

// As TestImportSequencesKilled, with twenty writers and each switch at each point.
func TestImportSequencesKilledSoak(t *testing.T) {
	patience.Soak(t, "forty writers, and thirty moves")
	newKillers(t).all(t, 20, func(int) []string { return []string{"stop", "gap", "parity"} })
}

const points = 10

func (k *killers) all(t *testing.T, writers int, switches func(point int) []string) {
	m := newMarket(t, k.server, k.admin, k.proxies[0], k.address)
	m.start(1)
	m.await(&m.old, 5)
	requests, _ := m.apply(k, point{}, "stop", 1_000_000)
	m.end()
	if requests < 2*points {
		t.Fatalf("a move takes %d requests", requests)
	}
	for i := range points {
		p := point{at: 1 + i*(requests-4)/(points-1), after: i%2 == 1}
		for _, how := range switches(i) {
			t.Run(fmt.Sprintf("%s at %d of %d", how, p.at, requests), func(t *testing.T) {
				newMarket(t, k.server, k.admin, k.proxies[0], k.address).moved(k, writers, p, how)
			})
		}
	}
	t.Run("not repeated", func(t *testing.T) { // what a command leaves that is killed before the source is shut
		m := newMarket(t, k.server, k.admin, k.proxies[0], k.address)
		m.start(writers)
		m.await(&m.old, 20)
		if _, killed := m.apply(k, point{text: "ALTER SEQUENCE"}, "gap", 200); !killed {
			t.Fatal("it was not killed")
		}
		m.await(&m.old, 600)
		if tag := m.tag(); !tag.Deleted || m.twice() > 0 || m.new.Load() > 0 {
			t.Errorf("%d numbers are there twice, %d rows are of the tag %+v", m.twice(), m.new.Load(), tag)
		}
		create := []string{"tags", "create", m.prefix + "orders", "--server", k.server.url} // beside a source that is open
		if r := run(t, t.TempDir(), create...); r.code != 2 || !strings.Contains(r.err, "--of-source") {
			t.Errorf("a tag whose source is open is created: %+v", r)
		}
		ok(t, t.TempDir(), append(create, "--of-source")...)
		patience.Until(t, "a number that came twice", func() bool { return m.twice() > 0 })
	})
}

func (m *market) twice() int64 { return m.number("SELECT count(*) - count(DISTINCT id) FROM orders") }

// moved moves a market with a command that is killed, and one that is not.
func (m *market) moved(k *killers, writers int, p point, how string) {
	t := m.t
	m.start(writers)
	m.await(&m.old, 20)
	if _, killed := m.apply(k, p, how, 1_000_000); !killed {
		t.Fatal("it was not killed")
	}
	patience.Until(t, "the tag names its column, which the server may be too busy to read within its bound", func() bool {
		m.apply(k, point{}, how, 1_000_000)
		return len(m.tag().FloorFrom) > 0
	})
	m.await(&m.new, 50)
	if how == "parity" {
		m.await(&m.old, 20)
	}
	m.end()
	if out := ok(t, t.TempDir(), m.command(k.server.url, how, 1, "--verify")...); !strings.Contains(out, m.prefix+"orders") || !strings.Contains(out, "as it was left") {
		t.Errorf("verified: %s", out)
	}
	tag := m.tag()
	for what, query := range map[string]string{
		"numbers are there twice":                           "SELECT count(*) - count(DISTINCT id) FROM orders",
		"rows stand at or above the mark":                   fmt.Sprintf("SELECT count(*) FROM orders WHERE new AND id >= %d", *tag.Mark),
		"rows of the tag stand below its first number":      fmt.Sprintf("SELECT count(*) FROM orders WHERE new AND id < %d", *tag.Start),
		"rows of the sequence stand among those of the tag": fmt.Sprintf("SELECT count(*) FROM orders WHERE NOT new AND id >= %d AND (%t OR id %% 2 = 0)", *tag.Start, how != "parity"),
	} {
		if n := m.number(query); n > 0 {
			t.Errorf("%d %s; the tag is %+v", n, what, tag)
		}
	}
	if want := (api.FloorFrom{URL: "file:" + m.file, Table: "public.orders", Column: "id"}); len(tag.FloorFrom) != 1 || tag.FloorFrom[0] != want {
		t.Errorf("the tag's columns are %+v, want %+v", tag.FloorFrom, want)
	}
	t.Logf("%d rows the old way, %d the new one", m.old.Load(), m.new.Load())
}

func (m *market) tag() (tag api.Tag) {
	m.t.Helper()
	resp, err := http.Get(m.server.url + "/v1/tags/" + m.prefix + "orders")
	if err != nil {
		m.t.Fatal(err)
	}
	body, err := answer(resp)
	if err == nil {
		err = json.Unmarshal(body, &tag)
	}
	if err != nil || tag.Start == nil || tag.Mark == nil {
		m.t.Fatalf("%v: %s", err, body)
	}
	return tag
}
