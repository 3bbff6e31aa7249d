package testservers

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// PgBouncer starts a pooler in front of a PostgreSQL server, with that pool_mode.
func PgBouncer(t testing.TB, server *Server, mode string) *Server {
	t.Helper()
	bin := Require(t, []string{"pgbouncer"}, "/usr/sbin")
	behind, err := url.Parse(server.URL)
	if err != nil || behind.Port() == "" || behind.User == nil {
		t.Fatalf("a pooler in front of %s: %v", server.URL, err)
	}
	dir := newDir(t, "pgbouncer", "postgres")
	file := filepath.Join(dir, "pgbouncer.ini")
	settings := func(port int) string {
		return strings.Join([]string{
			"[databases]", fmt.Sprintf("* = host=%s port=%s user=%s", behind.Hostname(), behind.Port(), behind.User.Username()),
			"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", port), "unix_socket_dir =", "auth_type = any",
			"pool_mode = " + mode, "ignore_startup_parameters = extra_float_digits",
			// Else each of two handles may have the same connection again and again, and nobody notices.
			"server_round_robin = 1", "min_pool_size = 3", "",
		}, "\n")
	}
	return start(t, spec{
		name: "pgbouncer", bin: bin, user: "postgres", dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			if err := os.WriteFile(file, []byte(settings(port)), 0o644); err != nil { // another account reads it; it holds no secret
				t.Error(err)
			}
			return []string{file}
		},
		url: func(addr string) string {
			pooled := *behind
			pooled.Host = addr
			return pooled.String()
		},
		ready: dialed,
	})
}
