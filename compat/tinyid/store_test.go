package tinyid_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/testservers"
)

func open(t testing.TB, opts tinyid.Options, urls ...string) *tinyid.Store {
	t.Helper()
	s, err := tinyid.Open(t.Context(), urls, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// database makes TinyID's tables with rows of (biz_type, max_id, step, delta,
// remainder).
func database(t testing.TB, server *testservers.Server, rows ...string) testdb.Database {
	t.Helper()
	db := testdb.New(t, server, testdb.TinyID...)
	for _, row := range rows {
		db.Run(t, "INSERT INTO tiny_id_info (biz_type, max_id, step, delta, remainder, version) VALUES ("+row+", 1)")
	}
	return db
}

// TestStore runs against one server; each part has databases of its own.
func TestStore(t *testing.T) {
	server := testservers.SharedMariaDB(t)
	for name, test := range map[string]func(*testing.T, *testservers.Server){
		"range":         testRange,
		"delta":         testDelta,
		"bad rows":      testBadRows,
		"not supported": testNotSupported,
		"races":         testRaces,
		"set back":      testSetBack,
		"end of line":   testEndOfLine,
		"fail-over":     testFailOver,
		"all down":      testAllDown,
		"overlap":       testOverlap,
		"row elsewhere": testRowElsewhere,
		"tokens":        testTokens,
		"moves":         testMoves,
		"two stores":    testTwoStores,
		"nameless":      testNameless,
		"several":       testSeveral,
		"killed move":   testKilledMove,
		"trigger":       testMoveByTrigger,

		"witness":                  testWitness,
		"witness of busy database": testWitnessBusy,
	} {
		t.Run(name, func(t *testing.T) { test(t, server) })
	}
}

// testRange: the first number is the old max_id and one.
func testRange(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'test', 1, 100000, 1, 0", "'Case', 0, 10, 1, 0")
	s := open(t, tinyid.Options{}, db.URL)
	for _, c := range []struct {
		n    int64
		want hapax.Grant
	}{{0, hapax.Grant{Lo: 2, Hi: 100002}}, {5, hapax.Grant{Lo: 100002, Hi: 100007}}} {
		a, err := s.Allocate(t.Context(), "test", c.n, "")
		if err != nil || a.Grant != c.want || a.Key != "" || a.From != c.want.Lo {
			t.Errorf("%d: got %+v, error %v; want %v without a key", c.n, a, err, c.want)
		}
	}
	if v := db.Number(t, "SELECT version FROM tiny_id_info WHERE biz_type = 'test'"); v != 3 {
		t.Errorf("version is %d; want 3", v)
	}
	if n := db.Number(t, "SELECT COUNT(*) FROM tiny_id_info WHERE biz_type = 'test' AND update_time > '2020-01-01'"); n != 1 {
		t.Error("update_time was not set")
	}
	for _, tag := range []string{"case", "Case ", "none"} {
		if a, err := s.Allocate(t.Context(), tag, 0, ""); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Errorf("%q: got %v, error %v; want ErrTagNotFound", tag, a.Grant, err)
		}
	}
	if m := db.Number(t, "SELECT max_id FROM tiny_id_info WHERE biz_type = 'Case'"); m != 0 {
		t.Errorf("max_id of Case is %d", m)
	}
}

// testDelta: step is a width, of which one number in delta is issued.
func testDelta(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'odd', 0, 100, 2, 1", "'narrow', 0, 1, 7, 3")
	is := testdb.NewIssuers(t, open(t, tinyid.Options{}, db.URL))
	for tag, want := range map[string][2]int64{"odd": {2, 1}, "narrow": {7, 3}} {
		ids := make([]hapax.ID, 500)
		if n, err := is.NextN(t.Context(), tag, ids); n != 500 || err != nil {
			t.Fatalf("%s: %d numbers, error %v", tag, n, err)
		}
		for i, id := range ids {
			if int64(id)%want[0] != want[1] || i > 0 && int64(id-ids[i-1]) != want[0] {
				t.Fatalf("%s: %d after %v; want each number that leaves %d divided by %d", tag, id, ids[max(0, i-1)], want[1], want[0])
			}
		}
	}
}

// testBadRows: a step of 0 was an endless loop, a delta of 0 a division by it, and
// a remainder that is not below delta issued wrong residues.
func testBadRows(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'step 0', 0, 0, 1, 0", "'step NULL', 0, NULL, 1, 0", "'step -1', 0, -1, 1, 0", "'delta 0', 0, 10, 0, 0", "'delta -1', 0, 10, -1, 0", "'remainder 2', 0, 10, 2, 2", "'remainder -1', 0, 10, 2, -1", "'max -1', -1, 10, 1, 0")
	s := open(t, tinyid.Options{}, db.URL)
	for _, tag := range []string{"step 0", "step NULL", "step -1", "delta 0", "delta -1", "remainder 2", "remainder -1", "max -1"} {
		a, err := s.Allocate(t.Context(), tag, 0, "")
		if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), tag) {
			t.Errorf("%s: got %v, error %v; want ErrStoreCorrupt with the row's name", tag, a.Grant, err)
		}
	}
	if n := db.Number(t, "SELECT COUNT(*) FROM tiny_id_info WHERE version <> 1"); n != 0 {
		t.Errorf("%d bad rows were changed", n)
	}
}

func testNotSupported(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'test', 0, 10, 1, 0")
	s := open(t, tinyid.Options{}, db.URL)
	a, err := s.Allocate(t.Context(), "test", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.HandBack(t.Context(), a, 1); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("HandBack: %v", err)
	}
	_, err = s.CreateTag(t.Context(), hapax.Tag{Name: "new", Start: 5, Step: 7}, hapax.CreateFirstUse)
	if !errors.Is(err, hapax.ErrNotSupported) || !strings.Contains(err.Error(), "VALUES ('new', 4, 4, 7, 1, 0, NOW(), NOW(), 1)") {
		t.Errorf("CreateTag: %v", err)
	}
}

// testRaces: losing a race is no error, and grants are disjoint; TinyID gave up
// after three tries within one transaction.
func testRaces(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'test', 0, 10, 1, 0")
	var mu sync.Mutex // guards seen
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range 4 {
		s := open(t, tinyid.Options{}, db.URL)
		for range 5 {
			wg.Go(func() {
				for range 20 {
					a, err := s.Allocate(t.Context(), "test", 0, "")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[a.Grant.Lo] || a.Grant.Len() != 10 || a.Grant.Lo%10 != 1 {
						t.Errorf("%v was granted, perhaps twice", a.Grant)
					}
					seen[a.Grant.Lo] = true
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if m := db.Number(t, "SELECT max_id FROM tiny_id_info"); m != 4*5*20*10 {
		t.Errorf("max_id is %d; want %d", m, 4*5*20*10)
	}
}

func testSetBack(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'test', 1000, 10, 1, 0")
	s := open(t, tinyid.Options{}, db.URL)
	if _, err := s.Allocate(t.Context(), "test", 0, ""); err != nil {
		t.Fatal(err)
	}
	db.Run(t, "UPDATE tiny_id_info SET max_id = 500")
	for range 100 { // a refusal does not wear off by asking again
		if a, err := s.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Fatalf("got %v, error %v; want ErrStoreRolledBack", a.Grant, err)
		}
	}
	db.Run(t, "DELETE FROM tiny_id_info")
	if _, err := s.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrTagDeleted) {
		t.Errorf("a row that is gone: %v; want ErrTagDeleted", err)
	}
}

func testEndOfLine(t *testing.T, server *testservers.Server) {
	db := database(t, server, fmt.Sprintf("'test', %d, 10, 1, 0", int64(hapax.MaxMark-16)))
	s := open(t, tinyid.Options{}, db.URL)
	if _, err := s.Allocate(t.Context(), "test", 0, ""); err != nil {
		t.Error(err)
	}
	if a, err := s.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrLineExhausted) {
		t.Errorf("got %v, error %v; want ErrLineExhausted", a.Grant, err)
	}
}

// testFailOver: with one of two databases dead, half of TinyID's fetches failed.
func testFailOver(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	a, b := database(t, server, "'test', 100, 100, 2, 0"), database(t, server, "'test', 0, 100, 2, 1")
	first, second := testservers.NewProxy(t, server.Addr), testservers.NewProxy(t, server.Addr)
	s := open(t, tinyid.Options{Timeout: 300 * time.Millisecond}, first.URL(a.URL), second.URL(b.URL))
	last := int64(0)
	issue := func(what string) {
		t.Helper()
		for range 10 {
			g, err := s.Allocate(t.Context(), "test", 50, "")
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if g.Grant.Lo <= last || g.Tag.Delta != 2 {
				t.Fatalf("%s: %v of delta %d after %d", what, g.Grant, g.Tag.Delta, last)
			}
			last = g.Grant.Hi - 1
		}
	}
	issue("both there")
	for name, trouble := range map[string]func(*testservers.Proxy){"cut off": (*testservers.Proxy).Cut, "black hole": (*testservers.Proxy).Blackhole} {
		trouble(first)
		issue("the first " + name)
		first.Pass()
		trouble(second)
		issue("the second " + name)
		second.Pass()
		issue("both back")
	}
	if n := a.Number(t, "SELECT max_id FROM tiny_id_info"); n == 100 {
		t.Error("nothing came from the first")
	}
	if n := b.Number(t, "SELECT max_id FROM tiny_id_info"); n == 0 {
		t.Error("nothing came from the second")
	}
}

// testAllDown: TinyID asked again without a pause.
func testAllDown(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	db := database(t, server, "'test', 0, 10, 1, 0")
	proxy := testservers.NewProxy(t, server.Addr)
	s := open(t, tinyid.Options{}, proxy.URL(db.URL))
	c := &counting{Store: s}
	seg, err := hapax.NewSegment(t.Context(), c, "test", hapax.SegmentOptions{NoCreate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer seg.Close(t.Context())
	proxy.Cut()
	c.reset()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	for err == nil {
		_, err = seg.Next(ctx)
	}
	<-ctx.Done()
	cancel()
	if !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("error is %v; want ErrStoreUnavailable", err)
	}
	if n := c.count(); n > 50 {
		t.Errorf("the database was asked %d times in a second", n)
	}
	proxy.Pass()
	if _, err := seg.Next(t.Context()); err != nil {
		t.Error(err)
	}
}

// counting counts allocations.
type counting struct {
	*tinyid.Store
	mu sync.Mutex // guards n
	n  int
}

func (c *counting) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	return c.Store.Allocate(ctx, tag, n, last)
}

func (c *counting) reset() { c.mu.Lock(); c.n = 0; c.mu.Unlock() }

func (c *counting) count() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

// testOverlap: rows of two databases that would issue the same numbers are refused,
// also where they are found only when the second is first used.
func testOverlap(t *testing.T, server *testservers.Server) {
	a := database(t, server, "'same', 0, 10, 2, 1", "'all', 0, 10, 1, 0", "'good', 0, 10, 2, 0", "'gcd', 0, 10, 4, 1")
	b := database(t, server, "'same', 0, 10, 2, 1", "'all', 0, 10, 1, 0", "'good', 0, 10, 2, 1", "'gcd', 0, 10, 6, 3")
	s := open(t, tinyid.Options{}, a.URL, b.URL)
	for _, tag := range []string{"same", "all", "gcd"} {
		for range 3 {
			if g, err := s.Allocate(t.Context(), tag, 0, ""); !errors.Is(err, hapax.ErrStoreUnsafe) {
				t.Errorf("%s: got %v, error %v; want ErrStoreUnsafe", tag, g.Grant, err)
			}
		}
	}
	if _, err := s.Allocate(t.Context(), "good", 0, ""); err != nil {
		t.Errorf("good: %v", err)
	}
	if server.Addr == "" {
		return
	}
	first, second := testservers.NewProxy(t, server.Addr), testservers.NewProxy(t, server.Addr)
	second.Cut()
	s = open(t, tinyid.Options{}, first.URL(a.URL), second.URL(b.URL))
	if g, err := s.Allocate(t.Context(), "all", 0, ""); !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("a delta below the number of databases: got %v, error %v; want ErrStoreUnsafe", g.Grant, err)
	}
	if _, err := s.Allocate(t.Context(), "same", 0, ""); err != nil {
		t.Errorf("with the first alone: %v", err)
	}
	first.Cut()
	second.Pass()
	if g, err := s.Allocate(t.Context(), "same", 0, ""); err == nil {
		t.Errorf("the second granted %v of the same numbers", g.Grant)
	}
}

// testRowElsewhere: a biz_type that only the second database has is issued from
// there, and is not taken for unknown while that is away.
func testRowElsewhere(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	a, b := database(t, server), database(t, server, "'test', 0, 10, 2, 1")
	second := testservers.NewProxy(t, server.Addr)
	s := open(t, tinyid.Options{}, a.URL, second.URL(b.URL))
	if g, err := s.Allocate(t.Context(), "test", 0, ""); err != nil || g.Grant.Lo != 1 {
		t.Errorf("got %v, error %v", g.Grant, err)
	}
	second.Cut()
	for range 5 {
		if _, err := s.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("error is %v; want ErrStoreUnavailable", err)
		}
	}
	if _, err := s.Allocate(t.Context(), "none", 0, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a row that may be there: %v; want ErrStoreUnavailable", err)
	}
}

func testTokens(t *testing.T, server *testservers.Server) {
	db := database(t, server)
	db.Run(t, "INSERT INTO tiny_id_token (token, biz_type) VALUES ('secret1', 'a'), ('secret1', 'b'), ('', 'c'), ('s', 'ecret1a')")
	tokens, err := tinyid.OpenTokens(t.Context(), open(t, tinyid.Options{}, db.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	check := func(token, bizType string, want bool) {
		t.Helper()
		if got := tokens.Allows(token, bizType); got != want {
			t.Errorf("%s for %s: %v; want %v", token, bizType, got, want)
		}
	}
	check("secret1", "a", true)
	check("secret1", "b", true)
	check("secret1", "c", false)
	check("Secret1", "a", false)
	check("", "c", false)
	check("secret", "1a", false)
	if text := fmt.Sprintf("%v %+v %s", tokens, tokens, tokens); strings.Contains(text, "secret1") {
		t.Errorf("printed: %s", text)
	}
	db.Run(t, "DELETE FROM tiny_id_token WHERE biz_type = 'a'", "INSERT INTO tiny_id_token (token, biz_type) VALUES ('new', 'a')")
	if err := tokens.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("secret1", "a", false)
	check("new", "a", true)
	db.Run(t, "DROP TABLE tiny_id_token")
	err = tokens.Refresh(t.Context())
	if err == nil || strings.Contains(err.Error(), "new") {
		t.Errorf("without the table: %v", err)
	}
	check("new", "a", true) // what was known last stays
}
