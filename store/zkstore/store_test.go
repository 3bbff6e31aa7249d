package zkstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/internal/coordtest"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/zkstore"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return zkstore.Open(ctx, url, zkstore.Options{Timeout: patience.Call})
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	conform(t, server.URL, server)
}

// TestEnsembleSoak: handles are connected to members that lag behind each other.
func TestEnsembleSoak(t *testing.T) {
	if os.Getenv("HAPAX_TEST_SOAK") == "" {
		t.Skip("make soak runs it")
	}
	_, url := testservers.ZooKeeperEnsemble(t, 3)
	conform(t, url, &testservers.Server{})
}

func conform(t *testing.T, url string, server *testservers.Server) {
	url += "/" + rand.Text()
	h := storetest.Harness{
		URL:          url,
		Capabilities: storetest.Capabilities{Shared: true, Durable: true},
		Open:         func(t testing.TB) storetest.Handle { return open(t, url) },
		Silence: testservers.Silence(server, url, func(ctx context.Context, url string, timeout time.Duration) (storetest.Handle, error) {
			return zkstore.Open(ctx, url, zkstore.Options{Timeout: timeout})
		}),
	}
	storetest.Run(t, h)
	storetest.RunKV(t, h)
}

// A store that is restored takes the identity of the one that it was.
func TestRestoredIdentity(t *testing.T) {
	t.Parallel()
	url := testservers.SharedZooKeeper(t).URL + "/" + rand.Text()
	storetest.RunRestored(t, func(ctx context.Context) (storetest.Handle, error) {
		return zkstore.Open(ctx, url, zkstore.Options{Timeout: patience.Call})
	})
}

// open opens a handle that the test's end closes.
func open(t testing.TB, url string) *zkstore.Store {
	t.Helper()
	s, err := zkstore.Open(t.Context(), url, zkstore.Options{Timeout: patience.Call})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestLaggingMember: a read from a member that lags behind waits until it has
// caught up.
func TestLaggingMember(t *testing.T) {
	t.Parallel()
	members, _ := testservers.ZooKeeperEnsemble(t, 3)
	var leader, follower *testservers.Server
	for _, m := range members {
		if leads(t, m) {
			leader = m
		} else {
			follower = m
		}
	}
	if leader == nil {
		t.Fatal("the ensemble has no leader")
	}
	ahead, behind := open(t, leader.URL), open(t, follower.URL)
	def, err := hapax.Tag{Name: "t"}.WithDefaults()
	if err == nil {
		_, err = ahead.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	}
	if err != nil {
		t.Fatal(err)
	}
	for round := range 6 {
		follower.Pause()
		var last int64
		for range 100 {
			// The third member may be late as well, so that nobody leads for a while.
			err := patience.Try("a grant of the leader", func() bool {
				a, err := ahead.Allocate(t.Context(), "t", 1, "")
				last = a.Grant.Hi
				return err == nil
			})
			if err != nil {
				follower.Resume()
				t.Fatal(err)
			}
		}
		follower.Resume()
		tag := hapax.Tag{}
		// One that was paused for too long is dropped by the others and drops its clients:
		// it may say that it cannot be read, and no more.
		patience.Until(t, "the member that lags behind answers", func() bool {
			if round%2 == 0 {
				tag, err = behind.Tag(t.Context(), "t")
			} else {
				var tags []hapax.Tag
				if tags, err = behind.Tags(t.Context(), "", 1); len(tags) == 1 {
					tag = tags[0]
				}
			}
			return !hapax.IsTransient(err)
		})
		if err != nil || tag.Mark < last {
			t.Fatalf("round %d: the member that lags behind tells the mark %d, error %v; want %d", round, tag.Mark, err, last)
		}
	}
}

// leads asks a member for its mode with the command srvr.
func leads(t *testing.T, s *testservers.Server) bool {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("srvr")); err != nil {
		t.Fatal(err)
	}
	reply, err := io.ReadAll(io.LimitReader(conn, 4096))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(reply), "Mode: leader")
}

// TestCredentials: with credentials, nodes are for those who have them; they are
// in no error.
func TestCredentials(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	path := "/" + rand.Text()
	with := func(user string) string { return strings.Replace(server.URL, "://", "://"+user, 1) + path }
	s := open(t, with("me:pass%40word@"))
	def, err := hapax.Tag{Name: "t"}.WithDefaults()
	if err == nil {
		_, err = s.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, with("me:pass%40word@")).Allocate(t.Context(), "t", 1, ""); err != nil {
		t.Errorf("with the credentials: %v", err)
	}
	for _, user := range []string{"", "me:wr0ng@"} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := zkstore.Open(ctx, with(user), zkstore.Options{})
		cancel()
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("as %q: error is %v; want ErrStoreUnavailable for lack of authority", user, err)
		}
		if text := fmt.Sprint(err); strings.Contains(text, "wr0ng") || strings.Contains(text, "word@") {
			t.Errorf("as %q: the error tells the password: %v", user, err)
		}
	}

	path = "/" + rand.Text()
	open(t, with("me:pass%40word@")+"?acl=open")
	if err := open(t, with("")).Ping(t.Context()); err != nil {
		t.Errorf("without credentials, acl=open: %v", err)
	}
}

func TestBadURLs(t *testing.T) {
	for _, url := range []string{"zk://h/a//b", "zk://h/.", "zk://h/a/../b", "zk://h/a%00", "zk://h/a%20b", "zk://h?acl=creator", "zk://h?acl=world", "etcd://h"} {
		if _, err := zkstore.Open(t.Context(), url, zkstore.Options{}); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: error is %v; want ErrInvalidArgument", url, err)
		}
	}
}

// TestReplaced: no step writes to another store that stands where the opened one stood.
func TestReplaced(t *testing.T) {
	t.Parallel()
	server, path := testservers.SharedZooKeeper(t), "/"+rand.Text()
	server.MustProxy()
	conn, _, err := zk.Connect([]string{server.Addr}, 6*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	storetest.RunReplaced(t, func(ctx context.Context) (storetest.Handle, error) {
		return zkstore.Open(ctx, server.URL+path, zkstore.Options{Timeout: patience.Call})
	}, func(context.Context) error {
		_, err := conn.Set(path+"/store", []byte(`{"id":"another","format":3}`), -1)
		return err
	})
}

// TestOtherFormat: a store of another format, or of none, is refused, and left as it is.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	server.MustProxy()
	conn, _, err := zk.Connect([]string{server.Addr}, 6*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for identity, want := range map[string]string{`{"id":"x"}`: "format 0", `{"id":"x","format":4,"more":1}`: "format 4"} {
		path := "/" + rand.Text()
		for _, n := range [][2]string{{"", ""}, {"/store", identity}, {"/tags", ""}} {
			if _, err := conn.Create(path+n[0], []byte(n[1]), 0, zk.WorldACL(zk.PermAll)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := zkstore.Open(t.Context(), server.URL+path, zkstore.Options{Timeout: patience.Call})
		if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: error is %v; want ErrStoreCorrupt that names %s", identity, err, want)
		}
		if _, stat, err := conn.Get(path + "/store"); err != nil || stat.Version != 0 {
			t.Errorf("with %s: the store's node is at %+v, error %v; want it as it was", identity, stat, err)
		}
	}
}

// TestNew: a store on the caller's connection is the one that Open finds, goes on
// when the connection was lost, and leaves it open.
func TestNew(t *testing.T) {
	t.Parallel()
	server, path := testservers.SharedZooKeeper(t), "/"+rand.Text()
	server.MustProxy()
	id, err := open(t, server.URL+path).StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proxy := testservers.NewProxy(t, server.Addr)
	conn, _, err := zk.Connect([]string{proxy.Addr}, 6*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := zkstore.New(t.Context(), conn, path+"/", nil, zkstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.StoreID(t.Context()); err != nil || got != id {
		t.Errorf("the store's ID is %q, error %v; want %q", got, err, id)
	}
	def, err := hapax.Tag{Name: "t"}.WithDefaults()
	if err == nil {
		_, err = s.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	}
	if err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	if _, err := s.Allocate(ctx, "t", 1, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("without a network: error is %v; want ErrStoreUnavailable", err)
	}
	cancel()
	proxy.Pass()
	err = patience.Await(t, "the store back", func() (err error, _ error) {
		_, err = s.Allocate(t.Context(), "t", 1, "")
		return err, nil
	}, func(err error) bool { return !errors.Is(err, hapax.ErrStoreUnavailable) })
	if err != nil {
		t.Fatalf("the store did not come back: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := conn.Exists("/"); err != nil {
		t.Errorf("the connection after Close: %v", err)
	}
}

// TestEditedByHand: a tag whose node somebody has written blocks its own line alone.
func TestEditedByHand(t *testing.T) {
	t.Parallel()
	server, path := testservers.SharedZooKeeper(t), "/"+rand.Text()
	server.MustProxy()
	conn, _, err := zk.Connect([]string{server.Addr}, 6*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := zkstore.Open(t.Context(), server.URL+path, zkstore.Options{Timeout: patience.Call})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	coordtest.EditedByHand(t, s, func(tag, value string) error {
		_, err := conn.Set(path+"/tags/"+tag, []byte(value), -1)
		return err
	})
}
