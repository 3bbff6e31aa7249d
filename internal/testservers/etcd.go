package testservers

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

// Etcd starts an etcd cluster of one member. Further arguments go to its
// command line. HAPAX_TEST_ETCD_URL names an existing cluster instead.
func Etcd(t testing.TB, args ...string) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_ETCD_URL"); s != nil {
		return s
	}
	peer := peerURL(t)
	return start(t, etcdSpec(t, "default", peer, "default="+peer, etcdReady, args...))
}

// EtcdCluster starts an etcd cluster of n members, and returns them with the URL
// that names them all.
func EtcdCluster(t testing.TB, n int) ([]*Server, string) {
	t.Helper()
	peers := make([]string, n)
	all := make([]string, n)
	for i := range peers {
		peers[i] = peerURL(t)
		all[i] = fmt.Sprintf("m%d=%s", i, peers[i])
	}
	// A member alone is not healthy, so it must do that it listens.
	var members []*Server
	var addrs []string
	for i, peer := range peers {
		m := start(t, etcdSpec(t, fmt.Sprintf("m%d", i), peer, strings.Join(all, ","), dialed))
		members, addrs = append(members, m), append(addrs, m.Addr)
	}
	for _, m := range members {
		m.await(t, etcdReady)
		m.spec.ready = etcdReady // one that starts again has caught up
	}
	return members, "etcd://" + strings.Join(addrs, ",")
}

// await waits until the server is ready in the given sense.
func (s *Server) await(t testing.TB, ready func(context.Context, string) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	for {
		err := ready(ctx, s.Addr)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: not ready after %v: %v\n%s", s.spec.name, patience.Long, err, s.Log())
		}
		patience.Again()
	}
}

func peerURL(t testing.TB) string {
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t)))
}

func etcdSpec(t testing.TB, name, peer, cluster string, ready func(context.Context, string) error, args ...string) spec {
	t.Helper()
	bin := Require(t, []string{"etcd"})
	dir := newDir(t, "etcd", "")
	return spec{
		name: "etcd", bin: bin, dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			client := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			return append([]string{
				"--name", name, "--data-dir", filepath.Join(dir, "data"),
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
			}, args...)
		},
		url:   func(addr string) string { return "etcd://" + addr },
		ready: ready,
	}
}

// etcdReady asks whether the cluster has a leader.
func etcdReady(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", nil)
	if err != nil {
		return err
	}
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := reply.Body.Close(); err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("/health: %s", reply.Status)
	}
	return nil
}
