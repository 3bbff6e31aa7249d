package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// diskStates and foreignStates need more than the rig's database.
var diskStates = []stateTest{
	{name: "ledger full", alarms: []string{"records_waiting"}, alerts: []string{"HapaxRecordsWaiting"}, enter: func(r *stateRig) *serving {
		var long []string // names, so that what is recorded is long, too
		tags := "tags: {orders: {step: 1, max_step: 1}"
		for i := range 8 {
			long = append(long, strings.Repeat(string('a'+rune(i)), 128))
			tags += ", " + long[i] + ": {step: 1, max_step: 1}"
		}
		s := r.node("a", "ledger: on\nalarm_budget: 1ms\n"+tags+"}\n")
		r.issues(s, "orders")
		size := func(pattern string) (largest int64) {
			files, err := filepath.Glob(filepath.Join(r.dir, "a", pattern))
			if err != nil {
				r.t.Fatal(err)
			}
			for _, file := range files {
				if info, err := os.Stat(file); err == nil {
					largest = max(largest, info.Size())
				}
			}
			return largest
		}
		patience.Until(r.t, "the ledger is larger than the witness", func() bool {
			var taking sync.WaitGroup
			for _, tag := range long {
				taking.Go(func() {
					for range 25 {
						_, _ = take(patient, s.url, tag, 2)
					}
				})
			}
			taking.Wait()
			return size("ledger/*") > 2*size("witness*")
		})
		r.limit(s, fmt.Sprint(size("ledger/*")))
		for range 20 {
			_, _ = take(patient, s.url, "orders", 2)
		}
		return s
	}, logged: "the ledger of grants cannot be written"},
	{name: "primary switched", logged: "the store's primary has changed", enter: func(r *stateRig) *serving {
		primary := testservers.Postgres(r.t)
		r.proxy = testservers.NewProxy(r.t, primary.Addr)
		r.store = r.proxy.URL(primary.URL)
		standby := testservers.PostgresReplica(r.t, primary)
		s := r.node("a", oneByOne)
		mustTakeSoon(r.t, s)
		r.note(s)
		primary.Stop() // it ends when the standby has everything
		promote(r.t, standby)
		r.proxy.Lead(standby.Addr)
		s.await("the store's primary has changed")
		takeSoon(r.t, s, "orders", 5)
		return s
	}},
}

var foreignStates = []stateTest{
	{
		name: "foreign row reset", beside: true, degraded: true, command: "hapax adopt --foreign leaf test", alarms: []string{"beside_down", "cannot_issue"}, alerts: []string{"HapaxAnswersRefused", "HapaxBesideDown", "HapaxCannotIssue", "HapaxFenced", "HapaxStoreUnsafe"},
		enter: func(r *stateRig) *serving {
			db := newForeignDB(r.t, testservers.SharedMariaDB(r.t), testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1000, 1)")
			at := freeAddress(r.t)
			s := r.node("a", fmt.Sprintf("compat: {leaf: {table: %q, http: %q}}\n", db.url, at))
			r.issues(s, "orders")
			next := func() bool { status, _ := answers(r.t, "http://"+at+"/api/segment/get/test"); return status == 200 }
			patience.Until(r.t, "Leaf's row issues", next)
			db.run("UPDATE leaf_alloc SET max_id = 500 WHERE biz_tag = 'test'")
			patience.Until(r.t, "the row is refused", func() bool { return !next() })
			return s
		},
	},
	{
		name: "foreign table away", beside: true, degraded: true, alarms: []string{"beside_down", "budget_low"}, alerts: []string{"HapaxBesideDown", "HapaxBudgetLow", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			server := testservers.SharedMariaDB(r.t)
			db := newForeignDB(r.t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1000, 1)")
			proxy := testservers.NewProxy(r.t, server.Addr)
			at := freeAddress(r.t)
			s := r.node("a", fmt.Sprintf("store_timeout: 500ms\ncompat: {leaf: {table: %q, http: %q}}\n", proxy.URL(db.url), at))
			r.issues(s, "orders")
			next := func() bool { status, _ := answers(r.t, "http://"+at+"/api/segment/get/test"); return status == 200 }
			patience.Until(r.t, "Leaf's row issues", next)
			proxy.Cut()
			patience.Until(r.t, "nothing is left of it", func() bool { return !next() })
			return s
		},
	},
	{
		name: "ZooKeeper away", beside: true, alarms: []string{"beside_down"}, alerts: []string{"HapaxBesideDown"},
		enter: func(r *stateRig) *serving {
			server := testservers.SharedZooKeeper(r.t)
			proxy := testservers.NewProxy(r.t, server.Addr)
			at := freeAddress(r.t)
			tree, err := url.Parse(proxy.URL(server.URL))
			if err != nil {
				r.t.Fatal(err)
			}
			tree.Path = ""
			s := r.node("a", fmt.Sprintf("alarm_budget: 1ms\ncompat: {leaf: {tree: %q, name: %s, port: 8080, http: %q}}\n", tree.String(), unusedName("leaf"), at))
			r.issues(s, "orders")
			next := func() bool { status, _ := answers(r.t, "http://"+at+"/api/snowflake/get/test"); return status == 200 }
			patience.Until(r.t, "Leaf's tree issues", next)
			proxy.Cut()
			return s // the time that was granted lasts for minutes
		},
	},
}
