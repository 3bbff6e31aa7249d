package testservers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Where distributions put the binaries; the last version is taken.
const postgresDirs = "/usr/lib/postgresql/*/bin"

// Postgres starts a PostgreSQL server, whose account postgres has no password.
// Further arguments go to the server's command line. HAPAX_TEST_POSTGRES_URL
// names an existing server instead. The server refuses to run as root; tests
// that run as root start it under the account postgres.
func Postgres(t testing.TB, args ...string) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_POSTGRES_URL"); s != nil {
		return s
	}
	return PostgresIn(t, newPostgresDir(t), args...)
}

// newPostgresDir returns an initialized data directory.
func newPostgresDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(newDir(t, "postgres", "postgres"), "d")
	initdb := Require(t, []string{"initdb"}, postgresDirs)
	copyTemplate(t, "postgres", "postgres", dir, func(dir string) []string {
		return []string{initdb, "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1"} // each is written in full at first
	})
	if err := rename(dir); err != nil {
		t.Fatalf("postgres: %v", err)
	}
	return dir
}

// PostgresIn starts a server over a data directory that exists, such as a copy.
func PostgresIn(t testing.TB, dir string, args ...string) *Server {
	t.Helper()
	isReady := Require(t, []string{"pg_isready"}, postgresDirs)
	t.Cleanup(func() { forgetSegment(filepath.Join(dir, "postmaster.pid")) })
	return start(t, spec{
		name: "postgres", bin: Require(t, []string{"postgres"}, postgresDirs),
		user: "postgres", dir: dir, stop: syscall.SIGINT,
		args: func(port int) []string {
			return append([]string{
				"-D", dir, "-p", strconv.Itoa(port), "-k", dir,
				"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=1000", "-c", "shared_buffers=32MB",
				"-c", "autovacuum=off", // nothing lives long enough to need it, and it is a process for each database
				"-c", "dynamic_shared_memory_type=mmap", // in its directory, which goes with a server that is killed
			}, args...)
		},
		url: func(addr string) string { return "postgres://postgres@" + addr + "/postgres?sslmode=disable" },
		ready: func(ctx context.Context, addr string) error {
			if err := dialed(ctx, addr); err != nil { // it listens before it is ready, and to ask takes a process
				return err
			}
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return err
			}
			if out, err := exec.CommandContext(ctx, isReady, "-h", host, "-p", port).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
	})
}

// forgetSegment removes the piece of shared memory that a killed server leaves, whose
// number is in its file.
func forgetSegment(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		return // it ended in good order
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	if fields := strings.Fields(lines[6]); len(fields) == 2 {
		_ = exec.Command("ipcrm", "-m", fields[1]).Run() // it takes 56 bytes
	}
}

// PostgresReplica starts a streaming replica of the server.
func PostgresReplica(t testing.TB, primary *Server, args ...string) *Server {
	t.Helper()
	primary.MustControl()
	dir := filepath.Join(newDir(t, "replica", "postgres"), "d")
	host, port, err := net.SplitHostPort(primary.Addr)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "postgres", filepath.Dir(dir), Require(t, []string{"pg_basebackup"}, postgresDirs),
		"-D", dir, "-R", "-h", host, "-p", port, "-U", "postgres", "--checkpoint=fast", "--no-sync")
	return PostgresIn(t, dir, args...)
}
