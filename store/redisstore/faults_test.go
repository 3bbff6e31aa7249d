package redisstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/redisstore"
)

// A server that keeps everything may crash and come back.
func TestCrash(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{Warn: func(code, message string) { t.Errorf("warning %s: %s", code, message) }})
	create(t, s, hapax.Tag{Name: "t"})
	last := allocate(t, s, "t", 5)
	for range 2 {
		srv.Kill()
		_, err := s.Allocate(t.Context(), "t", 5)
		wantErr(t, "a server that is down", err, hapax.ErrStoreUnavailable)
		srv.Start()
		g, err := allocateUntil(t, s, "t", nil)
		if err != nil {
			t.Fatal(err)
		}
		if g.Lo < last.Hi {
			t.Errorf("after a crash %v was granted; %v was granted before", g, last)
		}
		last = g
	}
}

// Grants that were acknowledged while a server was killed are not repeated.
func TestCrashUnderLoad(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	var mu sync.Mutex // guards granted
	var granted []hapax.Grant
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if a, err := s.Allocate(ctx, "t", 3); err == nil {
					mu.Lock()
					granted = append(granted, a.Grant)
					mu.Unlock()
				}
			}
		})
	}
	for range 3 {
		time.Sleep(50 * time.Millisecond)
		srv.Kill()
		srv.Start()
	}
	cancel()
	wg.Wait()
	if last, err := allocateUntil(t, s, "t", nil); err != nil {
		t.Fatal(err)
	} else {
		granted = append(granted, last)
	}
	slices.SortFunc(granted, func(a, b hapax.Grant) int { return int(a.Lo - b.Lo) })
	for i := 1; i < len(granted); i++ {
		if granted[i].Lo < granted[i-1].Hi {
			t.Fatalf("%v was granted after %v", granted[i], granted[i-1])
		}
	}
	t.Logf("%d grants", len(granted))
}

// A server that may have lost something is refused, until it is opened anew.
func TestRestartThatMayLose(t *testing.T) {
	everysec := []string{"--appendfsync", "everysec"}
	tests := []struct {
		name string
		args []string
		opts redisstore.Options
		want *hapax.Error
	}{
		{"without persistence", []string{"--appendonly", "no"}, redisstore.Options{}, hapax.ErrStoreReplaced},
		{"without persistence, adopting", []string{"--appendonly", "no"}, redisstore.Options{Adopt: true}, hapax.ErrStoreReplaced},
		{"with late fsync", everysec, redisstore.Options{}, hapax.ErrStoreUnsafe},
		{"with late fsync, adopting", everysec, redisstore.Options{Adopt: true}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := testservers.Redis(t, tt.args...)
			var codes []string
			tt.opts.Warn = func(code, _ string) { codes = append(codes, code) }
			s := open(t, srv.URL, tt.opts)
			if !slices.Equal(codes, []string{redisstore.WarnNotDurable}) {
				t.Errorf("warnings are %q; want %q", codes, redisstore.WarnNotDurable)
			}
			create(t, s, hapax.Tag{Name: "t"})
			last := allocate(t, s, "t", 5)
			srv.Stop()
			srv.Start()
			g, err := allocateUntil(t, s, "t", tt.want)
			if tt.want == nil {
				if err != nil || g.Lo < last.Hi {
					t.Errorf("after an adopted restart: %v, %v; %v was granted before", g, err, last)
				}
				if !slices.Contains(codes, redisstore.WarnPrimaryChanged) {
					t.Errorf("warnings are %q; want %q among them", codes, redisstore.WarnPrimaryChanged)
				}
				return
			}
			wantErr(t, "Allocate after the restart", err, tt.want)
			wantErr(t, "Ping after the restart", s.Ping(t.Context()), tt.want)
			_, err = s.CreateTag(t.Context(), hapax.Tag{Name: "new"}, hapax.CreateFirstUse)
			wantErr(t, "CreateTag after the restart", err, tt.want)
			if tt.want == hapax.ErrStoreReplaced { // there is nothing left to be careful with
				open(t, srv.URL, redisstore.Options{})
				return
			}
			_, err = redisstore.Open(t.Context(), srv.URL, redisstore.Options{})
			wantErr(t, "Open after the restart", err, tt.want)
			open(t, srv.URL+"?adopt=true", redisstore.Options{})
			open(t, srv.URL, redisstore.Options{})
			allocate(t, s, "t", 1) // it follows the adoption
		})
	}
}

// A restart is safe only between two times of keeping everything.
func TestRestartWithOtherDurability(t *testing.T) {
	for _, order := range [][2]string{{"always", "everysec"}, {"everysec", "always"}} {
		t.Run(order[0]+" to "+order[1], func(t *testing.T) {
			conf := filepath.Join(t.TempDir(), "redis.conf")
			write := func(fsync string) {
				if err := os.WriteFile(conf, []byte("appendfsync "+fsync+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(order[0])
			srv := testservers.Redis(t, "--include", conf)
			s := open(t, srv.URL, redisstore.Options{})
			create(t, s, hapax.Tag{Name: "t"})
			srv.Stop()
			write(order[1])
			srv.Start()
			_, err := allocateUntil(t, s, "t", hapax.ErrStoreUnsafe)
			wantErr(t, "Allocate", err, hapax.ErrStoreUnsafe)
			_, err = redisstore.Open(t.Context(), srv.URL, redisstore.Options{})
			wantErr(t, "Open", err, hapax.ErrStoreUnsafe)
		})
	}
}

// Replicas that have every grant do not help a master that lost its own.
func TestRestartOfMasterWithReplica(t *testing.T) {
	for name, args := range map[string][]string{
		"late fsync": {"--appendfsync", "everysec"},
		"snapshot":   {"--appendonly", "no", "--save", "3600 1"},
	} {
		t.Run(name, func(t *testing.T) {
			master := testservers.Redis(t, args...)
			testservers.RedisReplica(t, master)
			s := open(t, master.URL+"?wait=1", redisstore.Options{})
			createUntil(t, s)
			if err := raw(t, master).Save(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := allocateUntil(t, s, "t", nil); err != nil { // the replica may be late
				t.Fatal(err)
			}
			master.Kill()
			master.Start()
			_, err := allocateUntil(t, s, "t", hapax.ErrStoreUnsafe)
			wantErr(t, "Allocate", err, hapax.ErrStoreUnsafe)
		})
	}
}

// A store whose data was deleted under it notices at every call, and makes
// nothing new.
func TestEmptied(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	lease := acquire(t, s)
	ctx := t.Context()
	check := func(t *testing.T) {
		step := int64(5)
		for name, call := range map[string]func() error{
			"StoreID":      func() error { _, err := s.StoreID(ctx); return err },
			"Ping":         func() error { return s.Ping(ctx) },
			"Allocate":     func() error { _, err := s.Allocate(ctx, "t", 1); return err },
			"CreateTag":    func() error { _, err := s.CreateTag(ctx, hapax.Tag{Name: "t"}, hapax.CreateFirstUse); return err },
			"Tag":          func() error { _, err := s.Tag(ctx, "t"); return err },
			"Tags":         func() error { _, err := s.Tags(ctx, "", 1); return err },
			"UpdateTag":    func() error { _, err := s.UpdateTag(ctx, "t", hapax.TagUpdate{Step: &step}); return err },
			"DeleteTag":    func() error { _, err := s.DeleteTag(ctx, "t"); return err },
			"FreezePool":   func() error { _, err := s.FreezePool(ctx, "p", "x"); return err },
			"Pools":        func() error { _, err := s.Pools(ctx); return err },
			"Worker":       func() error { _, err := s.Worker(ctx, "p", 1); return err },
			"Workers":      func() error { _, err := s.Workers(ctx, "p"); return err },
			"ExtendWorker": func() error { _, err := s.ExtendWorker(ctx, lease, hapax.ExtendRequest{To: 30, End: 100}); return err },
		} {
			wantErr(t, name, call(), hapax.ErrStoreReplaced)
		}
	}
	c := raw(t, srv)
	if err := c.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	t.Run("empty", check)
	if n := c.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys were made in an empty server", n)
	}
	other := open(t, srv.URL, redisstore.Options{})
	t.Run("another store", check)
	create(t, other, hapax.Tag{Name: "t"})
	if _, err := other.FreezePool(ctx, "p", "x"); err != nil {
		t.Fatal(err)
	}
	t.Run("another store with the same names", check)
	if mark := must[hapax.Tag](t)(other.Tag(ctx, "t")).Mark; mark != 1 {
		t.Errorf("the other store's mark is %d; want 1", mark)
	}
}

func acquire(t testing.TB, s *redisstore.Store) hapax.Lease {
	t.Helper()
	return must[hapax.Lease](t)(s.AcquireWorker(t.Context(), hapax.AcquireRequest{
		Pool: "p", Layout: "x", IDs: hapax.Grant{Lo: 0, Hi: 4}, Holder: "h", Latest: 10, To: 20, End: 100, Poison: 1000,
		Now: time.Now(), TTL: time.Minute, Tick: time.Millisecond,
	}))
}

// A single line that vanished is not begun anew.
func TestLostLine(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	lease := acquire(t, s)
	c, ctx := raw(t, srv), t.Context()
	if n := c.Del(ctx, "hapax:tag:t", "hapax:workers:p").Val(); n != 2 {
		t.Fatalf("%d keys were deleted; want 2", n)
	}
	_, err := s.Allocate(ctx, "t", 1)
	wantErr(t, "Allocate", err, hapax.ErrStoreRolledBack)
	_, err = s.CreateTag(ctx, must[hapax.Tag](t)(hapax.Tag{Name: "t"}.WithDefaults()), hapax.CreateFirstUse)
	wantErr(t, "CreateTag", err, hapax.ErrStoreRolledBack)
	_, err = s.Tags(ctx, "", 10)
	wantErr(t, "Tags", err, hapax.ErrStoreRolledBack)
	_, err = s.Workers(ctx, "p")
	wantErr(t, "Workers", err, hapax.ErrStoreRolledBack)
	_, err = s.ExtendWorker(ctx, lease, hapax.ExtendRequest{To: 30, End: 100})
	wantErr(t, "ExtendWorker", err, hapax.ErrStoreRolledBack)
	_, err = s.SwapWorker(ctx, hapax.Worker{}, hapax.Worker{Pool: "p", ID: 3, Epoch: 1})
	wantErr(t, "SwapWorker", err, hapax.ErrStoreRolledBack)

	// The way out that the package describes.
	c.ZRem(ctx, "hapax:{hapax}:tags", "t")
	if g := create(t, s, hapax.Tag{Name: "t", Start: 5000}); g.Mark != 5000 {
		t.Errorf("mark is %d; want 5000", g.Mark)
	}
	allocate(t, s, "t", 1)
}

// A creation that was cut off between its steps is completed by the next one.
func TestHalfCreated(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	c, ctx := raw(t, srv), t.Context()
	c.ZAdd(ctx, "hapax:{hapax}:tags", redis.Z{Member: "t"})
	c.SAdd(ctx, "hapax:{hapax}:pending", "tag/t", "pool/p")
	c.HSet(ctx, "hapax:{hapax}:pools", "p", "x")
	_, err := s.Allocate(ctx, "t", 1)
	wantErr(t, "Allocate", err, hapax.ErrTagNotFound)
	if tags, err := s.Tags(ctx, "", 10); err != nil || len(tags) != 0 {
		t.Errorf("tags are %v, %v; want none", tags, err)
	}
	create(t, s, hapax.Tag{Name: "t"})
	allocate(t, s, "t", 1)
	acquire(t, s)
	if n := c.SCard(ctx, "hapax:{hapax}:pending").Val(); n != 0 {
		t.Errorf("%d names are pending; want none", n)
	}
}

// When the answer to a grant is lost, the caller hears an error and the numbers
// are skipped: nothing sends the grant again.
func TestLostAnswer(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	proxy := testservers.NewProxy(t, srv.Addr)
	s := open(t, proxy.URL(srv.URL), redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	lease := acquire(t, s)
	last := allocate(t, s, "t", 10)
	for i, cut := range []func(func([]byte) bool){proxy.CutReply, proxy.CutRequest} {
		cut(testservers.Contains("evalsha"))
		_, err := s.Allocate(t.Context(), "t", 10)
		wantErr(t, "a lost answer", err, hapax.ErrStoreUnavailable)
		if n := proxy.Fired(); n != i+1 {
			t.Fatalf("the proxy cut %d connections; want %d", n, i+1)
		}
	}
	want := hapax.Grant{Lo: last.Hi + 10, Hi: last.Hi + 20} // one grant was lost, one never happened
	if got := allocate(t, s, "t", 10); got != want {
		t.Errorf("the grant after a lost one is %v; want %v", got, want)
	}

	proxy.CutReply(testservers.Contains("evalsha"))
	_, err := s.ExtendWorker(t.Context(), lease, hapax.ExtendRequest{To: 30, End: 100})
	wantErr(t, "a lost extension", err, hapax.ErrStoreUnavailable)
	lease = must[hapax.Lease](t)(s.ExtendWorker(t.Context(), lease, hapax.ExtendRequest{To: 40, End: 100}))
	if want := (hapax.Grant{Lo: 30, Hi: 40}); lease.Grant != want {
		t.Errorf("the extension after a lost one is %v; want %v", lease.Grant, want)
	}
}

// Calls end with their context, and the error tells so.
func TestSilence(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	proxy := testservers.NewProxy(t, srv.Addr)
	patient := open(t, proxy.URL(srv.URL), redisstore.Options{Timeout: time.Hour})
	hasty := open(t, proxy.URL(srv.URL)+"?read_timeout=1h", redisstore.Options{Timeout: 50 * time.Millisecond})
	create(t, patient, hapax.Tag{Name: "t"})
	if _, err := allocateUntil(t, hasty, "t", nil); err != nil {
		t.Fatal(err)
	}
	proxy.Blackhole()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	cancelled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	for _, tt := range []struct {
		name string
		s    *redisstore.Store
		ctx  context.Context
		want error
	}{
		{"cancelled", patient, cancelled, context.Canceled},
		{"deadline", patient, short, context.DeadlineExceeded},
		{"no deadline", hasty, t.Context(), context.DeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.s.Allocate(tt.ctx, "t", 1)
			if !errors.Is(err, tt.want) || !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("error is %v; want %v and ErrStoreUnavailable", err, tt.want)
			}
		})
	}
	proxy.Pass()
	if _, err := allocateUntil(t, hasty, "t", nil); err != nil {
		t.Fatal(err)
	}
}

func TestReplica(t *testing.T) {
	master := testservers.Redis(t, "--appendfsync", "always")
	replica := testservers.RedisReplica(t, master)
	_, err := redisstore.Open(t.Context(), replica.URL, redisstore.Options{})
	wantErr(t, "Open", err, hapax.ErrStoreUnsafe)

	var codes []string
	s := open(t, master.URL, redisstore.Options{Warn: func(code, _ string) { codes = append(codes, code) }})
	if !slices.Contains(codes, redisstore.WarnReplication) {
		t.Errorf("warnings are %q; want %q", codes, redisstore.WarnReplication)
	}
	create(t, s, hapax.Tag{Name: "t"})
	awaitMark(t, replica, 1)
	host, port, _ := strings.Cut(replica.Addr, ":")
	if err := raw(t, replica).ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := raw(t, master).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Allocate(t.Context(), "t", 1)
	wantErr(t, "Allocate on a master that was demoted", err, hapax.ErrStoreUnsafe)
	wantErr(t, "Ping of a master that was demoted", s.Ping(t.Context()), hapax.ErrStoreUnsafe)

	// When it is a master again, it is the same process with another history.
	if err := raw(t, master).ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Allocate(t.Context(), "t", 1)
	wantErr(t, "Allocate on a master that was a replica meanwhile", err, hapax.ErrStoreUnsafe)
	_, err = redisstore.Open(t.Context(), master.URL, redisstore.Options{})
	wantErr(t, "Open of a master that was a replica meanwhile", err, hapax.ErrStoreUnsafe)
	open(t, master.URL+"?adopt=true", redisstore.Options{})
	allocate(t, s, "t", 1) // it follows the adoption
}

func TestWait(t *testing.T) {
	master := testservers.Redis(t, "--appendfsync", "always")
	replica := testservers.RedisReplica(t, master)
	s := open(t, master.URL+"?wait=1", redisstore.Options{Warn: func(code, message string) { t.Errorf("warning %s: %s", code, message) }})
	createUntil(t, s)
	last := must[hapax.Grant](t)(allocateUntil(t, s, "t", nil))
	replica.Pause()
	_, err := s.Allocate(t.Context(), "t", 10)
	wantErr(t, "a grant that the replica does not have", err, hapax.ErrStoreUnavailable)
	replica.Resume()
	g, err := allocateUntil(t, s, "t", nil)
	if err != nil {
		t.Fatal(err)
	}
	if g.Lo < last.Hi+10 {
		t.Errorf("%v was granted after an abandoned grant that began at %d", g, last.Hi)
	}
}

// awaitMark waits until a replica has the mark of tag t: what it lacks by chance
// is no matter of the test.
func awaitMark(t *testing.T, replica *testservers.Server, mark int64) {
	t.Helper()
	for c := raw(t, replica); c.HGet(t.Context(), "hapax:tag:t", "mark").Val() != strconv.FormatInt(mark, 10); {
		time.Sleep(20 * time.Millisecond)
	}
}

// failover starts a master with a replica and a Sentinel, opens a store through
// the Sentinel and takes a grant, kills the master, and takes the next one.
func failover(t *testing.T, opts redisstore.Options, query string, want *hapax.Error) {
	master := testservers.Redis(t, "--appendfsync", "always")
	replica := testservers.RedisReplica(t, master)
	url := testservers.RedisSentinels(t, master, 1, 1)[0].URL + query
	s := open(t, url, opts)
	createUntil(t, s)
	last := must[hapax.Grant](t)(allocateUntil(t, s, "t", nil))
	awaitMark(t, replica, last.Hi)
	master.Kill()
	if want != nil {
		// Until the promotion the replica is refused as one.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for {
			_, err := s.Allocate(ctx, "t", 1)
			if errors.Is(err, want) && strings.Contains(err.Error(), "promoted") {
				break
			}
			if err == nil || ctx.Err() != nil {
				t.Fatalf("after a failover: error is %v; want %v", err, want)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if s, err := redisstore.Open(t.Context(), url, redisstore.Options{}); err == nil {
			t.Error("the promoted replica was accepted by Open")
			_ = s.Close()
		}
		open(t, url+"?adopt=true", redisstore.Options{})
	} else {
		c := raw(t, replica)
		for !strings.Contains(c.Info(t.Context(), "replication").Val(), "role:master") {
			time.Sleep(20 * time.Millisecond)
		}
		testservers.RedisReplica(t, replica) // WAIT needs one
	}
	g, err := allocateUntil(t, s, "t", nil)
	if err != nil {
		t.Fatal(err)
	}
	if g.Lo < last.Hi {
		t.Errorf("after a failover %v was granted; %v was granted before", g, last)
	}
}

func TestFailoverIsRefused(t *testing.T) {
	failover(t, redisstore.Options{}, "", hapax.ErrStoreUnsafe)
}

func TestFailoverAfterWaitIsAdopted(t *testing.T) {
	adopted := false
	failover(t, redisstore.Options{Warn: func(code, _ string) { adopted = adopted || code == redisstore.WarnPrimaryChanged }}, "?wait=1", nil)
	if !adopted {
		t.Error("the adoption was not reported")
	}
}

// In a Cluster one node can lose its part of the data.
func TestClusterNodeEmptied(t *testing.T) {
	nodes := testservers.RedisCluster(t)
	s := open(t, nodes[0].URL, redisstore.Options{})
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, name := range names {
		create(t, s, hapax.Tag{Name: name})
	}
	if _, err := redisstore.Open(t.Context(), nodes[0].URL+"/1", redisstore.Options{}); err == nil {
		t.Error("a database was accepted in a Cluster")
	}
	emptied := 0
	for _, n := range nodes {
		c := raw(t, &testservers.Server{URL: "redis://" + n.Addr})
		held := c.DBSize(t.Context()).Val()
		if held == 0 {
			continue
		}
		if err := c.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		emptied++
		refused := 0
		for _, name := range names {
			_, err := s.Allocate(t.Context(), name, 1)
			if errors.Is(err, hapax.ErrStoreRolledBack) || errors.Is(err, hapax.ErrStoreReplaced) {
				refused++
			} else if err != nil {
				t.Errorf("tag %q: %v", name, err)
			}
		}
		if refused == 0 {
			t.Errorf("none of %d lost keys was noticed", held)
		}
	}
	if emptied < 2 {
		t.Errorf("only %d nodes held data", emptied)
	}
}
