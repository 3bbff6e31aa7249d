package redisstore_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/redisstore"
)

// An address leads to one server at a time, as a virtual IP address does.
type address struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex // guards everything below
	target string
	conns  []net.Conn
}

func newAddress(t *testing.T, srv *testservers.Server) *address {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &address{listener: l, target: srv.Addr}
	a.wg.Go(a.serve)
	t.Cleanup(func() {
		_ = l.Close()
		a.move(srv)
		a.wg.Wait()
	})
	return a
}

func (a *address) url() string { return "redis://" + a.listener.Addr().String() }

func (a *address) serve() {
	for {
		client, err := a.listener.Accept()
		if err != nil {
			return
		}
		a.mu.Lock()
		server, err := net.Dial("tcp", a.target)
		if err != nil {
			_ = client.Close()
			a.mu.Unlock()
			continue
		}
		a.conns = append(a.conns, client, server)
		a.mu.Unlock()
		for _, c := range [][2]net.Conn{{client, server}, {server, client}} {
			a.wg.Go(func() {
				_, _ = io.Copy(c[0], c[1])
				_ = c[0].Close()
			})
		}
	}
}

// move makes the address lead to another server.
func (a *address) move(srv *testservers.Server) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.target = srv.Addr
	for _, c := range a.conns {
		_ = c.Close()
	}
	a.conns = nil
}

// promote makes a replica a master, and detach a replica of nobody.
func promote(t *testing.T, replica *testservers.Server) {
	t.Helper()
	if err := raw(t, replica).ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
}

func detach(t *testing.T, replica *testservers.Server) {
	t.Helper()
	if err := raw(t, replica).ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
}

// refusedEverywhere checks that neither the store that runs nor one that starts
// goes on at the address, which leads to srv, and that nothing is written there.
func refusedEverywhere(t *testing.T, s *redisstore.Store, url string, srv *testservers.Server) {
	t.Helper()
	c := raw(t, srv)
	before := c.HGetAll(t.Context(), "hapax:tag:t").Val()
	defer func() {
		if after := c.HGetAll(t.Context(), "hapax:tag:t").Val(); !maps.Equal(before, after) {
			t.Errorf("a server that was refused had %v, and has %v", before, after)
		}
	}()
	g, err := allocateUntil(t, s, "t", hapax.ErrStoreUnsafe)
	if !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("the store that runs: %v, %v; want ErrStoreUnsafe", g, err)
	}
	started, err := redisstore.Open(t.Context(), url, redisstore.Options{})
	if !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("a store that starts: error is %v; want ErrStoreUnsafe", err)
	}
	if err == nil {
		_ = started.Close()
	}
}

// A replica that lacks a grant is promoted, and looks as innocent as it can.
func TestPromotionInDisguise(t *testing.T) {
	tests := []struct {
		name     string
		wait     string // in the URL
		replicas int
		late     bool // the last replica comes when the store is open
		disguise func(t *testing.T, promoted *testservers.Server)
	}{
		{"it got a replica of its own after a restart", "", 1, false, func(t *testing.T, promoted *testservers.Server) {
			promoted.Kill()
			promoted.Start()
			promote(t, promoted)
			testservers.RedisReplica(t, promoted)
		}},
		{"it was a replica too long ago", "", 1, false, func(t *testing.T, promoted *testservers.Server) {
			promote(t, promoted)
			c := raw(t, promoted)
			for !strings.Contains(c.Info(t.Context(), "replication").Val(), "master_replid2:0000000000") {
				time.Sleep(20 * time.Millisecond)
			}
		}},
		{"grants waited for the other replica", "?wait=1", 2, false, func(t *testing.T, promoted *testservers.Server) {
			promote(t, promoted)
			testservers.RedisReplica(t, promoted)
		}},
		{"grants waited for the other replica, and it was restarted", "?wait=1", 2, false, func(t *testing.T, promoted *testservers.Server) {
			promoted.Kill()
			promoted.Start()
			promote(t, promoted)
			testservers.RedisReplica(t, promoted)
		}},
		{"it was added when the store was open", "?wait=1", 2, true, func(t *testing.T, promoted *testservers.Server) {
			promoted.Kill()
			promoted.Start()
			promote(t, promoted)
			testservers.RedisReplica(t, promoted)
		}},
		{"it is the first one, and was added when the store was open", "", 1, true, func(t *testing.T, promoted *testservers.Server) {
			promoted.Kill()
			promoted.Start()
			promote(t, promoted)
			testservers.RedisReplica(t, promoted)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			master := testservers.Redis(t, "--appendfsync", "always")
			var replicas []*testservers.Server
			add := func() {
				replicas = append(replicas, testservers.RedisReplica(t, master, "--repl-backlog-ttl", "1"))
			}
			for range tt.replicas {
				if !tt.late || len(replicas) < tt.replicas-1 {
					add()
				}
			}
			at := newAddress(t, master)
			url := at.url() + tt.wait
			var mu sync.Mutex // guards codes
			var codes []string
			s := open(t, url, redisstore.Options{Warn: func(code, _ string) {
				mu.Lock()
				defer mu.Unlock()
				codes = append(codes, code)
			}})
			createUntil(t, s)
			if tt.late {
				add()
			}
			last := replicas[len(replicas)-1]
			awaitMark(t, last, must[hapax.Grant](t)(allocateUntil(t, s, "t", nil)).Hi)
			mu.Lock()
			if !slices.Contains(codes, redisstore.WarnReplication) {
				t.Errorf("warnings are %q; want %q", codes, redisstore.WarnReplication)
			}
			mu.Unlock()
			for redisRewrites(t, last) {
				time.Sleep(20 * time.Millisecond)
			}
			detach(t, last) // from here on it lacks what is granted
			must[hapax.Grant](t)(allocateUntil(t, s, "t", nil))
			master.Kill()
			tt.disguise(t, last)
			at.move(last)
			refusedEverywhere(t, s, url, last)
		})
	}
}

// A replica that took its copy and left may lack what is granted afterwards.
func TestReplicaCameAndWent(t *testing.T) {
	master := testservers.Redis(t, "--appendfsync", "always")
	at := newAddress(t, master)
	s := open(t, at.url(), redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	replica := testservers.RedisReplica(t, master)
	detach(t, replica)
	for strings.Contains(raw(t, master).Info(t.Context(), "replication").Val(), "connected_slaves:1") {
		time.Sleep(20 * time.Millisecond)
	}
	allocate(t, s, "t", 10)
	for redisRewrites(t, replica) {
		time.Sleep(20 * time.Millisecond)
	}
	master.Kill()
	replica.Kill()
	replica.Start()
	promote(t, replica)
	testservers.RedisReplica(t, replica)
	at.move(replica)
	g, err := allocateUntil(t, s, "t", hapax.ErrStoreUnsafe)
	if !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("%v, %v; want ErrStoreUnsafe", g, err)
	}
}

// Nothing is granted before a new replica knows that it may come to lack grants:
// promoted in ignorance, it would look like a server that was restarted.
func TestReplicaThatDoesNotKnow(t *testing.T) {
	master := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, master.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	last := allocate(t, s, "t", 10)
	replica := testservers.RedisReplica(t, master)
	replica.Pause()
	_, err := s.Allocate(t.Context(), "t", 10, "")
	wantErr(t, "Allocate", err, hapax.ErrStoreUnavailable)
	replica.Resume()
	g, err := allocateUntil(t, s, "t", hapax.ErrStoreUnsafe)
	if err != nil || g.Lo != last.Hi {
		t.Errorf("when it knows: %v, %v; want a grant from %d on", g, err, last.Hi)
	}
	if known := raw(t, replica).HGet(t.Context(), "hapax:{hapax}:store", "server:").Val(); !strings.HasPrefix(known, "durable behind ") {
		t.Errorf("the replica has %q; want a server that it may be behind", known)
	}
}

// redisRewrites reports whether a server writes its log anew, as it does after
// the first copy; a crash loses the copy until then.
func redisRewrites(t *testing.T, srv *testservers.Server) bool {
	t.Helper()
	info := raw(t, srv).Info(t.Context(), "persistence").Val()
	return !strings.Contains(info, "aof_rewrite_in_progress:0") || !strings.Contains(info, "aof_rewrite_scheduled:0") || !strings.Contains(info, "aof_enabled:1")
}

// A server that keeps less than it did grants nothing until it is set back.
func TestLessDurableMeanwhile(t *testing.T) {
	for _, setting := range [][3]string{{"appendonly", "no", "yes"}, {"appendfsync", "everysec", "always"}, {"no-appendfsync-on-rewrite", "yes", "no"}} {
		t.Run(setting[0], func(t *testing.T) {
			srv := testservers.Redis(t, "--appendfsync", "always")
			s := open(t, srv.URL, redisstore.Options{})
			create(t, s, hapax.Tag{Name: "t"})
			last := allocate(t, s, "t", 10)
			c := raw(t, srv)
			if err := c.ConfigSet(t.Context(), setting[0], setting[1]).Err(); err != nil {
				t.Fatal(err)
			}
			for name, call := range map[string]func() error{
				"Allocate": func() error { _, err := s.Allocate(t.Context(), "t", 10, ""); return err },
				"SwapRow":  func() error { _, err := s.SwapRow(t.Context(), "a", "b", nil, []byte("x")); return err },
				"Ping":     func() error { return s.Ping(t.Context()) },
				"Open":     func() error { _, err := redisstore.Open(t.Context(), srv.URL, redisstore.Options{}); return err },
			} {
				wantErr(t, name, call(), hapax.ErrStoreUnsafe)
				wantErr(t, name+" again", call(), hapax.ErrStoreUnsafe)
			}
			if mark, _ := strconv.ParseInt(c.HGet(t.Context(), "hapax:tag:t", "mark").Val(), 10, 64); mark > last.Hi+10 {
				t.Errorf("the mark was raised to %d by writes that were refused; want one at most", mark)
			}
			if err := c.ConfigSet(t.Context(), setting[0], setting[2]).Err(); err != nil {
				t.Fatal(err)
			}
			for redisRewrites(t, srv) {
				time.Sleep(20 * time.Millisecond)
			}
			if g := allocate(t, s, "t", 10); g.Lo < last.Hi {
				t.Errorf("%v was granted after %v", g, last)
			}
			srv.Kill()
			srv.Start()
			if _, err := allocateUntil(t, s, "t", hapax.ErrStoreUnsafe); err != nil {
				t.Errorf("after the server was set back and restarted: %v", err)
			}
		})
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
	awaitMark(t, replica, 1)
	host, port, _ := strings.Cut(replica.Addr, ":")
	if err := raw(t, replica).ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := raw(t, master).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Allocate(t.Context(), "t", 1, "")
	wantErr(t, "Allocate on a master that was demoted", err, hapax.ErrStoreUnsafe)
	wantErr(t, "Ping of a master that was demoted", s.Ping(t.Context()), hapax.ErrStoreUnsafe)

	// When it is a master again, it is the same process with another history.
	if err := raw(t, master).ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Allocate(t.Context(), "t", 1, "")
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
	_, err := s.Allocate(t.Context(), "t", 10, "")
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
		ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
		defer cancel()
		for {
			_, err := s.Allocate(ctx, "t", 1, "")
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
