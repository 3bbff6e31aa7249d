package sqlstore_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/postgresstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return Open(ctx, url, sqlstore.Options{Timeout: patience.Call})
	})
}

// kinds are the servers that every test of this package runs on.
var kinds = map[string]struct {
	dialect sqlstore.Dialect
	start   func(testing.TB, ...string) *testservers.Server
	share   func(testing.TB) *testservers.Server
}{
	"mariadb":  {sqlstore.MySQL, testservers.MariaDB, testservers.SharedMariaDB},
	"postgres": {sqlstore.PostgreSQL, testservers.Postgres, testservers.SharedPostgres},
}

// onServers runs the test on a server of each kind, which others use at the same
// time; the store's tables are fresh.
func onServers(t *testing.T, f func(t *testing.T, s *testservers.Server, url string)) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kind.share(t)
			f(t, s, fresh(s.URL))
		})
	}
}

// onOwnServers is onServers for tests that control their server, or change it for
// everybody.
func onOwnServers(t *testing.T, f func(t *testing.T, s *testservers.Server, url string)) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kind.start(t)
			s.MustControl()
			f(t, s, fresh(s.URL))
		})
	}
}

// fresh returns the URL with a prefix that nobody else uses.
func fresh(raw string) string {
	return with(raw, "prefix", "hapax_"+strings.ToLower(rand.Text()[:10])+"_")
}

func with(raw, param, value string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set(param, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// Open opens a store by the package for its URL.
func Open(ctx context.Context, url string, opts sqlstore.Options) (*sqlstore.Store, error) {
	if strings.HasPrefix(url, "mysql:") {
		return mysqlstore.Open(ctx, url, opts)
	}
	return postgresstore.Open(ctx, url, opts)
}

// urls has the URL of each store that open returned.
var urls sync.Map

func open(t testing.TB, url string, opts sqlstore.Options) *sqlstore.Store {
	t.Helper()
	opts.Timeout = cmp.Or(opts.Timeout, patience.Call)
	s, err := Open(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	urls.Store(s, url)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func create(t testing.TB, s *sqlstore.Store, name string) hapax.Tag {
	t.Helper()
	def, err := hapax.Tag{Name: name, Step: 10}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	tag, err := s.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func allocate(t testing.TB, s *sqlstore.Store, name string, n int64) hapax.Grant {
	t.Helper()
	a, err := s.Allocate(t.Context(), name, n, "")
	if err != nil {
		t.Fatal(err)
	}
	return a.Grant
}

// run executes statements on the server behind the store's back.
func run(t testing.TB, s *sqlstore.Store, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := admin(t, s).ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// admin returns connections to the store's server without its checks.
func admin(t testing.TB, s *sqlstore.Store) *sql.DB {
	return plain(t, urlOf(t, s))
}

func urlOf(t testing.TB, s *sqlstore.Store) string {
	u, ok := urls.Load(s)
	if !ok {
		t.Fatal("the store was not opened by open")
	}
	return u.(string)
}

// plain returns connections to the server of a store's URL, as any program has
// them.
func plain(t testing.TB, raw string) *sql.DB { return plainWith(t, raw, false) }

func plainWith(t testing.TB, raw string, foundRows bool) *sql.DB {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Del("prefix")
	u.RawQuery = q.Encode()
	name, dsn := "pgx", u.String()
	if u.Scheme == "mysql" {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Net, cfg.Addr, cfg.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
		cfg.Passwd, _ = u.User.Password()
		cfg.ClientFoundRows = foundRows
		name, dsn = "mysql", cfg.FormatDSN()
	}
	db, err := sql.Open(name, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func wantErr(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: error is %v, want %v", what, err, w)
		}
	}
}

func TestConformance(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server, url string) {
		storetest.Run(t, storetest.Harness{
			Open:         func(t testing.TB) storetest.Handle { return open(t, url, sqlstore.Options{}) },
			URL:          url,
			Capabilities: storetest.Capabilities{Shared: true, Durable: true},
			Silence: testservers.Silence(server, url, func(ctx context.Context, url string, timeout time.Duration) (storetest.Handle, error) {
				return Open(ctx, url, sqlstore.Options{Timeout: timeout})
			}),
		})
	})
}

func TestKV(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		storetest.RunKV(t, storetest.Harness{
			Open:         func(t testing.TB) storetest.Handle { return open(t, url, sqlstore.Options{}) },
			URL:          url,
			Capabilities: storetest.Capabilities{Shared: true, Durable: true},
		})
	})
}

// No step writes to another store that stands where the opened one stood.
func TestReplaced(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		storetest.RunReplaced(t, func(ctx context.Context) (storetest.Handle, error) {
			return Open(ctx, url, sqlstore.Options{})
		}, func(ctx context.Context) error {
			_, err := plain(t, url).ExecContext(ctx, "UPDATE "+prefixOf(url)+"meta SET value = 'another'")
			return err
		})
	})
}

// A store that is restored takes the identity of the one that it was.
func TestRestoredIdentity(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		storetest.RunRestored(t, func(ctx context.Context) (storetest.Handle, error) {
			return Open(ctx, url, sqlstore.Options{Timeout: patience.Call})
		})
	})
}

// What was acknowledged before a server was killed in the middle of its work is
// not granted again after its restart, and callers need not open the store anew.
func TestKilledServer(t *testing.T) {
	onOwnServers(t, func(t *testing.T, server *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{})
		create(t, s, "orders")
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex // guards granted
		var granted []hapax.Grant
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					a, err := s.Allocate(ctx, "orders", 0, "")
					if err != nil {
						wantErr(t, "allocate while the server is killed", err, hapax.ErrStoreUnavailable)
						continue
					}
					mu.Lock()
					granted = append(granted, a.Grant)
					mu.Unlock()
				}
			})
		}
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(granted)
		}
		awaitMore := func() {
			want := count() + 30
			patience.Await(t, fmt.Sprint(want, " grants"), func() (int, error) { return count(), nil }, func(n int) bool { return n >= want || t.Failed() })
		}
		for range 3 {
			awaitMore()
			server.Kill()
			server.Start()
		}
		awaitMore()
		stop()
		wg.Wait()
		disjoint(t, granted)
	})
}

func disjoint(t testing.TB, grants []hapax.Grant) {
	t.Helper()
	seen := map[int64]bool{}
	for _, g := range grants {
		for n := g.Lo; n < g.Hi; n++ {
			if seen[n] {
				t.Errorf("%d was granted twice, the second time in %v", n, g)
				return
			}
			seen[n] = true
		}
	}
}

// A write whose answer was lost is reported as unknown and not repeated: the
// mark has moved by exactly one step, and what follows lies above it.
func TestAmbiguousWrite(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server, url string) {
		server.MustProxy()
		proxy := testservers.NewProxy(t, server.Addr)
		s := open(t, proxy.URL(url), sqlstore.Options{MaxConns: 1})
		direct := open(t, url, sqlstore.Options{})
		create(t, s, "orders")
		value := []byte("0")
		if ok, err := s.SwapRow(t.Context(), "t", "r", nil, value); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for i := range int64(3) {
			allocate(t, s, "orders", 10) // the connection and the definition are there
			before, err := direct.Tag(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}

			// The driver's next request is the statement itself.
			proxy.CutReply(testservers.Nth(1))
			_, err = s.Allocate(t.Context(), "orders", 10, "")
			wantErr(t, "allocate with a lost answer", err, hapax.ErrStoreUnavailable)
			if got, want := int64(proxy.Fired()), 2*i+1; got != want {
				t.Fatalf("%d connections were cut, want %d", got, want)
			}
			after, err := direct.Tag(t.Context(), "orders")
			if err != nil || after.Mark != before.Mark+10 {
				t.Fatalf("the mark went from %d to %d (%v), want one step of 10", before.Mark, after.Mark, err)
			}
			if g := allocate(t, s, "orders", 10); g.Lo != after.Mark {
				t.Errorf("the next grant is %v, want it to begin at %d", g, after.Mark)
			}

			next := append(bytes.Clone(value), '+')
			swap := func() (bool, error) { return s.SwapRow(t.Context(), "t", "r", value, next) }
			warm(t, s)
			proxy.CutReply(testservers.Nth(1))
			_, err = swap()
			wantErr(t, "swap with a lost answer", err, hapax.ErrStoreUnavailable)
			if ok, err := swap(); ok || err != nil {
				t.Errorf("the swap that had happened: %v, %v, want it refused", ok, err)
			}
			value = next
		}
	})
}

// warm makes the driver know the statement that writes a row, so that the next
// request is that statement.
func warm(t testing.TB, s *sqlstore.Store) {
	t.Helper()
	if ok, err := s.SwapRow(t.Context(), "t", "r", []byte("none"), []byte("x")); ok || err != nil {
		t.Fatal(ok, err)
	}
}

// A network that swallows everything ends calls at their time limit or their
// context, whichever is first, and the store works again when it is mended.
func TestBlackhole(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server, url string) {
		server.MustProxy()
		proxy := testservers.NewProxy(t, server.Addr)
		s := open(t, proxy.URL(url), sqlstore.Options{MaxConns: 2})
		create(t, s, "orders")
		first := allocate(t, s, "orders", 10)
		s.SetTimeout(300 * time.Millisecond)
		proxy.Blackhole()
		for range 3 {
			_, err := s.Allocate(t.Context(), "orders", 10, "")
			wantErr(t, "allocate", err, hapax.ErrStoreUnavailable)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the store's own limit looks like the caller's: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := s.Allocate(ctx, "orders", 10, "")
		wantErr(t, "allocate until a deadline", err, hapax.ErrStoreUnavailable, context.DeadlineExceeded)
		wantErr(t, "ping", s.Ping(t.Context()), hapax.ErrStoreUnavailable)
		proxy.Pass()
		granted := []hapax.Grant{first}
		for end := time.Now().Add(patience.Long); len(granted) < 10; {
			a, err := s.Allocate(t.Context(), "orders", 10, "")
			if err == nil {
				granted = append(granted, a.Grant)
			} else if time.Now().After(end) {
				t.Fatal("the store does not come back: ", err)
			}
		}
		disjoint(t, granted)
	})
}

// A call waits for a server that restarts, as long as its time limit allows:
// a connection that could not be made has done nothing.
func TestWaitsForServer(t *testing.T) {
	onOwnServers(t, func(t *testing.T, server *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{Timeout: patience.Long})
		create(t, s, "orders")
		server.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.Tag(ctx, "orders") // also finds the connections dead
		wantErr(t, "tag without a server", err, hapax.ErrStoreUnavailable)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.Allocate(t.Context(), "orders", 10, ""); err != nil {
				t.Error(err)
			}
		})
		server.Start()
		wg.Wait()

		server.Kill()
		if _, err := Open(t.Context(), url, sqlstore.Options{Timeout: -1}); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("a negative time limit: %v", err)
		}
		_, err = Open(t.Context(), url, sqlstore.Options{Timeout: 100 * time.Millisecond})
		wantErr(t, "open without a server", err, hapax.ErrStoreUnavailable)
	})
}

func TestStoreTime(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{})
		before := time.Now()
		now, err := s.StoreTime(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The server runs on this machine's clock, unless it existed before.
		if d := now.Sub(before); d < -time.Minute || d > time.Minute {
			t.Errorf("the server's clock is off by %v", d)
		}
	})
}
