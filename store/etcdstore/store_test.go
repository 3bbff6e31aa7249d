package etcdstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	guard "github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/etcdstore"
	"github.com/hapax-id/hapax/store/internal/coordtest"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return etcdstore.Open(ctx, url, etcdstore.Options{Timeout: patience.Call})
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server := testservers.SharedEtcd(t)
	url := server.URL + "/" + rand.Text()
	h := storetest.Harness{
		URL:          url,
		Capabilities: storetest.Capabilities{Shared: true, Durable: true},
		Open:         func(t testing.TB) storetest.Handle { return open(t, url) },
		Silence: testservers.Silence(server, url, func(ctx context.Context, url string, timeout time.Duration) (storetest.Handle, error) {
			return etcdstore.Open(ctx, url, etcdstore.Options{Timeout: timeout})
		}),
	}
	storetest.Run(t, h)
	storetest.RunKV(t, h)
}

// A store that is restored takes the identity of the one that it was.
func TestRestoredIdentity(t *testing.T) {
	t.Parallel()
	url := testservers.SharedEtcd(t).URL + "/" + rand.Text()
	storetest.RunRestored(t, func(ctx context.Context) (storetest.Handle, error) {
		return etcdstore.Open(ctx, url, etcdstore.Options{Timeout: patience.Call})
	})
}

// open opens a handle that the test's end closes.
func open(t testing.TB, url string) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(t.Context(), url, etcdstore.Options{Timeout: patience.Call})
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

func client(t testing.TB, s *testservers.Server) *clientv3.Client {
	t.Helper()
	if s.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestAnotherCluster: data that comes to another cluster, as by a restored
// snapshot, is the same store, and tells that another cluster answers.
func TestAnotherCluster(t *testing.T) {
	t.Parallel()
	from, to := testservers.Etcd(t), testservers.Etcd(t, "--initial-cluster-token", "another")
	target := client(t, to)
	s := open(t, from.URL)
	def, err := hapax.Tag{Name: "orders"}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateTag(t.Context(), def, hapax.CreateFirstUse); err != nil {
		t.Fatal(err)
	}
	all, err := client(t, from).Get(t.Context(), "hapax/", clientv3.WithPrefix())
	if err != nil || len(all.Kvs) != 2 {
		t.Fatalf("%d keys, error %v; want the store's and the tag's", len(all.Kvs), err)
	}
	for _, kv := range all.Kvs {
		if _, err := target.Put(t.Context(), string(kv.Key), string(kv.Value)); err != nil {
			t.Fatal(err)
		}
	}

	copied := open(t, to.URL)
	id, err := s.StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := copied.StoreID(t.Context()); err != nil || got != id {
		t.Errorf("the copy's ID is %q, error %v; want %q", got, err, id)
	}
	if _, err := copied.Allocate(t.Context(), "orders", 1, ""); err != nil {
		t.Errorf("Allocate from the copy: %v", err)
	}
	primaries := map[string]bool{}
	for _, s := range []*etcdstore.Store{s, copied, open(t, from.URL)} {
		c, err := s.Beat(t.Context(), guard.Pulse{Row: "n", Was: guard.Beat{Count: 1}, Now: guard.Beat{Count: 2}})
		if err != nil || c.Primary == "" {
			t.Fatal(c, err)
		}
		primaries[c.Primary] = true
	}
	if len(primaries) != 2 {
		t.Errorf("the clusters tell %v", primaries)
	}
}

// TestReplaced: no step writes to another store that stands where the opened one stood.
func TestReplaced(t *testing.T) {
	t.Parallel()
	server, prefix := testservers.SharedEtcd(t), rand.Text()
	c := client(t, server)
	storetest.RunReplaced(t, func(ctx context.Context) (storetest.Handle, error) {
		return etcdstore.Open(ctx, server.URL+"/"+prefix, etcdstore.Options{Timeout: patience.Call})
	}, func(ctx context.Context) error {
		_, err := c.Put(ctx, prefix+"/store", `{"id":"another","cluster":"1","format":3}`)
		return err
	})
}

// TestOtherFormat: a store of another format, or of none, is refused, and left as it is.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	server := testservers.SharedEtcd(t)
	c := client(t, server)
	for identity, want := range map[string]string{`{"id":"x","cluster":"1"}`: "format 0", `{"id":"x","format":4,"more":1}`: "format 4"} {
		prefix := rand.Text()
		if _, err := c.Put(t.Context(), prefix+"/store", identity); err != nil {
			t.Fatal(err)
		}
		_, err := etcdstore.Open(t.Context(), server.URL+"/"+prefix, etcdstore.Options{Timeout: patience.Call})
		if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: error is %v; want ErrStoreCorrupt that names %s", identity, err, want)
		}
		if left, err := c.Get(t.Context(), prefix+"/", clientv3.WithPrefix()); err != nil || len(left.Kvs) != 1 || left.Kvs[0].Version != 1 {
			t.Errorf("with %s: %v, error %v are left; want what was there", identity, left, err)
		}
	}
}

// TestCredentials: a user and a password are used, and are in no error.
func TestCredentials(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	c := client(t, server)
	for _, set := range []struct {
		what string
		call func() error
		done error // what a call meets that was carried out before, though its answer was a time-out
	}{
		{"a role", func() error { _, err := c.RoleAdd(t.Context(), "root"); return err }, rpctypes.ErrRoleAlreadyExist},
		{"a user", func() error { _, err := c.UserAdd(t.Context(), "root", "pass@word"); return err }, rpctypes.ErrUserAlreadyExist},
		{"the user's role", func() error { _, err := c.UserGrantRole(t.Context(), "root", "root"); return err }, nil},
		{"authentication", func() error { _, err := c.AuthEnable(t.Context()); return err }, rpctypes.ErrUserEmpty},
	} {
		patience.Await(t, set.what, func() (any, error) {
			err := set.call()
			if set.done != nil && errors.Is(err, set.done) {
				err = nil
			}
			return nil, err
		}, func(any) bool { return true })
	}
	with := func(user string) string { return strings.Replace(server.URL, "://", "://"+user, 1) }
	s := open(t, with("root:pass%40word@"))
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for _, user := range []string{"", "root:wr0ng@", "nobody:pass%40word@"} {
		_, err := etcdstore.Open(t.Context(), with(user), etcdstore.Options{})
		if !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("as %q: error is %v; want ErrStoreUnavailable", user, err)
		}
		if text := fmt.Sprint(err); strings.Contains(text, "wr0ng") || strings.Contains(text, "word@") {
			t.Errorf("as %q: the error tells the password: %v", user, err)
		}
	}
}

// TestNew: a store on the caller's client is the one that Open finds, and leaves
// the client open.
func TestNew(t *testing.T) {
	t.Parallel()
	server, prefix := testservers.SharedEtcd(t), "/"+rand.Text()
	c := client(t, server)
	id, err := open(t, server.URL+prefix).StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := etcdstore.New(t.Context(), c, prefix+"/", etcdstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.StoreID(t.Context()); err != nil || got != id {
		t.Errorf("the store's ID is %q, error %v; want %q", got, err, id)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, hapax.ErrClosed) {
		t.Errorf("after Close: error is %v; want ErrClosed", err)
	}
	if _, err := c.Get(t.Context(), "x"); err != nil {
		t.Errorf("the client after Close: %v", err)
	}
}

// TestEditedByHand: a tag whose key somebody has written blocks its own line alone.
func TestEditedByHand(t *testing.T) {
	t.Parallel()
	server := testservers.SharedEtcd(t)
	c, prefix := client(t, server), rand.Text()
	s, err := etcdstore.Open(t.Context(), server.URL+"/"+prefix, etcdstore.Options{Timeout: patience.Call})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	coordtest.EditedByHand(t, s, func(tag, value string) error {
		_, err := c.Put(context.Background(), prefix+"/tags/"+tag, value)
		return err
	})
}
