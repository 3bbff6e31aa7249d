package leaf_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

func openTable(t testing.TB, url string, opts leaf.TableOptions) *leaf.Table {
	t.Helper()
	table, err := leaf.OpenTable(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

// TestTable runs against one server; each part has a database of its own.
func TestTable(t *testing.T) {
	server := testservers.SharedMariaDB(t)
	for name, test := range map[string]func(*testing.T, *testservers.Server){
		"range":          testRange,
		"rights":         testRights,
		"exact key":      testExactKey,
		"large steps":    testLargeSteps,
		"bad rows":       testBadRows,
		"not supported":  testNotSupported,
		"set back":       testSetBack,
		"step adopted":   testStepAdopted,
		"end of line":    testEndOfLine,
		"lost answer":    testLostAnswer,
		"slow database":  testSlowDatabase,
		"down, and back": testDown,
		"closed":         testClosed,
		"moves":          testMoves,
		"two stores":     testTwoStores,
		"undo elsewhere": testUndoElsewhere,
		"extremes":       testExtremes,
		"plans only":     testPlansOnly,
		"notes":          testNotes,
		"killed":         testKilled,
		"at once":        testAtOnce,

		"witness":                 testWitness,
		"witness of a busy table": testWitnessBusy,
		"witness and a bad row":   testWitnessBadRow,
		"torn load":               testTornLoad,
		"healthy database":        testHealthyDatabase,
	} {
		t.Run(name, func(t *testing.T) { test(t, server) })
	}
}

// testRange: the old max_id is the first number issued.
func testRange(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 2000), ('zero', 0, 10), ('späße', 7, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	for _, c := range []struct {
		tag  string
		n    int64
		want hapax.Grant
	}{
		{"test", 0, hapax.Grant{Lo: 1, Hi: 2001}},
		{"test", 0, hapax.Grant{Lo: 2001, Hi: 4001}},
		{"test", 5, hapax.Grant{Lo: 4001, Hi: 4006}},
		{"zero", 0, hapax.Grant{Lo: 0, Hi: 10}},
		{"späße", 0, hapax.Grant{Lo: 7, Hi: 17}},
	} {
		a, err := table.Allocate(t.Context(), c.tag, c.n, "")
		if err != nil || a.Grant != c.want || a.Key != "" || a.From != c.want.Lo {
			t.Errorf("%s, %d: got %+v, error %v; want %v without a key", c.tag, c.n, a, err, c.want)
		}
	}
	if got := db.Number(t, "SELECT max_id FROM leaf_alloc WHERE biz_tag = 'test'"); got != 4006 {
		t.Errorf("max_id is %d; want 4006", got)
	}
	s := testdb.NewIssuers(t, table)
	if id, err := s.Next(t.Context(), "test"); err != nil || id != 4006 {
		t.Errorf("the issuers begin with %d, error %v; want 4006", id, err)
	}
}

// testRights: an account that may read and change rows is enough, and columns
// that somebody has added do not matter.
func testRights(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "ALTER TABLE leaf_alloc ADD COLUMN extra varchar(10) DEFAULT 'x' FIRST",
		"INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 10)")
	user := "u" + db.Name[1:20]
	db.Run(t, fmt.Sprintf("CREATE USER %s@'127.0.0.1' IDENTIFIED BY 'geheim'", user),
		fmt.Sprintf("GRANT SELECT, UPDATE ON %s.leaf_alloc TO %s@'127.0.0.1'", db.Name, user))
	url := strings.Replace(db.URL, "root@", user+":geheim@", 1)
	if url == db.URL {
		t.Skip("needs a server whose account is root without a password")
	}
	table := openTable(t, url, leaf.TableOptions{})
	if a, err := table.Allocate(t.Context(), "test", 0, ""); err != nil || a.Grant.Lo != 1 {
		t.Errorf("got %+v, error %v", a, err)
	}
	if tags, err := table.Tags(t.Context(), "", 10); err != nil || len(tags) != 1 {
		t.Errorf("tags are %v, error %v", tags, err)
	}
	_, err := leaf.OpenTable(t.Context(), strings.Replace(url, "geheim", "falsch", 1), leaf.TableOptions{})
	if !errors.Is(err, hapax.ErrStoreUnavailable) || strings.Contains(err.Error(), "falsch") {
		t.Errorf("with a wrong password: %v", err)
	}
}

// testExactKey: the column's collation takes case for Case, which Leaf's cache
// does not.
func testExactKey(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('Case', 1, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	for _, tag := range []string{"case", "Case ", "CASE", "case'", `Case\`} {
		if a, err := table.Allocate(t.Context(), tag, 0, ""); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Errorf("%q: got %v, error %v; want ErrTagNotFound", tag, a, err)
		}
		if _, err := table.Tag(t.Context(), tag); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Errorf("%q: Tag: %v; want ErrTagNotFound", tag, err)
		}
	}
	if got := db.Number(t, "SELECT max_id FROM leaf_alloc"); got != 1 {
		t.Errorf("max_id is %d; another key must not move it", got)
	}
	if a, err := table.Allocate(t.Context(), "Case", 0, ""); err != nil || a.Grant.Lo != 1 {
		t.Errorf("Case: got %v, error %v", a, err)
	}
}

// testLargeSteps: Leaf's int overflowed above 1,073,741,823 and set max_id back.
func testLargeSteps(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('big', 2200000001, 2147483647)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	want := int64(2200000001)
	for _, n := range []int64{0, 0, 1 << 31, hapax.MaxStep} {
		width := n
		if n == 0 {
			width = math.MaxInt32
		}
		a, err := table.Allocate(t.Context(), "big", n, "")
		if err != nil || a.Grant != (hapax.Grant{Lo: want, Hi: want + width}) {
			t.Fatalf("%d: got %v, error %v; want from %d", n, a.Grant, err, want)
		}
		want += width
	}
}

// testBadRows: rows that cannot be right are refused by name, and left alone.
func testBadRows(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, `INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES
		('step 0', 1, 0), ('step -5', 1, -5), ('max -1', -1, 10), ('good', 1, 10), ('', 1, 10), ('max 2^63-9', 9223372036854775800, 5)`)
	var warned []string
	table := openTable(t, db.URL, leaf.TableOptions{Warn: func(code, message string) { warned = append(warned, code+": "+message) }})
	for _, tag := range []string{"step 0", "step -5", "max -1", "max 2^63-9"} {
		before := db.Number(t, "SELECT max_id FROM leaf_alloc WHERE biz_tag = ?", tag)
		for _, n := range []int64{0, 1} {
			a, err := table.Allocate(t.Context(), tag, n, "")
			if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(fmt.Sprint(err), tag) {
				t.Errorf("%s: got %v, error %v; want ErrStoreCorrupt with the row's name", tag, a.Grant, err)
			}
		}
		if after := db.Number(t, "SELECT max_id FROM leaf_alloc WHERE biz_tag = ?", tag); after != before {
			t.Errorf("%s: max_id went from %d to %d", tag, before, after)
		}
	}
	tags, err := table.Tags(t.Context(), "", 10)
	if err != nil || len(tags) != 1 || tags[0].Name != "good" {
		t.Errorf("tags are %v, error %v; want the good one", tags, err)
	}
	warned = slices.DeleteFunc(warned, func(s string) bool { return !strings.HasPrefix(s, "bad_row") })
	if len(warned) != 5 {
		t.Errorf("warned %q; want each bad row, also the one without a name", warned)
	}
}

func testNotSupported(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	a, err := table.Allocate(t.Context(), "test", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := table.HandBack(t.Context(), a, 1); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("HandBack: %v", err)
	}
	_, err = table.CreateTag(t.Context(), hapax.Tag{Name: "it's", Start: 5, Step: 7}, hapax.CreateFirstUse)
	if !errors.Is(err, hapax.ErrNotSupported) || !strings.Contains(err.Error(), "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES ('it''s', 5, 7, '')") {
		t.Errorf("CreateTag: %v; want the statement that makes the row", err)
	}
	if _, err := table.UpdateTag(t.Context(), "test", driver.TagUpdate{}); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("UpdateTag: %v", err)
	}
	if _, err := table.DeleteTag(t.Context(), "test"); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("DeleteTag: %v", err)
	}
	seg, err := hapax.NewSegment(t.Context(), table, "test", hapax.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := seg.Close(t.Context()); err != nil {
		t.Errorf("closing a segment: %v", err)
	}
	if got := db.Number(t, "SELECT max_id FROM leaf_alloc"); got != 21 {
		t.Errorf("max_id is %d; nothing may be handed back", got)
	}
}

func testSetBack(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1000, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	if _, err := table.Allocate(t.Context(), "test", 0, ""); err != nil {
		t.Fatal(err)
	}
	db.Run(t, "UPDATE leaf_alloc SET max_id = 500")
	for range 100 { // a refusal does not wear off by asking again
		if a, err := table.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Fatalf("got %v, error %v; want ErrStoreRolledBack", a.Grant, err)
		}
	}
	if got := db.Number(t, "SELECT max_id FROM leaf_alloc"); got != 500 {
		t.Errorf("max_id is %d; what is refused must not move it", got)
	}
}

// testStepAdopted: Leaf did not adopt a step that was raised in the table.
func testStepAdopted(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	seg, err := hapax.NewSegment(t.Context(), table, "test", hapax.SegmentOptions{NoCreate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer seg.Close(t.Context())
	db.Run(t, "UPDATE leaf_alloc SET step = 50000")
	for range 100 {
		if _, err := seg.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if st := seg.Stats(); st.Step < 50000 {
		t.Errorf("the step is %d; want the table's 50000 at least", st.Step)
	}
}

func testEndOfLine(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, fmt.Sprintf("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', %d, 10), ('full', 9223372036854775807, 10)", int64(hapax.MaxMark-15)))
	table := openTable(t, db.URL, leaf.TableOptions{})
	if _, err := table.Allocate(t.Context(), "test", 0, ""); err != nil {
		t.Error(err)
	}
	for range 3 {
		if a, err := table.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrLineExhausted) {
			t.Errorf("got %v, error %v; want ErrLineExhausted", a.Grant, err)
		}
	}
	if a, err := table.Allocate(t.Context(), "full", 0, ""); !errors.Is(err, hapax.ErrLineExhausted) {
		t.Errorf("where the sum does not fit: got %v, error %v; want ErrLineExhausted", a.Grant, err)
	}
	if got := db.Number(t, "SELECT max_id FROM leaf_alloc WHERE biz_tag = 'test'"); got != hapax.MaxMark-5 {
		t.Errorf("max_id is %d; what is refused must not move it", got)
	}
}

// testLostAnswer: a commit whose answer is lost costs numbers and repeats none.
func testLostAnswer(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 10)")
	proxy := testservers.NewProxy(t, server.Addr)
	table := openTable(t, proxy.URL(db.URL), leaf.TableOptions{})
	proxy.CutReply(testservers.Contains("COMMIT"))
	if a, err := table.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Fatalf("got %v, error %v; want ErrStoreUnavailable", a.Grant, err)
	}
	proxy.Pass()
	a, err := table.Allocate(t.Context(), "test", 0, "")
	if err != nil || a.Grant != (hapax.Grant{Lo: 11, Hi: 21}) {
		t.Errorf("got %v, error %v; want [11, 21): the first ten are lost", a.Grant, err)
	}
}

// testSlowDatabase: with 200 callers and a database that takes 30 ms for each
// answer, Leaf failed 15 of 20,000 calls.
func testSlowDatabase(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 100)")
	proxy := testservers.NewProxy(t, server.Addr)
	s := testdb.NewIssuers(t, openTable(t, proxy.URL(db.URL), leaf.TableOptions{}))
	proxy.Delay(15*time.Millisecond, 15*time.Millisecond)
	const callers, each = 200, 200
	seen := make([][]hapax.ID, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range each {
				id, err := s.Next(t.Context(), "test")
				if err != nil {
					t.Error(err)
					return
				}
				seen[i] = append(seen[i], id)
			}
		})
	}
	wg.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(seen...)))
	if n := len(slices.Compact(all)); n != callers*each {
		t.Errorf("%d different numbers; want %d", n, callers*each)
	}
}

// testDown: Leaf hung for ever when the database was down at its start, and took
// every key for unknown for a minute when its first load failed.
func testDown(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 10)")
	proxy := testservers.NewProxy(t, server.Addr)
	for name, trouble := range map[string]func(){"cut off": proxy.Cut, "black hole": proxy.Blackhole} {
		proxy.Pass()
		trouble()
		if _, err := leaf.OpenTable(t.Context(), proxy.URL(db.URL), leaf.TableOptions{Timeout: 100 * time.Millisecond}); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("%s: %v; want ErrStoreUnavailable", name, err)
		}
	}
	proxy.Pass()
	table := openTable(t, proxy.URL(db.URL), leaf.TableOptions{Timeout: 200 * time.Millisecond})
	proxy.Blackhole()
	if a, err := table.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrStoreUnavailable) { // without a deadline of the caller's
		t.Errorf("in a black hole: got %v, error %v; want ErrStoreUnavailable", a.Grant, err)
	}
	proxy.Pass()
	s := testdb.NewIssuers(t, table)
	proxy.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	_, err := s.Next(ctx, "test")
	cancel()
	if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is down: %v; want ErrStoreUnavailable when the deadline ends", err)
	}
	proxy.Pass()
	if id, err := s.Next(t.Context(), "test"); err != nil || id < 1 {
		t.Errorf("when it is back: %d, %v", id, err)
	}
}

func testClosed(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf)
	table := openTable(t, db.URL, leaf.TableOptions{})
	if err := table.Close(); err != nil {
		t.Error(err)
	}
	if _, err := table.Allocate(t.Context(), "test", 0, ""); !errors.Is(err, hapax.ErrClosed) {
		t.Errorf("table: %v; want ErrClosed", err)
	}
}

func TestBadURLs(t *testing.T) {
	for _, url := range []string{"", "mysql://h", "mysql://h/", "postgres://h/d", "mysql:///d", "mysql://h/d?x=1", "mysql://u:geheim@h:x/d"} {
		_, err := leaf.OpenTable(t.Context(), url, leaf.TableOptions{})
		if !errors.Is(err, hapax.ErrInvalidArgument) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v; want ErrInvalidArgument", url, err)
		}
	}
	for _, url := range []string{"", "etcd://h", "zk://", "zk://h,", "zk://h/a//b", "zk://h/..", "zk://h?x"} {
		if _, err := leaf.OpenTree(t.Context(), url, leaf.TreeOptions{Name: "n", Address: "10.0.0.1:1"}); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v; want ErrInvalidArgument", url, err)
		}
	}
	for _, o := range []leaf.TreeOptions{{Name: "", Address: "a:1"}, {Name: "a/b", Address: "a:1"}, {Name: "n", Address: "a-b:1"}, {Name: "n", Address: "a"}, {Name: "n", Address: "a:0"}, {Name: "n", Address: "a:70000"}, {Name: "..", Address: "a:1"}} {
		if _, err := leaf.OpenTree(t.Context(), "zk://127.0.0.1:1", o); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%+v: %v; want ErrInvalidArgument", o, err)
		}
	}
}
