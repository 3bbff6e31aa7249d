package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// copied copies a store to its end, and returns what the command said.
func copied(t *testing.T, from, to string) string {
	t.Helper()
	r := run(t, t.TempDir(), "store", "copy", from, to)
	if r.code != 0 || r.out != "" {
		t.Fatalf("store copy %s %s: exit code %d, %s%s", from, to, r.code, r.out, r.err)
	}
	return r.err
}

// A fleet goes through all stores, each of which is copied to the next while it is in use: its nodes refuse, and
// say where the store went; started again there, they go on above all that they were granted.
func TestStoreCopyThroughAllStores(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	urls := []string{"bolt:" + filepath.Join(dir, "first.db")}
	for _, store := range sharedStores {
		urls = append(urls, store.start(t).URL)
	}
	urls = append(urls, "bolt:"+filepath.Join(dir, "last.db"))
	var all []hapax.ID
	one := hapax.ID(-1)
	s := serve(t, dir, nil, "--store", urls[0], "--data", "node")
	for i, url := range urls {
		// Until it has joined in the new place, the node refuses as it did in the old one.
		all = append(all, takeSoon(t, s, "orders", 7, hapax.ErrStoreRetired.Code())...)
		snowflakes := takeSoon(t, s, "snowflake", 3)
		if snowflakes[0] <= one {
			t.Errorf("in %s a snowflake is %d, after %d", url, snowflakes[0], one)
		}
		one = snowflakes[2]
		if i == len(urls)-1 {
			break
		}
		if strings.HasPrefix(url, "bolt:") { // one process has it open
			if r := run(t, dir, "store", "copy", url, urls[i+1]); r.code == 0 || !strings.Contains(r.err, "another process has") {
				t.Fatalf("with a server that runs: %+v", r)
			}
			s.stop()
		}
		said := copied(t, url, urls[i+1])
		if !strings.Contains(said, "is retired") || !strings.Contains(said, "set store to ") {
			t.Errorf("the command said %q", said)
		}
		if !strings.HasPrefix(url, "bolt:") {
			var r readiness
			patience.Until(t, "the node refuses", func() bool { r = s.readiness(); return r.Fenced && r.Store == string(hapax.ErrStoreRetired.Code()) }, s)
			if !strings.Contains(r.Command, "set store to ") {
				t.Errorf("it tells %+v", r)
			}
			s.stop()
		}
		refuses(t, dir, url)
		if said := copied(t, url, urls[i+1]); !strings.Contains(said, "nothing is left to do") {
			t.Errorf("once more it said %q", said)
		}
		if i == 2 { // a node of the old store, started on it again
			old := command(t.Context(), dir, nil, "serve", "--http", "127.0.0.1:0", "--data", "node", "--store", url)
			o := start(t, old)
			patience.Until(t, "the old node refuses", func() bool { return o.readiness().Store == string(hapax.ErrStoreRetired.Code()) }, o)
			o.stop()
		}
		// A command in the node's directory may be the first to come to the new place, where the node joins
		// later than the command goes on.
		late := []string{"HAPAX_TEST_HEAD_START=1ns"}
		var r result
		patience.Until(t, "a number by a command", func() bool {
			r = runWith(t, dir, "", late, "next", "orders", "--store", urls[i+1], "--data", "node")
			return r.code == 0 || !strings.Contains(r.err, "cannot be reached")
		})
		id, err := hapax.ParseID(strings.TrimSpace(r.out))
		if err != nil {
			t.Errorf("the first command on %s: %+v", urls[i+1], r)
		}
		all = append(all, id)
		s = serve(t, dir, nil, "--store", urls[i+1], "--data", "node")
	}
	distinct(t, "all stores", all)
	if !slices.IsSorted(all) {
		t.Errorf("the numbers go back: %v", all)
	}
}

// refuses expects commands to be refused by name.
func refuses(t *testing.T, dir, url string) {
	t.Helper()
	for _, args := range [][]string{{"next", "orders"}, {"tags", "create", "more"}, {"tags", "set", "orders", "--floor", "1000000"}} {
		if r := run(t, dir, append(args, "--store", url)...); r.code == 0 || !strings.Contains(r.err, "was copied to") {
			t.Errorf("%q on the old store: %+v", args, r)
		}
	}
}

// takers take numbers at two stores by commands, as long as they are granted.
type takers struct {
	t    *testing.T
	ends atomic.Bool
	gone atomic.Bool // the first store is retired: before, the command would make a store in the second place
	wg   sync.WaitGroup

	mu    sync.Mutex // guards what follows
	given map[int64]string
	twice []string
	of    map[string]int
}

func (k *takers) start(urls ...string) {
	k.given, k.of = map[int64]string{}, map[string]int{}
	for i, url := range urls {
		k.wg.Go(func() {
			for !k.ends.Load() {
				if i > 0 && !k.gone.Load() {
					patience.Again()
					continue
				}
				k.take(url)
			}
		})
	}
}

func (k *takers) take(url string) {
	var out, said bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
	defer cancel()
	cmd := command(ctx, os.TempDir(), nil, "next", "orders", "--store", url)
	cmd.Stdout, cmd.Stderr = &out, &said
	if cmd.Run() != nil {
		if strings.Contains(said.String(), "was copied to") {
			k.gone.Store(true)
		}
		patience.Again()
		return
	}
	n, err := strconv.ParseInt(strings.TrimSpace(out.String()), 10, 64)
	k.mu.Lock()
	defer k.mu.Unlock()
	if was, ok := k.given[n]; ok || err != nil {
		k.twice = append(k.twice, fmt.Sprintf("%d in %s and %s, %v", n, was, url, err))
	}
	k.given[n] = url
	k.of[url]++
}

func (k *takers) count(url string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of[url]
}

func (k *takers) end() {
	k.ends.Store(true)
	k.wg.Wait()
	if len(k.twice) > 0 {
		k.t.Errorf("twice: %v", k.twice)
	}
}

// A command that copies is killed at points of its way while numbers are taken at both stores, and run
// again: no number comes twice.
func TestStoreCopyKilled(t *testing.T) {
	t.Parallel()
	pg, rd := testservers.SharedPostgres(t), testservers.Redis(t)
	pg.MustProxy()
	rd.MustProxy()
	admin := openSQL(t, pg.URL)
	proxies := []*testservers.Proxy{testservers.NewProxy(t, pg.Addr), testservers.NewProxy(t, rd.Addr)}
	for name, ends := range map[string]func(i int) (from, to string, near [2]string){
		"postgres to redis": func(i int) (string, string, [2]string) {
			from, to := newDatabase(t, admin, pg.URL), redisAt(rd.URL, i)
			return from, to, [2]string{proxies[0].URL(from), proxies[1].URL(to)}
		},
		"bolt to postgres": func(i int) (string, string, [2]string) {
			from, to := "bolt:"+filepath.Join(t.TempDir(), "from.db"), newDatabase(t, admin, pg.URL)
			return from, to, [2]string{from, proxies[0].URL(to)}
		},
	} {
		t.Run(name, func(t *testing.T) { copiesKilled(t, proxies, ends) })
	}
}

// The same among the engines that it leaves out.
func TestStoreCopyKilledSoak(t *testing.T) {
	patience.Soak(t, "the other engines")
	places := map[string]string{"mariadb": "%s?prefix=copy%d_", "mongodb": "%s%d", "etcd": "%s/copy%d", "zookeeper": "%s/copy%d"}
	servers := map[string]*testservers.Server{}
	var proxies []*testservers.Proxy
	near := map[string]*testservers.Proxy{}
	for _, store := range sharedStores {
		if places[store.name] != "" {
			server := store.start(t)
			server.MustProxy()
			near[store.name] = testservers.NewProxy(t, server.Addr)
			servers[store.name], proxies = server, append(proxies, near[store.name])
		}
	}
	for from, to := range map[string]string{"mariadb": "etcd", "etcd": "mongodb", "mongodb": "zookeeper", "zookeeper": "mariadb"} {
		t.Run(from+" to "+to, func(t *testing.T) {
			copiesKilled(t, proxies, func(i int) (string, string, [2]string) {
				one, other := fmt.Sprintf(places[from], servers[from].URL, 2*i), fmt.Sprintf(places[to], servers[to].URL, 2*i+1)
				return one, other, [2]string{near[from].URL(one), near[to].URL(other)}
			})
		})
	}
}

// copiesKilled kills copies between the ends that it is given, the second ones as they are reached through proxies.
func copiesKilled(t *testing.T, proxies []*testservers.Proxy, ends func(i int) (from, to string, near [2]string)) {
	t.Helper()
	requests := 0
	for i := range 9 {
		from, to, near := ends(i)
		if r := run(t, t.TempDir(), "tags", "create", "orders", "--store", from); r.code != 0 { // it warns of a store without replicas
			t.Fatalf("%+v", r)
		}
		if out := ok(t, t.TempDir(), "next", "orders", "--store", from); out != "1\n" {
			t.Fatal(out)
		}
		p := point{after: i%2 == 1}
		if i > 0 {
			p.at = 2 + (i-1)*(requests-2)/7
		}
		k := &takers{t: t}
		if i == 0 {
			requests, _ = copyKilled(t, proxies, p, near)
		}
		k.start(from, to)
		for busy := i > 0; busy; {
			_, busy = copyKilled(t, proxies, p, near)
		}
		patience.Until(t, "the copy ends", func() bool {
			r := run(t, t.TempDir(), "store", "copy", near[0], near[1])
			// Bolt, for a moment, or a server beside much else.
			passes := strings.Contains(r.err, "another process has") || strings.Contains(r.err, "did not answer in time")
			if r.code != 0 && !passes {
				t.Fatalf("killed at %d of %d, again: %s", p.at, requests, r.err)
			}
			return r.code == 0
		})
		before := k.count(to)
		patience.Until(t, "numbers of the new store", func() bool { return k.count(to) >= before+3 })
		k.end()
		refuses(t, t.TempDir(), from)
	}
	t.Logf("%d requests", requests)
}

func newDatabase(t *testing.T, admin *sql.DB, url string) string {
	t.Helper()
	name := fmt.Sprintf("copy_%d_%d", os.Getpid(), markets.Add(1))
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(url, "?")
	at := strings.LastIndex(before, "/")
	return before[:at+1] + name + url[len(before):]
}

func redisAt(url string, db int) string {
	return strings.TrimSuffix(strings.TrimSuffix(url, "/"), "/0") + "/" + strconv.Itoa(db+1)
}

// copyKilled is storeKilled of a copy.
func copyKilled(t *testing.T, proxies []*testservers.Proxy, p point, near [2]string) (requests int, busy bool) {
	t.Helper()
	return storeKilled(t, proxies, p, "copy", near[0], near[1])
}

// storeKilled runs a command on stores and kills it at a point; at 0 it is not. It returns how many requests
// it made, and whether another process had the store.
func storeKilled(t *testing.T, proxies []*testservers.Proxy, p point, args ...string) (requests int, busy bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	var count atomic.Int64
	cmd := command(ctx, t.TempDir(), nil, append([]string{"store"}, args...)...)
	started := make(chan struct{})
	matches := func([]byte) bool {
		if int(count.Add(1)) != p.at {
			return false
		}
		<-started
		_ = cmd.Process.Kill()
		return true
	}
	for _, proxy := range proxies {
		if p.after {
			proxy.CutReply(matches)
		} else {
			proxy.CutRequest(matches)
		}
		defer proxy.Pass()
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	close(started)
	err := cmd.Wait()
	if busy = strings.Contains(out.String(), "another process has"); err != nil && p.at == 0 && !busy { // bolt, for a moment
		t.Fatalf("%v: %s", err, out.String())
	}
	return int(count.Load()), busy
}

// A node that is started on a store while that is being loaded, and waits beside a load that was killed, makes
// no store of its own there. It joins when another load has ended, above all that was granted.
func TestStoreLoadWhileANodeJoins(t *testing.T) {
	t.Parallel()
	pg := testservers.SharedPostgres(t)
	admin := openSQL(t, pg.URL)
	proxies := []*testservers.Proxy{testservers.NewProxy(t, pg.Addr)}
	dir := t.TempDir()
	file, from := filepath.Join(dir, "dump"), "bolt:"+filepath.Join(dir, "from.db")
	s := serve(t, dir, nil, "--store", from, "--data", "from")
	before := takeSoon(t, s, "orders", 7)
	s.stop()
	if r := run(t, dir, "store", "dump", "--store", from, "-o", file); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	requests, _ := storeKilled(t, proxies, point{}, "load", "--store", proxies[0].URL(newDatabase(t, admin, pg.URL)), file)
	for _, at := range []int{requests - 4, requests - 1} {
		to := newDatabase(t, admin, pg.URL)
		storeKilled(t, proxies, point{at: at}, "load", "--store", proxies[0].URL(to), file)
		n := serve(t, t.TempDir(), nil, "--store", to)
		patience.Until(t, "the node waits", func() bool { return n.readiness().Store == string(hapax.ErrStoreUnavailable.Code()) }, n)
		if ids, err := take(http.DefaultClient, n.url, "orders", 1); err == nil {
			t.Errorf("killed at %d of %d: %d was granted", at, requests, ids)
		}
		if r := run(t, dir, "store", "load", "--store", to, file); r.code != 0 {
			t.Fatalf("killed at %d of %d, again: %+v", at, requests, r)
		}
		if ids := takeSoon(t, n, "orders", 1, hapax.ErrStoreUnavailable.Code()); ids[0] <= slices.Max(before) {
			t.Errorf("%d was granted after %d", ids[0], before)
		}
		n.stop()
	}
}
