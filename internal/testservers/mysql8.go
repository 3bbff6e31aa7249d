package testservers

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// MySQL8Dir is where .ci/deps puts a server of MySQL 8, below the user's cache.
const MySQL8Dir = "hapax-test/mysql-8.0.15"

// MySQL8 starts a server of MySQL 8, which Debian has not, with an empty database "hapax",
// whose account root has no password. Further arguments go to the server's command line.
// HAPAX_TEST_MYSQL8_URL names an existing server instead.
func MySQL8(t testing.TB, args ...string) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_MYSQL8_URL"); s != nil {
		return s
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(cache, MySQL8Dir)
	bin := Require(t, []string{"mysqld"}, filepath.Join(base, "bin"))
	if !strings.HasPrefix(bin, base) { // MariaDB's package has one of that name
		Missing(t, "MySQL 8 is not in "+base+", where .ci/deps puts it")
	}
	dir := filepath.Join(newDir(t, "mysql8", ""), "d")
	common := []string{"--no-defaults", "--basedir=" + base, "--lc-messages-dir=" + filepath.Join(base, "share"), "--innodb-log-file-size=8M"}
	if os.Geteuid() == 0 {
		common = append(common, "--user=root")
	}
	copyTemplate(t, "mysql8", "", dir, func(dir string) []string {
		return slices.Concat([]string{bin}, common, []string{"--datadir=" + dir, "--initialize-insecure"})
	})
	if err := os.Remove(filepath.Join(dir, "auto.cnf")); err != nil { // the server's identity, which it makes anew
		t.Fatal(err)
	}
	script := filepath.Join(filepath.Dir(dir), "init.sql")
	if err := os.WriteFile(script, []byte("CREATE DATABASE IF NOT EXISTS hapax;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return start(t, spec{
		name: "mysql8", bin: bin, dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			all := append([]string{}, common...) // --no-defaults must be the first
			all = append(all, "--datadir="+dir, "--socket="+filepath.Join(dir, "s"), "--mysqlx=OFF", "--port="+strconv.Itoa(port), "--bind-address=127.0.0.1",
				"--pid-file="+filepath.Join(dir, "pid"), "--max-connections=1000", "--innodb-buffer-pool-size=32M", "--init-file="+script)
			return append(all, args...)
		},
		url:   func(addr string) string { return "mysql://root@" + addr + "/hapax" },
		ready: mariaDBReady,
	})
}
