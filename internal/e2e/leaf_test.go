package e2e

import (
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// One command serves Leaf's segment route over a table that its own script has made
// and that was filled by hand, and counts on from the row.
func testLeafTable(t *testing.T, server *testservers.Server) {
	db := newForeignDB(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES ('test', 4711, 100, 'by hand')")
	at := freeAddress(t)
	s := serve(t, t.TempDir(), nil, "--compat", fmt.Sprintf(`{leaf: {table: %q, http: %q}}`, db.url, at))
	for i := range 250 {
		if status, body := answers(t, "http://"+at+"/api/segment/get/test"); status != http.StatusOK || body != fmt.Sprint(4711+i) {
			t.Fatalf("number %d is %d %s; want %d", i, status, body, 4711+i)
		}
	}
	for path, want := range map[string]string{
		"/api/segment/get/none": "Result{id=-2, status=EXCEPTION}",
		"/api/snowflake/get/x":  "this mode is switched off here",
		"/db":                   "<td>test</td>",
		"/cache":                "<td>test</td>\n            <td>true</td>",
		"/decodeSnowflakeId?snowflakeId=1169825678627676536": `"sequenceId":"`,
		"/readyz": `"ready":true`,
	} {
		if _, body := answers(t, "http://"+at+path); !strings.Contains(body, want) {
			t.Errorf("%s: %s; want %s", path, body, want)
		}
	}
	_, metrics := answers(t, s.url+"/metrics")
	for _, want := range []string{
		`hapax_issued_total{beside="leaf table",pool="",tag="test"} 250`,
		`hapax_errors_total{api="leaf",code="tag_not_found"} 1`, `hapax_ready{beside="leaf table"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if _, body := answers(t, s.url+"/readyz"); !strings.Contains(body, `"beside":{"leaf table":{"ready":true`) {
		t.Errorf("/readyz: %s", body)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.logged())
	}
}

// leafActor takes segments of a row by Leaf's own operations until it is stopped.
func leafActor(t *testing.T, db *sql.DB, taken *takenSet, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Error(err)
			return
		}
		var maxID, step int64
		_, err = tx.ExecContext(t.Context(), "UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = 'test'")
		if err == nil {
			err = tx.QueryRowContext(t.Context(), "SELECT max_id, step FROM leaf_alloc WHERE biz_tag = 'test'").Scan(&maxID, &step)
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			t.Error(err)
			return
		}
		for id := maxID - step; id < maxID; id++ {
			taken.take("Leaf", id)
		}
	}
}

// beside runs two servers, of which one is killed and started again, beside an actor of
// the original on the same tables, and looks for a number that was given twice.
func beside(t *testing.T, compat, path string, actor func(taken *takenSet, stop <-chan struct{})) {
	t.Helper()
	var taken takenSet
	var asking, acting sync.WaitGroup
	stop := make(chan struct{})
	acting.Go(func() { actor(&taken, stop) })
	at, dir := [2]string{}, [2]string{}
	var servers [2]*serving
	for i := range servers {
		at[i], dir[i] = freeAddress(t), t.TempDir()
		servers[i] = serve(t, dir[i], nil, "--compat", fmt.Sprintf(compat, at[i]))
		for range 2 {
			asking.Go(func() { taken.askFor(t, fmt.Sprintf("node %d", i), "http://"+at[i]+path, 1500) })
		}
	}
	for range 2 {
		had := taken.count()
		patience.Until(t, "numbers are given", func() bool { return taken.count() > had+500 })
		servers[0].kill()
		servers[0] = serve(t, dir[0], nil, "--compat", fmt.Sprintf(compat, at[0]))
	}
	asking.Wait()
	close(stop)
	acting.Wait()
	if len(taken.dup) > 0 {
		t.Errorf("%d numbers were given twice, such as %s", len(taken.dup), taken.dup[0])
	}
	if taken.count() < 6000 {
		t.Errorf("%d numbers were given", taken.count())
	}
	for _, s := range servers {
		if code := s.stop(); code != 0 {
			t.Errorf("exit code %d: %s", code, s.logged())
		}
	}
}

func testLeafBesideItsNodes(t *testing.T, server *testservers.Server) {
	db := newForeignDB(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 50)")
	beside(t, fmt.Sprintf(`{leaf: {table: %q, http: %%q}}`, db.url), "/api/segment/get/test",
		func(taken *takenSet, stop <-chan struct{}) { leafActor(t, db.DB, taken, stop) })
}

// A row that was set back is refused for good, also by the node after a restart,
// until an operator adopts the table; the other rows go on.
func testLeafTableSetBack(t *testing.T, server *testservers.Server) {
	db := newForeignDB(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1000, 10), ('other', 1, 10), ('broken', 1, 0)")
	at, dir := freeAddress(t), t.TempDir()
	compat := fmt.Sprintf(`{leaf: {table: %q, http: %q}}`, db.url, at)
	s := serve(t, dir, nil, "--compat", compat)
	if _, body := answers(t, "http://"+at+"/api/segment/get/test"); body != "1000" {
		t.Fatalf("the first number is %s", body)
	}
	s.kill()
	used := db.number("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'test'")
	db.run("UPDATE leaf_alloc SET max_id = 500 WHERE biz_tag = 'test'")
	for range 2 {
		s = serve(t, dir, nil, "--compat", compat)
		for key, want := range map[string]int{"test": http.StatusInternalServerError, "other": http.StatusOK} {
			if status, body := answers(t, "http://"+at+"/api/segment/get/"+key); status != want {
				t.Errorf("%s of a table in which one row was set back: %d %s", key, status, body)
			}
		}
		if status, body := answers(t, "http://"+at+"/readyz"); status != http.StatusOK || !strings.Contains(body, `"degraded":true,"fenced":true,"state":"refusing"`) || !strings.Contains(body, "hapax adopt --foreign leaf KEY") {
			t.Errorf("/readyz: %d %s", status, body)
		}
		const command = "hapax adopt --foreign leaf test"
		if _, body := answers(t, s.url+"/readyz"); !strings.Contains(body, `"degraded":true`) || !strings.Contains(body, command) || !strings.Contains(body, `"name":"test"`) {
			t.Errorf("the server's own /readyz: %s", body)
		}
		if r := run(t, dir, "status", "--data", filepath.Join(dir, "hapax-data")); r.code == 0 || !strings.Contains(r.err, "leaf table is refusing: fenced: ") || !strings.Contains(r.err, command) {
			t.Errorf("hapax status: %+v", r)
		}
		s.kill()
		db.run("UPDATE leaf_alloc SET max_id = 100000 WHERE biz_tag = 'test'") // a Leaf node went on: asking again does not mend it
	}
	if !strings.Contains(s.logged(), "hapax adopt --foreign leaf") {
		t.Errorf("the log does not name the command: %s", s.logged())
	}
	file := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(file, []byte("compat: "+compat), 0o600); err != nil {
		t.Fatal(err)
	}
	adopt := []string{"adopt", "--foreign", "leaf", "--config", file, "--data", filepath.Join(dir, "hapax-data"), "--margin", "1000"}
	r := run(t, dir, append(adopt, "--dry-run")...)
	if r.code != 0 || !strings.Contains(r.out, "test\t100000\t101000") || !strings.Contains(r.err, fmt.Sprint(used-1)) || !strings.Contains(r.err, `row "broken" of leaf_alloc: step is 0`) {
		t.Errorf("the dry run: %+v", r)
	}
	if db.number("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'test'") != 100000 {
		t.Error("a dry run has changed the table")
	}
	other := db.number("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'other'")
	if r := run(t, dir, append(adopt, "--yes")...); r.code != 0 {
		t.Fatalf("adopt: %+v", r)
	}
	s = serve(t, dir, nil, "--compat", compat)
	for key, want := range map[string]string{"test": "101000", "other": fmt.Sprint(other + 1000)} {
		if status, body := answers(t, "http://"+at+"/api/segment/get/"+key); status != http.StatusOK || body != want {
			t.Errorf("after it was adopted %s is %d %s; want %s", key, status, body, want)
		}
	}

	// A row that is set back while the server runs is refused alone, and adopted without
	// stopping it. Numbers in hand are issued first.
	taken := takenSet{}
	taken.take("before", 1000, 101000)
	numbers := "http://" + at + "/api/segment/get/"
	db.run("UPDATE leaf_alloc SET max_id = 1 WHERE biz_tag = 'test'")
	for over := time.Now().Add(patience.Long); ; {
		status, body := answers(t, numbers+"test")
		if status != http.StatusOK {
			break
		}
		id, err := strconv.ParseInt(body, 10, 64)
		if err != nil || time.Now().After(over) {
			t.Fatalf("a row that was set back goes on: %s", body)
		}
		taken.take("while it was set back", id)
	}
	if status, body := answers(t, numbers+"other"); status != http.StatusOK {
		t.Errorf("another row: %d %s", status, body)
	}
	one := func(key string, more ...string) result {
		return run(t, dir, append([]string{"adopt", "--foreign", "leaf", key, "--data", filepath.Join(dir, "hapax-data")}, more...)...)
	}
	if r := one("other", "--yes"); r.code != 0 || !strings.Contains(r.err, "nothing is wrong") {
		t.Errorf("adopting another row: %+v", r)
	}
	if r := one("test", "--margin", "0", "--yes"); r.code != 0 || !strings.Contains(r.out, "tag test") {
		t.Fatalf("adopting the row: %+v", r)
	}
	patience.Until(t, "the row is used again", func() bool { // a refusal answers for 50 ms
		status, body := answers(t, numbers+"test")
		id, err := strconv.ParseInt(body, 10, 64)
		if status == http.StatusOK && err == nil {
			taken.take("when it was adopted", id)
		}
		return status == http.StatusOK
	})
	for range 25 {
		status, body := answers(t, numbers+"test")
		id, err := strconv.ParseInt(body, 10, 64)
		if status != http.StatusOK || err != nil {
			t.Fatalf("after it was adopted: %d %s", status, body)
		}
		taken.take("after it was adopted", id)
	}
	if len(taken.dup) > 0 {
		t.Errorf("issued twice: %q", taken.dup)
	}
	if status, body := answers(t, "http://"+at+"/readyz"); status != http.StatusOK || !strings.Contains(body, `"degraded":false`) {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if r := run(t, dir, "status", "--data", filepath.Join(dir, "hapax-data")); r.code != 0 {
		t.Errorf("hapax status: %+v", r)
	}
	s.stop()
	if r := run(t, dir, append(adopt, "--yes")...); r.code != 0 || !strings.Contains(r.err, "nothing is wrong") {
		t.Errorf("adopting once more: %+v", r)
	}
}

// One command serves Leaf's snowflake route, as a node of its tree.
func TestLeafTree(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	conn, _, err := zk.Connect([]string{strings.Trim(strings.TrimPrefix(server.URL, "zk://"), "/")}, 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	name := unusedName("e2e")
	forever := "/snowflake/" + name + "/forever"
	path := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(forever, "/"), "/") {
		path += "/" + part
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && err != zk.ErrNodeExists {
			t.Fatal(err)
		}
	}
	for i := range 3 { // Leaf's own nodes
		data := fmt.Appendf(nil, `{"ip":"10.0.0.%d","port":"8080","timestamp":%d}`, i, time.Now().Add(-48*time.Hour).UnixMilli())
		if _, err := conn.Create(fmt.Sprintf("%s/10.0.0.%d:8080-", forever, i), data, zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	at, dir := freeAddress(t), t.TempDir()
	compat := fmt.Sprintf(`{leaf: {tree: %q, name: %s, port: 8080, http: %q}}`, server.URL, name, at)
	s := serve(t, dir, []string{"HAPAX_MAX_WAIT=1m"}, "--compat", compat)
	var taken takenSet
	taken.askFor(t, "before", "http://"+at+"/api/snowflake/get/test", 100)
	_, id := answers(t, "http://"+at+"/api/snowflake/get/test")
	if _, body := answers(t, "http://"+at+"/decodeSnowflakeId?snowflakeId="+id); !strings.Contains(body, `{"workerId":"3",`) {
		t.Errorf("%s is %s; want worker 3, the suffix of its node", id, body)
	}
	raw, _, err := conn.Get(forever + "/127.0.0.1:8080-0000000003")
	if err != nil || !strings.HasPrefix(string(raw), `{"ip":"127.0.0.1","port":"8080","timestamp":`) {
		t.Errorf("the node holds %s, %v", raw, err)
	}
	s.kill()
	s = serve(t, dir, []string{"HAPAX_MAX_WAIT=1m"}, "--compat", compat)
	taken.askFor(t, "after", "http://"+at+"/api/snowflake/get/test", 100)
	if len(taken.dup) > 0 {
		t.Errorf("given twice: %v", taken.dup)
	}
	if status, body := answers(t, "http://"+at+"/api/segment/get/test"); status != http.StatusInternalServerError {
		t.Errorf("the segment route without a table: %d %s", status, body)
	}
	// Nodes that are silent for long are retired by a command.
	where := []string{"--tree", server.URL, "--name", name}
	if out := ok(t, dir, append([]string{"leaf", "nodes"}, where...)...); strings.Count(out, "\n") != 4 || !strings.Contains(out, "10.0.0.2:8080-0000000002") {
		t.Errorf("the nodes: %s", out)
	}
	if r := run(t, dir, append([]string{"leaf", "retire", "10.0.0.1:8080-0000000001"}, where...)...); r.code != 0 || !strings.Contains(r.out, "would retire") {
		t.Errorf("retiring without --apply: %+v", r)
	}
	if r := run(t, dir, append([]string{"leaf", "retire", "--silent-for", "47h", "--apply"}, where...)...); r.code != 0 || strings.Count(r.out, "retired") != 3 {
		t.Errorf("retiring: %+v", r)
	}
	if r := run(t, dir, append([]string{"leaf", "retire", "127.0.0.1:8080-0000000003", "--apply"}, where...)...); r.code == 0 {
		t.Errorf("a node that is alive was retired: %+v", r)
	}
	if names, _, err := conn.Children(forever); err != nil || len(names) != 1 {
		t.Errorf("left are %v, %v", names, err)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.logged())
	}
}
