package testservers

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
)

// A shared server is started once, is in nobody's control, and goes with its
// directory when the process that started it is killed; so does a server of one test.
func TestShared(t *testing.T) {
	if os.Getenv("HAPAX_TEST_CHILD") != "" {
		a, b := SharedEtcd(t), SharedEtcd(t)
		fmt.Fprintf(os.Stdout, "\nserver %s %s %s %s\n", a.Addr, b.Addr, sharedEtcd.server.Dir, Redis(t, "--appendonly", "yes").Dir)
		select {}
	}
	Require(t, []string{"etcd"})
	Require(t, []string{"redis-server"})
	if External(t, "HAPAX_TEST_ETCD_URL") != nil {
		t.Skip("an existing server was given")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestShared$")
	for _, v := range append(os.Environ(), "HAPAX_TEST_CHILD=1") {
		if !strings.HasPrefix(v, sharedEtcd.Variable()) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var first, second, dir, own string
	for lines := bufio.NewScanner(out); own == "" && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "server %s %s %s %s", &first, &second, &dir, &own)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if own == "" || first != second {
		t.Fatalf("two tests got %q and %q, in %q", first, second, dir)
	}
	patience.Until(t, "the end of the server and of its directory", func() bool {
		if conn, err := net.Dial("tcp", first); err == nil {
			return conn.Close() != nil
		}
		_, err := os.Stat(dir)
		_, ownErr := os.Stat(own)
		return errors.Is(err, fs.ErrNotExist) && errors.Is(ownErr, fs.ErrNotExist)
	})
}

// A variable names the server of another process, which nobody controls either.
func TestSharedByVariable(t *testing.T) {
	skipIfShort(t)
	if External(t, "HAPAX_TEST_ETCD_URL") != nil {
		t.Skip("an existing server was given")
	}
	t.Setenv(sharedEtcd.Variable(), "etcd://127.0.0.1:7")
	s := SharedEtcd(t)
	if s.URL != "etcd://127.0.0.1:7" || s.Addr != "127.0.0.1:7" {
		t.Errorf("the server is %q at %q", s.URL, s.Addr)
	}
	probe := &probeTB{TB: t}
	s.t = probe
	func() {
		defer func() { _ = recover() }()
		s.Kill()
	}()
	if !probe.failed {
		t.Error("a test may kill a shared server")
	}
}
