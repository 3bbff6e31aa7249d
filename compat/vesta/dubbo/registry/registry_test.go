package registry_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
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
	var got []string
	for range 600 {
		var err error
		if got, _, err = conn.Children(directory); err == nil && strings.Join(got, " ") == want {
			if want == "" {
				return 0
			}
			if found, stat, err := conn.Exists(directory + "/" + got[0]); err == nil && found && owned(stat.EphemeralOwner) {
				return stat.EphemeralOwner
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("the providers are %q; want %q", got, want)
	return 0
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

	first := register(t, server.URL)
	owner := await(t, conn, want, ephemeral)

	// Another run on the same address takes the place of the first, which does not
	// take it back.
	second := register(t, server.URL)
	taken := await(t, conn, want, func(o int64) bool { return o != owner })
	time.Sleep(300 * time.Millisecond)
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

	server.Kill()
	time.Sleep(100 * time.Millisecond)
	server.Start()
	await(t, conn, want, ephemeral)
	time.Sleep(3 * time.Second) // a session that was not taken up again is over by now
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
