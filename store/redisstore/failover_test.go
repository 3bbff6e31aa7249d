package redisstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/redisstore"
)

// primaryOf returns who answers a guarded call.
func primaryOf(t testing.TB, s *redisstore.Store) string {
	t.Helper()
	c, err := s.Beat(t.Context(), driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}})
	if err != nil || c.Primary == "" {
		t.Fatalf("the contact is %+v, error %v; want a primary", c, err)
	}
	return c.Primary
}

// Settings that change stop nobody, and do not change who answers.
func TestLessDurableMeanwhile(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	before, last := primaryOf(t, s), allocate(t, s, "t", 10)
	c := raw(t, srv)
	for _, setting := range [][3]string{{"appendonly", "no", "yes"}, {"appendfsync", "everysec", "always"}, {"no-appendfsync-on-rewrite", "yes", "no"}} {
		for _, value := range setting[1:] {
			if err := c.ConfigSet(t.Context(), setting[0], value).Err(); err != nil {
				t.Fatal(err)
			}
			var codes []string
			for _, s := range []*redisstore.Store{s, open(t, srv.URL, redisstore.Options{Warn: func(code, _ string) { codes = append(codes, code) }})} {
				g := allocate(t, s, "t", 10)
				if now := primaryOf(t, s); g.Lo != last.Hi || now != before {
					t.Errorf("with %s at %s the grant after %v is %v, and %q answers after %q", setting[0], value, last, g, now, before)
				}
				last = g
			}
			if warned := slices.Contains(codes, redisstore.WarnNotDurable); warned != (value == setting[1]) {
				t.Errorf("with %s at %s the warnings are %q", setting[0], value, codes)
			}
		}
	}
}

func TestReplica(t *testing.T) {
	master := testservers.Redis(t, "--appendfsync", "always")
	replica := testservers.RedisReplica(t, master)
	for _, readOnly := range []string{"no", "yes"} { // what a replica lets be written it forgets
		if err := raw(t, replica).ConfigSet(t.Context(), "replica-read-only", readOnly).Err(); err != nil {
			t.Fatal(err)
		}
		_, err := redisstore.Open(t.Context(), replica.URL, redisstore.Options{})
		wantErr(t, "Open", err, hapax.ErrStoreUnsafe)
	}

	var codes []string
	s := open(t, master.URL, redisstore.Options{Warn: func(code, _ string) { codes = append(codes, code) }})
	if !slices.Contains(codes, redisstore.WarnReplication) {
		t.Errorf("warnings are %q; want %q", codes, redisstore.WarnReplication)
	}
	create(t, s, hapax.Tag{Name: "t"})
	before := primaryOf(t, s)
	awaitMark(t, replica, 1)
	host, port, _ := strings.Cut(replica.Addr, ":")
	if err := raw(t, replica).ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := raw(t, master).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []string{"yes", "no"} { // one that may be written forgets it
		if err := raw(t, master).ConfigSet(t.Context(), "replica-read-only", readOnly).Err(); err != nil {
			t.Fatal(err)
		}
		for what, call := range map[string]func() error{
			"Allocate": func() error { _, err := s.Allocate(t.Context(), "t", 1, ""); return err },
			"Ping":     func() error { return s.Ping(t.Context()) },
			"StoreID":  func() error { _, err := s.StoreID(t.Context()); return err },
			"Tag":      func() error { _, err := s.Tag(t.Context(), "t"); return err },
			"Tags":     func() error { _, err := s.Tags(t.Context(), "", 1); return err },
		} {
			wantErr(t, what+" on a master that was demoted", call(), hapax.ErrStoreUnsafe)
		}
	}

	// When it is a master again, it is the same process with another history.
	if err := raw(t, master).ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	allocate(t, s, "t", 1)
	if now := primaryOf(t, s); now == before {
		t.Errorf("%q answers as before it was a replica", now)
	}
	open(t, master.URL, redisstore.Options{})
}

func TestWait(t *testing.T) {
	master := testservers.Redis(t, "--appendfsync", "always")
	replica := testservers.RedisReplica(t, master)
	s := open(t, master.URL+"?wait=1", redisstore.Options{Warn: func(code, message string) { t.Errorf("warning %s: %s", code, message) }})
	createUntil(t, s)
	last := must[hapax.Grant](t)(allocateUntil(t, s, "t", nil))
	replica.Pause()
	_, err := s.Allocate(t.Context(), "t", 10, "")
	wantErr(t, "a grant that the replica does not have", err, hapax.ErrStoreUnavailable)
	if tag, err := s.Tag(t.Context(), "t"); err != nil || tag.Mark < last.Hi {
		t.Errorf("what waits for no replica: %+v, %v", tag, err)
	}
	replica.Resume()
	g, err := allocateUntil(t, s, "t", nil)
	if err != nil {
		t.Fatal(err)
	}
	if g.Lo < last.Hi+10 {
		t.Errorf("%v was granted after an abandoned grant that began at %d", g, last.Hi)
	}
}

// A grant waits for as many replicas as it was told to, not for some.
func TestWaitForAll(t *testing.T) {
	master := testservers.Redis(t, "--appendfsync", "always")
	slow, _ := testservers.RedisReplica(t, master), testservers.RedisReplica(t, master)
	s := open(t, master.URL+"?wait=2", redisstore.Options{})
	createUntil(t, s)
	last := must[hapax.Grant](t)(allocateUntil(t, s, "t", nil))
	slow.Pause()
	defer slow.Resume()
	_, err := s.Allocate(t.Context(), "t", 10, "")
	wantErr(t, "a grant that one of two replicas has", err, hapax.ErrStoreUnavailable)
	slow.Resume()
	if g := must[hapax.Grant](t)(allocateUntil(t, s, "t", nil)); g.Lo < last.Hi+10 {
		t.Errorf("%v was granted after an abandoned grant that began at %d", g, last.Hi)
	}
}

// awaitMark waits until a replica has the mark of tag t: what it lacks by chance
// is no matter of the test.
func awaitMark(t *testing.T, replica *testservers.Server, mark int64) {
	t.Helper()
	c := raw(t, replica)
	patience.Await(t, fmt.Sprint("the mark ", mark), func() (string, error) {
		return c.Get(t.Context(), tagKey("t")).Result()
	}, func(row string) bool {
		return strings.Contains(row, fmt.Sprintf(`"mark":%d,`, mark)) || strings.Contains(row, fmt.Sprintf(`"mark":%d}`, mark))
	})
}

// A failover is followed, and tells that another server answers.
func TestFailover(t *testing.T) {
	for _, query := range []string{"", "?wait=1"} {
		t.Run("with"+query, func(t *testing.T) {
			t.Parallel()
			master := testservers.Redis(t, "--appendfsync", "always")
			replica := testservers.RedisReplica(t, master)
			s := open(t, testservers.RedisSentinels(t, master, 1, 1)[0].URL+query, redisstore.Options{})
			createUntil(t, s)
			before, last := primaryOf(t, s), must[hapax.Grant](t)(allocateUntil(t, s, "t", nil))
			awaitMark(t, replica, last.Hi)
			master.Kill()
			c := raw(t, replica)
			patience.Await(t, "a new master", func() (string, error) {
				return c.Info(t.Context(), "replication").Result()
			}, func(info string) bool { return strings.Contains(info, "role:master") })
			if query != "" {
				testservers.RedisReplica(t, replica) // WAIT needs one
			}
			if g := must[hapax.Grant](t)(allocateUntil(t, s, "t", nil)); g.Lo < last.Hi {
				t.Errorf("after a failover %v was granted; %v was granted before", g, last)
			}
			if now := primaryOf(t, s); now == before {
				t.Errorf("%q answers after a failover as before", now)
			}
		})
	}
}
