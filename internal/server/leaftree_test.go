package server

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// TestLeafWithoutZooKeeper: a node of Leaf's tree issues on while all of ZooKeeper is away,
// also after a restart, as long as nobody else runs as its ip:port. The segment route has
// nothing to do with it.
func TestLeafWithoutZooKeeper(t *testing.T) {
	keeper := testservers.ZooKeeper(t)
	keeper.MustProxy()
	proxy := testservers.NewProxy(t, keeper.Addr)
	table := database(t, "hapax_leaf_tree",
		`CREATE TABLE leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '' PRIMARY KEY, max_id bigint NOT NULL DEFAULT '1', step int NOT NULL,
			description varchar(256), update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)`,
		"INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('key', 1, 1000)")
	data := filepath.Join(t.TempDir(), "data")
	compat := fmt.Sprintf("  leaf: {table: %q, tree: %q, name: without, ip: 127.0.0.1, port: 7777, http: 127.0.0.1:0}", table, proxy.URL(keeper.URL))
	last := int64(0)
	start := func() (issue func() (int, string), ready func(mode string) (int, string), stop func()) {
		s, stop := serveCompatIn(t, data, "5s", compat)
		at := doorAt(t, s, "compat.leaf.http")
		issue = func() (int, string) {
			status, body := get(t, at, "/api/snowflake/get/key")
			if id, err := strconv.ParseInt(body, 10, 64); status == http.StatusOK {
				if err != nil || id <= last {
					t.Fatalf("%q after %d", body, last)
				}
				last = id
			}
			return status, body
		}
		return issue, func(mode string) (int, string) { return get(t, at, "/readyz"+mode) }, stop
	}
	issue, ready, stop := start()
	for over := time.Now().Add(patience.Long); ; {
		status, body := issue()
		if status == http.StatusOK {
			break
		}
		if time.Now().After(over) {
			t.Fatalf("the first number: %d %s", status, body)
		}
	}
	if status, body := ready(""); status != http.StatusOK || !strings.Contains(body, `"modes":{"segment":{"ready":true`) {
		t.Errorf("/readyz: %d %s", status, body)
	}

	proxy.Cut()
	withoutKeeper := func(d time.Duration) {
		t.Helper()
		for end := time.Now().Add(d); time.Now().Before(end); patience.Slow(20 * time.Millisecond) {
			if status, body := issue(); status != http.StatusOK {
				t.Fatalf("without ZooKeeper: %d %s", status, body)
			}
		}
	}
	withoutKeeper(8 * time.Second) // more than a part of the grant, twice
	for _, mode := range []string{"", "?mode=segment", "?mode=snowflake"} {
		if status, body := ready(mode); status != http.StatusOK {
			t.Errorf("/readyz%s without ZooKeeper: %d %s", mode, status, body)
		}
	}
	if status, body := ready("?mode=none"); status != http.StatusNotFound {
		t.Errorf("a mode that there is not: %d %s", status, body)
	}
	stop()
	issue, ready, stop = start()
	withoutKeeper(time.Second)

	proxy.Pass()
	conn, _, err := zk.Connect([]string{keeper.Addr}, 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const node = "/snowflake/without/forever/127.0.0.1:7777-0000000000"
	for over := time.Now().Add(patience.Long); ; patience.Again() {
		// A Leaf that runs as the same ip:port reports there, again and again.
		raw := fmt.Appendf(nil, `{"ip":"127.0.0.1","port":"7777","timestamp":%d}`, time.Now().UnixMilli())
		if _, err := conn.Set(node, raw, -1); err != nil {
			t.Fatal(err)
		}
		if status, _ := issue(); status != http.StatusOK {
			break
		}
		if time.Now().After(over) {
			t.Fatal("it issued on beside a Leaf of the same ip:port")
		}
	}
	if status, body := ready("?mode=snowflake"); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz?mode=snowflake: %d %s", status, body)
	}
	if status, body := ready(""); status != http.StatusOK || !strings.Contains(body, `"degraded":true`) {
		t.Errorf("/readyz while segments can be issued: %d %s", status, body)
	}
	stop()
}
