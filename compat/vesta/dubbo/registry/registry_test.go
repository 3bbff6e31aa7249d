package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta/dubbo/registry"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

const (
	iface     = "com.robert.vesta.service.intf.IdService"
	address   = "10.0.0.5:20880"
	directory = "/dubbo/" + iface + "/providers"
)

func connect(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func register(t *testing.T, zkURL string) *registry.Registration {
	t.Helper()
	r, err := registry.Register(t.Context(), zkURL, []string{iface}, address, registry.Options{Session: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// await waits until the providers are as wanted, and returns the owner of the last.
func await(t *testing.T, conn *zk.Conn, want string, owned func(owner int64) bool) (owner int64) {
	t.Helper()
	type provider struct {
		names string
		owner int64
	}
	return patience.Await(t, fmt.Sprintf("the providers %q", want), func() (p provider, err error) {
		names, _, err := conn.Children(directory)
		if p.names = strings.Join(names, " "); err != nil || p.names == "" {
			return p, err
		}
		found, stat, err := conn.Exists(directory + "/" + names[0])
		if err == nil && !found {
			err = errors.New("it has gone")
		}
		if err == nil {
			p.owner = stat.EphemeralOwner
		}
		return p, err
	}, func(p provider) bool { return p.names == want && (want == "" || owned(p.owner)) }).owner
}

// A spy counts what passes of one session's requests.
type spy struct {
	*testservers.Proxy
	looks atomic.Int64 // requests about providers
	beats atomic.Int64 // heartbeats, which are sent where nothing else is
}

func watchRequests(t *testing.T, addr string) *spy {
	s := &spy{Proxy: testservers.NewProxy(t, addr)}
	s.CutRequest(func(request []byte) bool {
		if bytes.Contains(request, []byte("/providers/")) {
			s.looks.Add(1)
		}
		if bytes.Contains(request, []byte("\xff\xff\xff\xfe\x00\x00\x00\x0b")) { // its number is -2, and its kind 11
			s.beats.Add(1)
		}
		return false
	})
	return s
}

func TestRegister(t *testing.T) {
	server := testservers.ZooKeeper(t)
	conn := connect(t, server.Addr)
	const want = "dubbo%3A%2F%2F10.0.0.5%3A20880%2F" + iface + "%3Fanyhost%3Dtrue%26application%3Dhapax%26category%3Dproviders%26dubbo%3D2.0.2%26dynamic%3Dtrue" +
		"%26interface%3D" + iface + "%26methods%3DexpId%252CgenId%252CmakeId%252CtransTime%26serialization%3Dhessian2%26side%3Dprovider"
	if decoded, err := url.QueryUnescape(want); err != nil || !strings.HasPrefix(decoded, "dubbo://10.0.0.5:20880/"+iface+"?") {
		t.Fatalf("%s, %v", decoded, err)
	}
	ephemeral := func(owner int64) bool { return owner != 0 }

	spy := watchRequests(t, server.Addr)
	first := register(t, spy.URL(server.URL))
	owner := await(t, conn, want, ephemeral)

	// Another run on the same address takes the place of the first, which does not
	// take it back.
	looks := spy.looks.Load()
	second := register(t, server.URL)
	taken := await(t, conn, want, func(o int64) bool { return o != owner })
	patience.Until(t, "the first one looks", func() bool { return spy.looks.Load() > looks })
	beats := spy.beats.Load()
	patience.Until(t, "the first one rests", func() bool { return spy.beats.Load() > beats })
	if now := await(t, conn, want, ephemeral); now != taken {
		t.Errorf("the node went from session %x to %x", taken, now)
	}
	first.Close()
	await(t, conn, want, func(o int64) bool { return o == taken })

	// A node that somebody removes comes back.
	if err := conn.Delete(directory+"/"+want, -1); err != nil {
		t.Fatal(err)
	}
	await(t, conn, want, ephemeral)

	second.Close()
	await(t, conn, "", ephemeral)
	second.Close() // again
}

// TestSessions has ZooKeeper die and come back after the session's time, and then
// cuts the connection until the session is over.
func TestSessions(t *testing.T) {
	server := testservers.ZooKeeper(t)
	server.MustControl()
	conn := connect(t, server.Addr)
	proxy := testservers.NewProxy(t, server.Addr)
	register(t, proxy.URL(server.URL))
	ephemeral := func(owner int64) bool { return owner != 0 }
	nodes := func() string {
		names, _, err := conn.Children(directory)
		if err != nil || len(names) != 1 {
			t.Fatalf("%q, %v", names, err)
		}
		return names[0]
	}
	want := nodes()
	owner := await(t, conn, want, ephemeral)

	proxy.Cut()
	await(t, conn, "", ephemeral)
	proxy.Pass()
	next := await(t, conn, want, func(o int64) bool { return o != 0 && o != owner })

	// The session of somebody who stays away shows when one is over that is not taken up again.
	away := testservers.NewProxy(t, server.Addr)
	lost, _, err := zk.Connect([]string{away.Addr}, 2*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lost.Close)
	if _, err := lost.Create("/lost", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	away.Cut()
	server.Kill()
	server.Start()
	await(t, conn, want, ephemeral)
	patience.Await(t, "the end of the lost session", func() (bool, error) {
		found, _, err := conn.Exists("/lost")
		return found, err
	}, func(found bool) bool { return !found })
	if again := await(t, conn, want, ephemeral); again == 0 || next == 0 {
		t.Errorf("owners %x and %x", next, again)
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		registry, iface, address string
		opts                     registry.Options
		field                    string
	}{
		"scheme":      {"etcd://127.0.0.1:1", iface, address, registry.Options{}, "registry"},
		"no scheme":   {"127.0.0.1:1", iface, address, registry.Options{}, "registry"},
		"no port":     {"zk://127.0.0.1", iface, address, registry.Options{}, "registry"},
		"backup":      {"zookeeper://127.0.0.1:1?backup=x", iface, address, registry.Options{}, "registry"},
		"too many":    {"zk://" + strings.Repeat("a:1,", 32) + "a:1", iface, address, registry.Options{}, "registry"},
		"credentials": {"zk://u:p@127.0.0.1:1", iface, address, registry.Options{}, "registry"},
		"interface":   {"zk://127.0.0.1:1", "a/b", address, registry.Options{}, "interface"},
		"any address": {"zk://127.0.0.1:1", iface, "0.0.0.0:20880", registry.Options{}, "address"},
		"no address":  {"zk://127.0.0.1:1", iface, ":20880", registry.Options{}, "address"},
		"root":        {"zk://127.0.0.1:1", iface, address, registry.Options{Root: "dubbo"}, "root"},
		"session":     {"zk://127.0.0.1:1", iface, address, registry.Options{Session: time.Hour}, "session"},
	} {
		_, err := registry.Register(t.Context(), c.registry, []string{c.iface}, c.address, c.opts)
		if v, ok := errors.AsType[*hapax.ValueError](err); !ok || v.Field != c.field {
			t.Errorf("%s: %v; want an error of %s", name, err, c.field)
		}
	}
}

func TestUnreachable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := registry.Register(ctx, "zookeeper://127.0.0.1:1?backup=127.0.0.1:2", []string{iface}, address, registry.Options{})
	if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
