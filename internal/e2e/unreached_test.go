package e2e

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
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
	for line := range strings.SplitSeq(s.logged(), "\n") {
		if strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`) {
			t.Errorf("a first start warns: %s", line)
		}
	}
}
