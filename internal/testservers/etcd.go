package testservers

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Etcd starts an etcd cluster of one member. Further arguments go to its
// command line. HAPAX_TEST_ETCD_URL names an existing cluster instead.
func Etcd(t testing.TB, args ...string) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_ETCD_URL"); s != nil {
		return s
	}
	bin := Require(t, []string{"etcd"})
	dir := newDir(t, "etcd", "")
	peer := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t)))
	return start(t, spec{
		name: "etcd", bin: bin, dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			client := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			return append([]string{
				"--data-dir", dir + "/data",
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
			}, args...)
		},
		url:   func(addr string) string { return "etcd://" + addr },
		ready: etcdReady,
	})
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
