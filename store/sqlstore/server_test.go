package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// The printed schema is what Open creates, and an account that may not create,
// alter, drop or delete anything can work on it.
func TestSchemaAndRights(t *testing.T) {
	onOwnServers(t, func(t *testing.T, server *testservers.Server, created string) {
		root := open(t, created, sqlstore.Options{})
		printed := fresh(server.URL)
		script, err := sqlstore.Schema(root.Name(), prefixOf(printed))
		if err != nil {
			t.Fatal(err)
		}
		for statement := range strings.SplitSeq(strings.TrimSpace(script), ";\n") {
			if strings.TrimSpace(statement) != "" {
				run(t, root, strings.TrimSuffix(statement, ";"))
			}
		}
		a, b := describe(t, root, prefixOf(created)), describe(t, root, prefixOf(printed))
		if a != b {
			t.Errorf("Open created\n%s\nthe script created\n%s", a, b)
		}

		clerk := strings.Replace(printed, userOf(printed)+"@", "clerk:s3cret-w0rd@", 1)
		if root.Name() == sqlstore.MySQL {
			run(t, root, "CREATE USER clerk IDENTIFIED BY 's3cret-w0rd'")
		} else {
			run(t, root, "CREATE ROLE clerk LOGIN PASSWORD 's3cret-w0rd'", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
		}
		_, err = Open(t.Context(), clerk, sqlstore.Options{})
		wantErr(t, "open without rights", err, hapax.ErrStoreUnavailable)
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error %q holds the password", err)
		}
		run(t, root, "GRANT SELECT, INSERT ON "+prefixOf(printed)+"meta TO clerk", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+prefixOf(printed)+"rows TO clerk")
		s := open(t, clerk, sqlstore.Options{})
		create(t, s, "orders")
		allocate(t, s, "orders", 10)
		if _, err := s.DeleteTag(t.Context(), "orders"); err != nil {
			t.Error(err)
		}
		if _, err := s.CreateTag(t.Context(), must(hapax.Tag{Name: "orders"}.WithDefaults()), hapax.CreateExplicit); err != nil {
			t.Error(err)
		}
		for _, step := range [][2][]byte{{nil, []byte("1")}, {[]byte("1"), []byte("2")}, {[]byte("2"), nil}} {
			if ok, err := s.SwapRow(t.Context(), "t", "r", step[0], step[1]); !ok || err != nil {
				t.Error(ok, err)
			}
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func userOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	return u.User.Username()
}

// describe returns how the server itself describes the tables.
func describe(t testing.TB, s *sqlstore.Store, prefix string) string {
	t.Helper()
	db := admin(t, s)
	var b strings.Builder
	for _, table := range []string{"meta", "rows"} {
		query := "SHOW CREATE TABLE " + prefix + table
		if s.Name() == sqlstore.PostgreSQL {
			query = `SELECT 'column', string_agg(concat_ws(' ', column_name, data_type, collation_name, is_nullable, column_default), ', ' ORDER BY ordinal_position)
				FROM information_schema.columns WHERE table_name = '` + prefix + table + `'
				UNION ALL SELECT 'index', indexdef FROM pg_indexes WHERE tablename = '` + prefix + table + `' ORDER BY 1`
		}
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for rows.Next() {
			var name, text string
			if err := rows.Scan(&name, &text); err != nil {
				t.Fatal(err)
			}
			b.WriteString(strings.ReplaceAll(text, prefix, "PREFIX_") + "\n")
			n++
		}
		if err := rows.Err(); err != nil || n == 0 {
			t.Fatal(n, err)
		}
	}
	return b.String()
}

// Open creates the tables when many processes do so at once.
func TestOpenAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		const stores = 16
		ids := make([]string, stores)
		var wg sync.WaitGroup
		for i := range stores {
			wg.Go(func() {
				s, err := Open(t.Context(), url, sqlstore.Options{Timeout: patience.Call})
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				if ids[i], err = s.StoreID(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] || id == "" {
				t.Fatalf("the stores have the IDs %q, want one", ids)
			}
		}
	})
}

// In the steady state a call is one request on the network.
func TestRoundTrips(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server, url string) {
		server.MustProxy()
		proxy := testservers.NewProxy(t, server.Addr)
		s := open(t, proxy.URL(url), sqlstore.Options{MaxConns: 1})
		create(t, s, "orders")
		layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
		if err != nil {
			t.Fatal(err)
		}
		term := hapax.Term{Now: time.Now(), Length: time.Minute, Ahead: time.Second, Behind: time.Second, TTL: time.Minute}
		lease, err := s.AcquireWorker(t.Context(), hapax.AcquireRequest{
			Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 1, Hi: 2}, Holder: "me", Term: term,
		})
		if err != nil {
			t.Fatal(err)
		}
		var a hapax.Allocation
		grant := func() {
			if a, err = s.Allocate(t.Context(), "orders", 0, a.Key); err != nil {
				t.Error(err)
			}
		}
		grant()
		pulse, value := driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 1}}, []byte("x")
		for _, row := range [][2]string{{driver.TableBeats, "n"}, {"t", "r"}} {
			first := value
			if row[0] == driver.TableBeats {
				first = pulse.Was.Encode()
			}
			if ok, err := s.SwapRow(t.Context(), row[0], row[1], nil, first); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		before := proxy.RoundTrips()
		open(t, url, sqlstore.Options{}) // a store that is there: a distant one takes long for each
		if made, most := proxy.RoundTrips()-before, map[sqlstore.Dialect]int{sqlstore.PostgreSQL: 4, sqlstore.MySQL: 7}[s.Name()]; made > most {
			t.Errorf("opening made %d round trips, want %d at most", made, most)
		}
		for range 5 { // then PostgreSQL's driver has prepared the statement
			if c, err := s.Beat(t.Context(), pulse); err != nil || !c.Met {
				t.Error(c, err)
			}
		}
		for _, counters := range [][2]int64{{1 << 31, 5}, {7, 1 << 40}, {1<<31 - 1, 1<<31 - 1}, {0, 3}, {3, 0}} { // two have room in one answer where both are small
			for i, name := range []string{driver.RowJoins, driver.RowChanges} {
				old, err := s.Row(t.Context(), driver.TableGuard, name)
				if err == nil {
					_, err = s.SwapRow(t.Context(), driver.TableGuard, name, old, driver.EncodeCounter(counters[i]))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			pulse.Now.Count++
			before := proxy.RoundTrips()
			c, err := s.Beat(t.Context(), pulse)
			if err != nil || !c.Met || c.Joins != counters[0] || c.Changes != counters[1] {
				t.Errorf("a heartbeat tells %+v, %v; want joins and changes %v", c, err, counters)
			}
			if made := proxy.RoundTrips() - before; made != 1 && max(counters[0], counters[1]) < 1<<31 {
				t.Errorf("a heartbeat with joins and changes %v made %d round trips", counters, made)
			}
		}
		beat := func() { pulse.Now.Count++ }
		var many []driver.HandBackOf
		allocateMany := func() {
			beat()
			var all []driver.AllocateOf
			for i := range 3 {
				all = append(all, driver.AllocateOf{Tag: fmt.Sprint("tag ", i)})
			}
			made, c, err := s.AllocateAllWith(t.Context(), pulse, all)
			if err != nil || !c.Met {
				t.Error(c, err)
			}
			many = nil
			for _, m := range made {
				many = append(many, driver.HandBackOf{Allocation: m.Allocation, Next: m.Grant.Lo})
			}
		}
		for i := range 3 {
			create(t, s, fmt.Sprint("tag ", i))
		}
		calls := map[string]struct{ before, call func() }{
			"Allocate": {grant, grant},
			"HandBack": {grant, func() {
				if err := s.HandBack(t.Context(), a, a.Grant.Lo); err != nil {
					t.Error(err)
				}
			}},
			"Beat": {func() {}, func() {
				beat()
				if c, err := s.Beat(t.Context(), pulse); err != nil || !c.Met {
					t.Error(c, err)
				}
			}},
			"AllocateWith": {func() {}, func() {
				beat()
				if _, c, err := storetest.AllocateWith(t.Context(), s, pulse, "orders", 0, ""); err != nil || !c.Met {
					t.Error(c, err)
				}
			}},
			"HandBackWith": {grant, func() {
				beat()
				if c, err := storetest.HandBackWith(t.Context(), s, pulse, a, a.Grant.Lo); err != nil || !c.Met {
					t.Error(c, err)
				}
			}},
			"AllocateAllWith": {func() {}, allocateMany},
			"HandBackAllWith": {allocateMany, func() {
				beat()
				if given, c, err := s.HandBackAllWith(t.Context(), pulse, many); err != nil || !c.Met || slices.Contains(given, false) {
					t.Error(given, c, err)
				}
			}},
			"SwapRowWith": {func() {}, func() {
				old := value
				value = append(bytes.Clone(value), 'x')
				beat()
				if ok, c, err := s.SwapRowWith(t.Context(), pulse, "t", "r", old, value); err != nil || !ok || !c.Met {
					t.Error(ok, c, err)
				}
			}},
			"ExtendWorker": {func() {}, func() {
				term.Now = term.Now.Add(time.Second)
				if lease, err = s.ExtendWorker(t.Context(), lease, layout, term); err != nil {
					t.Error(err)
				}
			}},
		}
		for name, call := range calls {
			for range 5 { // then PostgreSQL's driver has prepared the statement
				call.before()
				call.call()
			}
			call.before()
			var mu sync.Mutex
			requests := 0
			proxy.CutReply(func([]byte) bool {
				mu.Lock()
				defer mu.Unlock()
				requests++
				return false
			})
			call.call()
			proxy.Pass()
			mu.Lock()
			if requests != 1 {
				t.Errorf("%s made %d requests, want 1", name, requests)
			}
			mu.Unlock()
		}
	})
}

// sqlstore.PostgreSQL sends the new mark before it commits. A commit that fails then
// must fail the call, and grant nothing.
func TestCommitFailsAfterRow(t *testing.T) {
	t.Parallel()
	server := testservers.SharedPostgres(t)
	url := fresh(server.URL)
	s := open(t, url, sqlstore.Options{})
	create(t, s, "orders")
	first := allocate(t, s, "orders", 10)
	f := prefixOf(url) + "refuse"
	run(t, s, "CREATE FUNCTION "+f+"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$",
		"CREATE CONSTRAINT TRIGGER "+f+" AFTER UPDATE ON "+prefixOf(url)+"rows DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION "+f+"()")
	a, err := s.Allocate(t.Context(), "orders", 10, "")
	wantErr(t, "allocate", err, hapax.ErrStoreUnavailable)
	if a != (hapax.Allocation{}) {
		t.Errorf("granted %+v together with the error", a)
	}
	run(t, s, "DROP TRIGGER "+f+" ON "+prefixOf(url)+"rows", "DROP FUNCTION "+f+"()")
	if next := allocate(t, s, "orders", 10); next.Lo != first.Hi {
		t.Errorf("the grant after %v is %v", first, next)
	}
}

// A deadlock's victim was rolled back for certain, and is tried again. A grant locks the row of its
// process before the tag's.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	server := testservers.MariaDB(t)
	url := fresh(server.URL)
	s := open(t, url, sqlstore.Options{})
	create(t, s, "orders")
	first := allocate(t, s, "orders", 10)
	pulse := driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}}
	if ok, err := s.SwapRow(t.Context(), driver.TableBeats, pulse.Row, nil, pulse.Was.Encode()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	deadlocks := func() (name string, n int) {
		if err := admin(t, s).QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return name, n
	}
	_, before := deadlocks()

	tx, err := admin(t, s).BeginTx(t.Context(), &sql.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	rows := prefixOf(url) + "rows"
	// The victim is the one that has changed and locked less.
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+rows+" (tbl, name, value) VALUES ('x', '1', 'v')"+strings.Repeat(", ('x', UUID(), 'v')", 99)); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "UPDATE "+rows+" SET value = REPLACE(value, 'max_step\":1', 'max_step\":2') WHERE tbl = '' AND name = 'orders'"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if next, c, err := storetest.AllocateWith(t.Context(), s, pulse, "orders", 10, ""); err != nil || !c.Met || next.Grant.Lo != first.Hi {
			t.Errorf("the grant after %v is %v, %+v, %v", first, next.Grant, c, err)
		}
	})
	eventually(t, s, "SELECT VARIABLE_VALUE = 1 FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Innodb_row_lock_current_waits'")
	if _, err := tx.ExecContext(t.Context(), "UPDATE "+rows+" SET value = CONCAT(value, '') WHERE tbl = '"+driver.TableBeats+"' AND name = 'n'"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if _, after := deadlocks(); after == before {
		t.Error("there was no deadlock, so nothing was tested")
	}
}

// A tag edited behind the store's back counts at the next grant; nonsense is
// refused.
func TestEditedTag(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{})
		create(t, s, "orders")
		create(t, s, "sound")
		first := allocate(t, s, "orders", 0)
		edit := func(from, to string) {
			t.Helper()
			run(t, s, "UPDATE "+prefixOf(url)+"rows SET value = REPLACE(value, '"+from+"', '"+to+"') WHERE tbl = '' AND name = 'orders'")
		}
		edit(`"step":10,"min_step":10,`, `"step":25,"min_step":25,`)
		a, err := s.Allocate(t.Context(), "orders", 0, "")
		if err != nil || a.Tag.Step != 25 || a.Grant != (hapax.Grant{Lo: first.Hi, Hi: first.Hi + 25}) {
			t.Errorf("the grant is %+v, %v; want 25 numbers from %d", a, err, first.Hi)
		}
		const sound = `{"kind":"segment","start":1,"step":25,"min_step":25,"max_step":1000000,"delta":1,"mark":100}`
		whole := func(value string) {
			t.Helper()
			run(t, s, "UPDATE "+prefixOf(url)+"rows SET value = '"+value+"' WHERE tbl = '' AND name = 'orders'")
		}
		for _, nonsense := range [][2]string{
			{`"mark":100`, `"mark":-5`},
			{`"mark":100`, `"mark":0`},
			{"segment", "other"},
			{`"step":25`, `"step":0`},
			{`"step":25`, `"step":-5`},
			{`"delta":1`, `"delta":0`},
			{`"delta":1`, `"delta":1,"remainder":1`},
			{`"mark":100`, `"mark":9223372036854775807`},
			{`"mark":100`, `"mark":100,"more":1`},
			{sound, ""},
			{sound, "x"},
			{sound, strings.Repeat("1", driver.MaxValueBytes+1)},
		} {
			whole(sound)
			allocate(t, s, "orders", 1)
			whole(strings.Replace(sound, nonsense[0], nonsense[1], 1))
			for i, s := range []*sqlstore.Store{s, open(t, url, sqlstore.Options{})} { // with and without the row known
				a, err := s.Allocate(t.Context(), "orders", 1, "")
				_, errTag := s.Tag(t.Context(), "orders")
				tags, errTags := s.Tags(t.Context(), "", 10)
				if errTags != nil || len(tags) != 2 || !slices.Contains(tags, hapax.Tag{Name: "orders", Kind: hapax.KindUnreadable}) {
					t.Errorf("%.80q, handle %d: the tags are %+v, %v", nonsense, i, tags, errTags)
				}
				for call, err := range map[string]error{"allocate": err, "tag": errTag} {
					if _, ok := errors.AsType[*driver.UnreadableError](err); !ok || !errors.Is(err, hapax.ErrStoreCorrupt) {
						t.Errorf("%.80q, handle %d: %s: granted %v, %v; want an error of this tag alone", nonsense, i, call, a.Grant, err)
					}
				}
			}
		}
	})
}

// Holders are bytes; names differ by case, spaces and form.
func TestOddBytes(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{})
		names := []string{"a", "A", "a ", " a", "á", "a\u0301", "'; --", `\`, "%", "_", "🙂", strings.Repeat("é", 64)}
		for i, name := range names {
			create(t, s, name)
			value := []byte{0, 0xff, '\'', '\\', byte(i)}
			if ok, err := s.SwapRow(t.Context(), "t", name, nil, value); !ok || err != nil {
				t.Errorf("row %q: %v, %v", name, ok, err)
			}
			if ok, err := s.SwapRow(t.Context(), name, "r", nil, value); !ok || err != nil {
				t.Errorf("table %q: %v, %v", name, ok, err)
			}
		}
		for i, name := range names {
			want := []byte{0, 0xff, '\'', '\\', byte(i)}
			if v, err := s.Row(t.Context(), "t", name); err != nil || !bytes.Equal(v, want) {
				t.Errorf("row %q: %q, %v", name, v, err)
			}
			if rows, err := s.ListRows(t.Context(), name, "", 9); err != nil || len(rows) != 1 || rows[0].Name != "r" || !bytes.Equal(rows[0].Value, want) {
				t.Errorf("table %q: %q, %v", name, rows, err)
			}
		}
		slices.Sort(names)
		rows, err := s.ListRows(t.Context(), "t", names[0], len(names))
		for i, row := range rows {
			if row.Name != names[i+1] {
				t.Errorf("row %d is %q, want %q", i, row.Name, names[i+1])
			}
		}
		if err != nil || len(rows) != len(names)-1 {
			t.Errorf("%d rows, %v", len(rows), err)
		}
		for i, name := range names {
			if g := allocate(t, s, name, int64(i+1)); g != (hapax.Grant{Lo: 1, Hi: int64(i + 2)}) {
				t.Errorf("tag %q: %v", name, g)
			}
		}
		for _, bad := range []string{"", "\x00", "\xff", strings.Repeat("x", 129)} {
			for call, err := range map[string]error{
				"Allocate":  second(s.Allocate(t.Context(), bad, 1, "")),
				"Tag":       second(s.Tag(t.Context(), bad)),
				"UpdateTag": second(s.UpdateTag(t.Context(), bad, driver.TagUpdate{})),
				"DeleteTag": second(s.DeleteTag(t.Context(), bad)),
			} {
				wantErr(t, call, err, hapax.ErrInvalidTag)
			}
		}
		for _, bad := range []string{"", "\x00", "\xff", strings.Repeat("x", driver.MaxNameBytes+1)} {
			wantErr(t, "a bad table", second(s.SwapRow(t.Context(), bad, "r", nil, []byte("x"))), hapax.ErrInvalidArgument)
			wantErr(t, "a bad row", second(s.SwapRow(t.Context(), "t", bad, nil, []byte("x"))), hapax.ErrInvalidArgument)
		}
		long := strings.Repeat("\u00e9", driver.MaxNameBytes/2)
		large := bytes.Repeat([]byte{0}, driver.MaxValueBytes)
		if ok, err := s.SwapRow(t.Context(), long, long, nil, large); !ok || err != nil {
			t.Errorf("the largest row: %v, %v", ok, err)
		}
		if v, err := s.Row(t.Context(), long, long); err != nil || !bytes.Equal(v, large) {
			t.Errorf("the largest row has %d bytes, %v", len(v), err)
		}
	})
}

// More callers than connections wait for one another, and only as long as their
// contexts say.
func TestBoundedPool(t *testing.T) {
	onOwnServers(t, func(t *testing.T, server *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{MaxConns: 2})
		create(t, s, "orders")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := s.Allocate(t.Context(), "orders", 1, ""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := s.DB().Stats().OpenConnections; n > 2 {
			t.Errorf("%d connections are open, want 2 at most", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		server.Pause()
		var errs [4]error
		for i := range errs {
			wg.Go(func() { _, errs[i] = s.Allocate(ctx, "orders", 1, "") })
		}
		cancel()
		wg.Wait()
		server.Resume()
		for _, err := range errs {
			wantErr(t, "allocate from a paused server", err, hapax.ErrStoreUnavailable, context.Canceled)
		}
	})
}

func TestUnixSocket(t *testing.T) {
	onOwnServers(t, func(t *testing.T, server *testservers.Server, raw string) {
		u := strings.Replace(raw, server.Addr, "", 1)
		if strings.HasPrefix(u, "mysql:") {
			u = with(u, "socket", server.Dir+"/s")
		} else {
			_, port, _ := strings.Cut(server.Addr, ":")
			u = with(with(u, "host", server.Dir), "port", port)
		}
		s := open(t, u, sqlstore.Options{})
		create(t, s, "orders")
		allocate(t, s, "orders", 1)
	})
}
