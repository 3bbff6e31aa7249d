package e2e

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A sharedStore is a store that several nodes can share.
type sharedStore struct {
	name  string
	start func(t testing.TB) *testservers.Server
}

// sharedStores are all of them, over real servers that keep what they
// acknowledge.
var sharedStores = []sharedStore{
	{"mariadb", func(t testing.TB) *testservers.Server { return testservers.MariaDB(t) }},
	{"postgres", func(t testing.TB) *testservers.Server { return testservers.Postgres(t) }},
	{"redis", func(t testing.TB) *testservers.Server { return testservers.Redis(t) }},
	{"mongodb", testservers.MongoDB},
	{"etcd", func(t testing.TB) *testservers.Server { return testservers.Etcd(t) }},
	{"zookeeper", func(t testing.TB) *testservers.Server { return testservers.ZooKeeper(t) }},
}

// often reports whether a test that concerns servers and the guard more than the
// engine below them is run on this store each time: on one SQL database and on one
// store without transactions of its own. A soak runs it on all.
func (s sharedStore) often() bool {
	return patience.Soaking() || s.name == "postgres" || s.name == "redis"
}

// Servers, processes and networks fail under shared stores; nodes share every one.
func TestSharedStores(t *testing.T) {
	t.Parallel()
	for _, store := range sharedStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			s := store.start(t)
			t.Run("nodes", func(t *testing.T) { testNodes(t, s) })
			if !store.often() {
				return
			}
			beside := func(name string, test func(*testing.T, *testservers.Server)) {
				t.Run(name, func(t *testing.T) { t.Parallel(); test(t, s) })
			}
			beside("workers", testWorkers)
			beside("outage", testOutage)
			beside("pause", testPause)
			beside("clone", testClone)
		})
	}
}

// TestSharedStoresSoak has a million numbers issued by three nodes in full work through
// crashes, and 200 processes start at once again and again, on every store.
func TestSharedStoresSoak(t *testing.T) {
	patience.Soak(t, "a crowd in full work, through crashes")
	for _, store := range sharedStores {
		t.Run(store.name, func(t *testing.T) {
			s := store.start(t)
			t.Run("nodes", func(t *testing.T) { testBusyNodes(t, s) })
			t.Run("workers", func(t *testing.T) { testCrowdOfWorkers(t, s) })
			if store.name == "redis" { // it is about the server, not the store
				t.Run("latency", func(t *testing.T) { testLatency(t, s) })
			}
		})
	}
}

// metric returns one number of the server's metrics, named with its labels; 0 if
// it is not there.
func (s *serving) metric(name string) float64 {
	s.t.Helper()
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), name+" "); found {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				s.t.Error(err)
			}
			return v
		}
	}
	return 0
}

// distinct fails the test if a number came twice.
func distinct(t *testing.T, what string, ids []hapax.ID) {
	t.Helper()
	sorted := slices.Clone(ids)
	slices.Sort(sorted)
	if twice := len(sorted) - len(slices.Compact(sorted)); twice > 0 {
		t.Errorf("%s: %d numbers of %d came twice", what, twice, len(ids))
	}
}

// patient outlasts whatever a server may let a request wait.
var patient = &http.Client{Timeout: patience.Long}

// takeSoon takes numbers as soon as the server has them. Until then it may refuse
// for want of a grant, or with the given codes.
func takeSoon(t *testing.T, s *serving, tag string, count int, excused ...hapax.Code) (ids []hapax.ID) {
	t.Helper()
	patience.Until(t, "the server issues "+tag, func() bool {
		var err error
		ids, err = take(http.DefaultClient, s.url, tag, count)
		// The client may have a spare connection, which the server closes where nothing is asked on it.
		spare := errors.Is(err, io.EOF) && !s.hasEnded()
		if err != nil && !wantsGrant(err) && !slices.Contains(excused, refused(err)) && !spare {
			t.Fatalf("%s: %v", tag, err)
		}
		return err == nil
	}, s)
	return ids
}

// refused returns the code of an answer that was no success; "" if err is none.
func refused(err error) hapax.Code {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.Code
	}
	return ""
}

// wantsGrant reports whether a request failed because the store is away and what it
// granted is used up.
func wantsGrant(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.Status == http.StatusServiceUnavailable &&
		(r.Code == hapax.ErrStoreUnavailable.Code() || r.Code == hapax.ErrRefillPending.Code())
}
