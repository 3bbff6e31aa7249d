package testservers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// MariaDB starts a MariaDB server with an empty database "hapax", whose account
// root has no password. Further arguments go to the server's command line.
// HAPAX_TEST_MYSQL_URL names an existing server instead.
func MariaDB(t testing.TB, args ...string) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_MYSQL_URL"); s != nil {
		return s
	}
	bin := Require(t, []string{"mariadbd"}, "/usr/sbin", "/usr/local/sbin")
	install := Require(t, []string{"mariadb-install-db"})
	dir := filepath.Join(newDir(t, "mariadb", ""), "d")
	asRoot := []string{}
	if os.Geteuid() == 0 {
		asRoot = append(asRoot, "--user=root")
	}
	// A server that starts removes every temporary table from its directory for
	// them, also those that another one uses.
	const log = "--innodb-log-file-size=8M" // it is written in full at first
	tmp := "--tmpdir=" + newDir(t, "mariadb-tmp", "")
	copyTemplate(t, "mariadb", "", dir, func(dir string) []string {
		return slices.Concat([]string{install}, asRoot, []string{
			"--no-defaults", "--datadir=" + dir, "--tmpdir=" + filepath.Dir(dir), log,
			"--auth-root-authentication-method=normal", "--skip-test-db",
		})
	})
	script := filepath.Join(dir, "init.sql")
	if err := os.WriteFile(script, []byte("CREATE DATABASE IF NOT EXISTS hapax;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return start(t, spec{
		name: "mariadb", bin: bin, dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			all := append([]string{"--no-defaults"}, asRoot...) // --no-defaults must be the first
			all = append(all, "--datadir="+dir, tmp, log, "--socket="+filepath.Join(dir, "s"),
				"--port="+strconv.Itoa(port), "--bind-address=127.0.0.1", "--pid-file="+filepath.Join(dir, "pid"),
				"--max-connections=1000", "--innodb-buffer-pool-size=32M", "--init-file="+script)
			return append(all, args...)
		},
		url:   func(addr string) string { return "mysql://root@" + addr + "/hapax" },
		ready: mariaDBReady,
	})
}

// mariaDBReady waits for the greeting, which the server sends first. A packet
// is a 3-byte length, a sequence number, and the protocol's version, 10.
func mariaDBReady(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	head, err := bufio.NewReader(conn).Peek(5)
	if err == nil && head[4] != 10 {
		err = fmt.Errorf("the greeting has version %d", head[4])
	}
	return err
}
