package e2e

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A server whose store cannot be reached says why, in its log and in /readyz: the last error
// of the driver, or what becomes of a connection with the host. It is not enough to say that
// there was no answer.
func TestUnreachedStores(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the system takes connections for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() }) // after the subtests, which run later
	stranger := httptest.NewUnstartedServer(http.NotFoundHandler())
	stranger.Config.ErrorLog = nil
	stranger.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	stranger.StartTLS()
	t.Cleanup(stranger.Close)
	tests := []struct {
		name, host, want string
		urls             []string // with HOST in them
	}{
		{"closed", closed.Addr().String(), "connection refused", []string{
			"mysql://u:p@HOST/x", "postgres://u:p@HOST/x", "redis://HOST/0", "mongodb://HOST/x", "etcd://HOST", "zk://HOST/x",
		}},
		{"silent", silent.Addr().String(), "no answer comes", []string{
			"mysql://u:p@HOST/x", "postgres://u:p@HOST/x", "redis://HOST/0", "mongodb://HOST/x", "etcd://HOST", "zk://HOST/x",
		}},
		{"unknown", "nosuch.invalid:2379", "nosuch.invalid", []string{
			"mysql://u:p@HOST/x", "postgres://u:p@HOST/x", "redis://HOST/0", "mongodb://HOST/x", "etcd://HOST", "zk://HOST/x",
		}},
		{"wrong certificate", stranger.Listener.Addr().String(), "certificate", []string{
			"rediss://HOST/0", "mongodb://HOST/x?tls=true", "etcds://HOST", "zks://HOST/x",
		}},
	}
	for _, tt := range tests {
		for _, url := range tt.urls {
			scheme, _, _ := strings.Cut(url, ":")
			t.Run(tt.name+"/"+scheme, func(t *testing.T) {
				t.Parallel()
				s := serve(t, t.TempDir(), nil, "--store", strings.ReplaceAll(url, "HOST", tt.host))
				patience.Until(t, "/readyz says why", func() bool {
					res, err := http.Get(s.url + "/readyz")
					if err != nil {
						return false
					}
					defer res.Body.Close()
					body, _ := io.ReadAll(res.Body)
					return strings.Contains(string(body), tt.want)
				})
				patience.Until(t, "the log says why", func() bool {
					for line := range strings.SplitSeq(s.logged(), "\n") {
						if strings.Contains(line, "until this node has joined") && strings.Contains(line, `"WARN"`) && strings.Contains(line, tt.want) {
							return true
						}
					}
					return false
				}, s)
			})
		}
	}
}

// A healthy start tells of nothing that looks like trouble.
func TestHealthyStartWarnsOfNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil)
	takeSoon(t, s, "orders", 1)
	for _, line := range amber(s) {
		t.Errorf("a first start warns: %s", line)
	}
}

// amber returns the lines of a log that look like trouble.
func amber(s *serving) (lines []string) {
	for line := range strings.SplitSeq(s.logged(), "\n") {
		if strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// isSlow reports whether a node took more than twice W, which is 5 s, from its first line of
// log until it was granted numbers, or its store longer for the first answer than a node waits
// for before it says so. Of both it warns.
func isSlow(t *testing.T, s *serving) bool {
	t.Helper()
	var began time.Time
	for line := range strings.SplitSeq(s.logged(), "\n") {
		var entry struct {
			Time     time.Time
			Msg, Err string
		}
		if json.Unmarshal([]byte(line), &entry) != nil {
			continue
		}
		if began.IsZero() {
			began = entry.Time
		}
		if strings.Contains(entry.Err, "context deadline exceeded") {
			return true
		}
		if entry.Msg == "numbers are granted" {
			return entry.Time.Sub(began) > 10*time.Second
		}
	}
	t.Errorf("the log does not say when numbers were granted: %s", s.logged())
	return false
}

// isLate reports whether a line of log is what a node says that is slow or has a slow store, and no more.
func isLate(line string) bool {
	return strings.Contains(line, "until this node has joined") || strings.Contains(line, "context deadline exceeded")
}

// Three nodes that start one after the other on a store that is well tell of nothing that
// looks like trouble, in their logs or in the console's.
func TestHealthyFleetWarnsOfNothing(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(testing.TB) string{
		"postgres": func(t testing.TB) string { return testservers.SharedPostgres(t).URL + "&prefix=healthy_fleet_" },
		"redis":    func(t testing.TB) string { return testservers.Redis(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := url(t)
			if r := run(t, t.TempDir(), "tags", "create", "first", "--store", store); r.code != 0 { // makes the tables
				t.Fatal(r.err)
			}
			var nodes []*serving
			for range 3 {
				s := serve(t, t.TempDir(), nil, "--store", store)
				nodes = append(nodes, s)
				for _, node := range nodes {
					takeSoon(t, node, "orders", 10)
					takeSoon(t, node, "snowflake", 10)
				}
			}
			for i, node := range nodes {
				slow, late := isSlow(t, node), 0
				for _, line := range amber(node) {
					if slow && isLate(line) {
						late++
						continue
					}
					t.Errorf("node %d warns: %s", i, line)
				}
				if late > 0 { // the console tells of that, too
					t.Logf("node %d was slow, and said so: %d lines", i, late)
					continue
				}
				res, err := http.Get(node.url + "/console/log")
				if err != nil {
					t.Fatal(err)
				}
				page, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(page), "Nothing since the nodes started") {
					t.Errorf("node %d: the console's log: %d, %v: %s", i, res.StatusCode, err, page)
				}
			}
		})
	}
}
