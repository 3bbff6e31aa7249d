package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/witness"
)

// A server that is told to stop hands back what it did not issue.
func TestGracefulRestartsLeaveNoGap(t *testing.T) {
	t.Parallel()
	dir, want := t.TempDir(), hapax.ID(1)
	for range 5 {
		s := serve(t, dir, nil)
		for _, id := range mustTake(t, s, "orders", 17) {
			if id != want {
				t.Fatalf("got %d, want %d", id, want)
			}
			want++
		}
		if code := s.stop(); code != 0 {
			t.Fatalf("the exit code is %d: %s", code, s.logged())
		}
	}
}

// A tally knows which numbers of a tag came.
type tally struct {
	mu    sync.Mutex // guards the fields below
	words []uint64
	count int64
	twice []hapax.ID
}

func (c *tally) add(from, to hapax.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for need := int(to)/64 + 1; len(c.words) < need; {
		c.words = append(c.words, make([]uint64, max(1<<12, need-len(c.words)))...)
	}
	for id := from; id < to; id++ {
		word, bit := &c.words[id/64], uint64(1)<<(id%64)
		if *word&bit != 0 {
			c.twice = append(c.twice, id)
		}
		*word |= bit
		c.count++
	}
}

// missing returns the numbers of [1, to) that did not come, as stretches.
func (c *tally) missing(to hapax.ID) (gaps []hapax.Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := hapax.ID(1); id < to; id++ {
		if int(id/64) < len(c.words) && c.words[id/64]&(1<<(id%64)) != 0 {
			continue
		}
		if n := len(gaps); n > 0 && gaps[n-1].Hi == int64(id) {
			gaps[n-1].Hi++
		} else {
			gaps = append(gaps, hapax.Grant{Lo: int64(id), Hi: int64(id) + 1})
		}
	}
	return gaps
}

// loadedTags are the tags of the tests below.
var loadedTags = []string{"orders", "users"}

// A load takes numbers of a server as fast as it can, until that has stopped.
type load struct {
	tallies map[string]*tally
	clients sync.WaitGroup
}

func newLoad() *load { return &load{tallies: map[string]*tally{"orders": {}, "users": {}}} }

// on begins to load a server, over HTTP and the Redis protocol.
func (l *load) on(t *testing.T, s *serving) {
	t.Helper()
	for i := range 4 {
		tag := loadedTags[i%2]
		l.clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				ids, err := take(client, s.url, tag, 1+rand.IntN(2000))
				if err != nil {
					if r, ok := errors.AsType[*refusal](err); ok && r.Status != http.StatusServiceUnavailable {
						t.Errorf("a request: %v", err)
					}
					if s.hasEnded() {
						return
					}
					continue
				}
				for _, id := range ids {
					l.tallies[tag].add(id, id+1)
				}
			}
		})
	}
	for _, tag := range loadedTags {
		l.clients.Go(func() {
			client := redis.NewClient(&redis.Options{Addr: s.resp(), PoolSize: 1, MaxRetries: -1, DialerRetries: 1, ReadTimeout: patience.Long})
			defer client.Close()
			for !s.hasEnded() {
				pipe := client.Pipeline()
				for range 200 {
					pipe.Incr(t.Context(), tag)
				}
				replies, _ := pipe.Exec(t.Context()) // what came counts
				for _, r := range replies {
					if n := r.(*redis.IntCmd).Val(); r.Err() == nil {
						l.tallies[tag].add(hapax.ID(n), hapax.ID(n)+1)
					}
				}
			}
		})
	}
}

// goesOn waits until so many more numbers of each tag have come: the server is busy then.
func (l *load) goesOn(t *testing.T, more int64, s *serving) {
	t.Helper()
	for tag, c := range l.tallies {
		enough := c.soFar() + more
		patience.Until(t, fmt.Sprintf("%d more numbers of %s", more, tag), func() bool { return c.soFar() >= enough }, s)
	}
}

// soFar returns how many numbers came.
func (c *tally) soFar() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// stopsLoseNothing stops a loaded server so many times, each when that has issued some
// thousand numbers, and fails where a number is left out or comes twice.
func stopsLoseNothing(t *testing.T, stops, atMost int, args ...string) {
	t.Helper()
	dir, l := t.TempDir(), newLoad()
	args = append([]string{"--drain", "10m"}, args...) // whatever else the machine does
	for n := range stops {
		s := serve(t, dir, nil, args...)
		l.on(t, s)
		l.goesOn(t, int64(1000+rand.IntN(atMost)), s)
		if code := s.stop(); code != 0 {
			t.Fatalf("stop %d: the exit code is %d: %s", n, code, s.logged())
		}
		l.clients.Wait()
		if !strings.Contains(s.logged(), `"numbers_lost":0`) {
			t.Errorf("stop %d: the log does not say that nothing was lost: %s", n, s.logged())
		}
	}
	s := serve(t, dir, nil, args...)
	for tag, c := range l.tallies {
		next := mustTake(t, s, tag, 1)[0]
		if gaps := c.missing(next); len(gaps) > 0 || len(c.twice) > 0 || c.count < 1000 {
			t.Errorf("tag %s: after %d stops %d numbers came, the next is %d; left out: %v, twice: %v", tag, stops, c.count, next, gaps, c.twice)
		}
		t.Logf("tag %s: %d numbers, %d stops", tag, c.count, stops)
	}
	s.stop()
}

// One node loses nothing when it stops, however busy it is.
func TestStopsUnderLoad(t *testing.T) {
	t.Parallel()
	stopsLoseNothing(t, 3, 1)
}

// The same fifty times over, on the embedded store and on shared ones.
func TestStopsUnderLoadSoak(t *testing.T) {
	patience.Soak(t, "stops at random moments, fifty times")
	for name, url := range map[string]func(testing.TB) string{
		"bolt":     func(testing.TB) string { return "bolt:" },
		"redis":    func(t testing.TB) string { return testservers.Redis(t).URL },
		"postgres": func(t testing.TB) string { return testservers.Postgres(t).URL },
	} {
		t.Run(name, func(t *testing.T) { stopsLoseNothing(t, 50, 50_000, "--store", url(t)) })
	}
}

// Of three nodes, one that stops loses only what lies below another's grant, and its log
// says which numbers those are.
func TestStopsAmongOthers(t *testing.T) {
	t.Parallel()
	store, dir, l := testservers.Redis(t), t.TempDir(), newLoad()
	var nodes []*serving
	for i := range 3 {
		nodes = append(nodes, serve(t, dir, nil, "--store", store.URL, "--data", fmt.Sprint("node-", i), "--heartbeat", "300ms", "--drain", "10m"))
	}
	for _, s := range nodes {
		l.on(t, s)
	}
	for i, s := range nodes {
		for _, tag := range loadedTags {
			patience.Until(t, fmt.Sprintf("node %d is granted %s several times", i, tag), func() bool {
				return s.metric(fmt.Sprintf(`hapax_refills_total{pool="",tag="%s"}`, tag)) > 2
			}, s)
		}
	}
	told := map[string]*tally{"orders": {}, "users": {}}
	for i, s := range nodes {
		if code := s.stop(); code != 0 {
			t.Errorf("the exit code is %d: %s", code, s.logged())
		}
		lost, stretches := lostIn(t, s)
		sum := int64(0)
		for tag, some := range stretches {
			for _, g := range some {
				told[tag].add(hapax.ID(g.Lo), hapax.ID(g.Hi))
				sum += g.Len()
			}
			// Another may still be writing down the grant because of which the last hand-back was refused.
			patience.Until(t, fmt.Sprintf("what node %d has lost of %s, %v, lies below numbers that another was granted", i, tag, some), func() bool {
				top := int64(0)
				for other := range nodes {
					if other != i {
						eachRecord(t, filepath.Join(dir, fmt.Sprint("node-", other)), tag, func(what string, g hapax.Grant) {
							if what == ledger.Granted {
								top = max(top, g.Hi)
							}
						})
					}
				}
				return !slices.ContainsFunc(some, func(g hapax.Grant) bool { return g.Hi > top })
			})
		}
		if sum != lost {
			t.Errorf("%d numbers are lost, and the stretches that are told hold %d", lost, sum)
		}
	}
	l.clients.Wait()
	// What a busy node was granted too late it never had: no ledger has it, and the node's log has the trouble with
	// the store. Whatever a ledger has, and did not go back, is for the node to account for.
	var trouble []string
	had := map[string]balance{"orders": {}, "users": {}}
	for i, n := range nodes {
		trouble = append(trouble, amber(n)...)
		for tag, c := range had {
			eachRecord(t, filepath.Join(dir, fmt.Sprint("node-", i)), tag, c.take)
		}
	}
	t.Logf("told as lost: %d of orders, %d of users", told["orders"].count, told["users"].count)
	s := serve(t, dir, nil, "--store", store.URL, "--data", "node-0", "--heartbeat", "300ms")
	for tag, c := range l.tallies {
		next := takeSoon(t, s, tag, 1)[0]
		gaps := told[tag].missingOf(c.missing(next))
		late := had[tag].tally().missingOf(gaps)
		if late != nil && trouble != nil {
			t.Logf("tag %s: %v came too late for a node that had trouble with the store: %q", tag, late, trouble)
		}
		if !slices.Equal(gaps, late) || late != nil && trouble == nil {
			t.Errorf("tag %s: the numbers %v came nowhere, and no log tells of them; no ledger has %v of them", tag, gaps, late)
		}
		if len(c.twice) > 0 || c.count < 1000 {
			t.Errorf("tag %s: of %d numbers %v came twice", tag, c.count, c.twice)
		}
	}
	s.stop()
}

// eachRecord tells what the ledger in a data directory has of a tag: grants, and what was given back of them.
func eachRecord(t *testing.T, data, tag string, tell func(what string, g hapax.Grant)) {
	t.Helper()
	_, err := journal.Read(t.Context(), filepath.Join(data, ledger.Dir), ledger.Prefix, func(record []byte) error {
		fields := strings.Split(string(record), "\t")
		if len(fields) <= 5 || fields[0] != witness.TagLine(tag) || fields[5] != ledger.Granted && fields[5] != ledger.Back {
			return nil
		}
		lo, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return err
		}
		hi, err := strconv.ParseInt(fields[2], 10, 64)
		tell(fields[5], hapax.Grant{Lo: lo, Hi: hi})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A balance is how many times more than before it numbers were granted, less those given back, at the places where
// that changes.
type balance map[int64]int

func (b balance) take(what string, g hapax.Grant) {
	n := 1
	if what == ledger.Back {
		n = -1
	}
	b[g.Lo] += n
	b[g.Hi] -= n
}

// tally returns the numbers that somebody still has.
func (b balance) tally() *tally {
	c, n, from := &tally{}, 0, int64(0)
	for _, at := range slices.Sorted(maps.Keys(b)) {
		if n > 0 {
			c.add(hapax.ID(from), hapax.ID(at))
		}
		n, from = n+b[at], at
	}
	return c
}

// missingOf returns what of some stretches c does not have.
func (c *tally) missingOf(some []hapax.Grant) (rest []hapax.Grant) {
	all := int64(1)
	for _, g := range some {
		all = max(all, g.Hi)
	}
	for _, gap := range c.missing(hapax.ID(all)) {
		for _, g := range some {
			if lo, hi := max(gap.Lo, g.Lo), min(gap.Hi, g.Hi); lo < hi {
				rest = append(rest, hapax.Grant{Lo: lo, Hi: hi})
			}
		}
	}
	return rest
}

// lostIn returns how many numbers a server says that its stop has lost, and which.
func lostIn(t *testing.T, s *serving) (lost int64, stretches map[string][]hapax.Grant) {
	t.Helper()
	lost, stretches = -1, map[string][]hapax.Grant{}
	for line := range strings.Lines(s.logged()) {
		var e struct {
			Msg, Event, Tag string
			Lo, Hi          int64
			Lost            *int64 `json:"numbers_lost"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		switch {
		case e.Event == "burnt":
			stretches[e.Tag] = append(stretches[e.Tag], hapax.Grant{Lo: e.Lo, Hi: e.Hi})
		case e.Msg == "stopped" && e.Lost != nil:
			lost = *e.Lost
		}
	}
	return lost, stretches
}

// A stop hands back the numbers of all tags, however many they are.
func TestStopOfManyTags(t *testing.T) {
	t.Parallel()
	stopOfManyTags(t, 2000, "bolt:")
}

func TestStopOfManyTagsSoak(t *testing.T) {
	patience.Soak(t, "a hundred thousand tags")
	t.Run("bolt", func(t *testing.T) { stopOfManyTags(t, 100_000, "bolt:") })
	for name, start := range map[string]func(testing.TB, ...string) *testservers.Server{
		"redis": testservers.Redis, "postgres": testservers.Postgres, "mysql": testservers.MariaDB,
		"etcd": testservers.Etcd, "zookeeper": testservers.ZooKeeper,
	} {
		t.Run(name, func(t *testing.T) { stopOfManyTags(t, 20_000, start(t).URL) })
	}
	t.Run("mongodb", func(t *testing.T) { stopOfManyTags(t, 500, testservers.MongoDB(t).URL) }) // the stand-in serves one request at a time
}

func stopOfManyTags(t *testing.T, tags int, url string) {
	t.Helper()
	dir := t.TempDir()
	flags := []string{"--store", url, "--max-tags", "200000"}
	useAll := func(s *serving, want hapax.ID) {
		var clients sync.WaitGroup
		side := min(64, tags/50)
		for i := range side {
			clients.Go(func() {
				client := redis.NewClient(&redis.Options{Addr: s.resp(), PoolSize: 1, ReadTimeout: time.Minute})
				defer client.Close()
				for n := i; n < tags; n += side {
					for {
						id, err := client.Incr(t.Context(), fmt.Sprint("tag-", n)).Result()
						if err != nil && (strings.Contains(err.Error(), "TRYAGAIN") || strings.Contains(err.Error(), "UNAVAILABLE")) {
							patience.Again() // it joins
							continue
						}
						if err != nil || hapax.ID(id) != want {
							t.Errorf("tag-%d: %d, %v; want %d", n, id, err, want)
						}
						break
					}
				}
			})
		}
		clients.Wait()
	}
	s := serve(t, dir, nil, flags...)
	useAll(s, 1)
	began := time.Now()
	code := s.stop()
	t.Logf("%s: the stop with %d tags took %v", strings.SplitN(url, ":", 2)[0], tags, time.Since(began))
	if code != 0 || !strings.Contains(s.logged(), `"numbers_lost":0`) {
		t.Fatalf("the exit code is %d: %s", code, lastLines(s.logged()))
	}
	s = serve(t, dir, nil, flags...)
	for n := 0; n < tags; n += max(1, tags/200) {
		if id := takeSoon(t, s, fmt.Sprint("tag-", n), 1)[0]; id != 2 {
			t.Errorf("tag-%d goes on with %d; want 2", n, id)
		}
	}
	s.stop()
}

func lastLines(log string) string { return log[max(0, len(log)-2000):] }
