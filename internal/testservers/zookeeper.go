package testservers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ZooKeeper starts a standalone ZooKeeper. The lines are added to its zoo.cfg.
// HAPAX_TEST_ZK_URL names an existing ensemble instead.
func ZooKeeper(t testing.TB, lines ...string) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_ZK_URL"); s != nil {
		return s
	}
	return start(t, zooKeeperSpec(t, 0, lines, zooKeeperReady))
}

// ZooKeeperEnsemble starts a ZooKeeper ensemble of n members, and returns them
// with the URL that names them all.
func ZooKeeperEnsemble(t testing.TB, n int) ([]*Server, string) {
	t.Helper()
	lines := []string{"initLimit=10", "syncLimit=4"}
	for i := range n {
		lines = append(lines, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, FreePort(t), FreePort(t)))
	}
	// A member alone does not serve, so it must do that it listens.
	var members []*Server
	var addrs []string
	for i := range n {
		m := start(t, zooKeeperSpec(t, i+1, lines, dialed))
		members, addrs = append(members, m), append(addrs, m.Addr)
	}
	for _, m := range members {
		m.await(t, zooKeeperReady)
		m.spec.ready = zooKeeperReady // one that starts again has caught up
	}
	return members, "zk://" + strings.Join(addrs, ",")
}

// zooKeeperSpec tells how a member with the given number, or a standalone server
// with number 0, is started.
func zooKeeperSpec(t testing.TB, number int, lines []string, ready func(context.Context, string) error) spec {
	t.Helper()
	bin := Require(t, []string{"java"})
	if _, err := os.Stat(zooKeeperJar); err != nil {
		Missing(t, "zookeeper.jar is not installed")
	}
	s := zooKeeperOf(t, bin, number, lines, ready)
	if classes, err := zooKeeperClasses(t, bin); err == nil {
		slow := s.args
		s.args = func(port int) []string { return append([]string{"-XX:SharedArchiveFile=" + classes}, slow(port)...) }
	} else {
		t.Logf("ZooKeeper starts as it is, which takes twice the time: %v", err)
	}
	return s
}

// The jar names those that it needs; the other one writes its log.
const (
	zooKeeperJar = "/usr/share/java/zookeeper.jar"
	logJar       = "/usr/share/java/slf4j-simple.jar"
)

// zooKeeperClasses returns the path of an archive with the classes that a server loads, read and
// verified: half of the cost of its start. It is made at its first use, and kept in the user's cache.
func zooKeeperClasses(t testing.TB, bin string) (string, error) {
	t.Helper()
	key, err := stamp(bin, zooKeeperJar, logJar)
	if err != nil {
		return "", err
	}
	return cached("zookeeper-"+key+".jsa", func(tmp string) error {
		s := zooKeeperOf(t, bin, 0, nil, zooKeeperReady)
		plain := s.args
		s.args = func(port int) []string { return append([]string{"-XX:ArchiveClassesAtExit=" + tmp}, plain(port)...) }
		start(t, s).Stop()
		return nil
	})
}

func zooKeeperOf(t testing.TB, bin string, number int, lines []string, ready func(context.Context, string) error) spec {
	t.Helper()
	dir := newDir(t, "zookeeper", "")
	data, conf := filepath.Join(dir, "data"), filepath.Join(dir, "zoo.cfg")
	return spec{
		name: "zookeeper", bin: bin, dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			text := fmt.Sprintf("tickTime=1000\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\n"+
				"admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n%s\n",
				data, port, strings.Join(lines, "\n"))
			err := os.WriteFile(conf, []byte(text), 0o644)
			if err == nil && number > 0 {
				if err = os.MkdirAll(data, 0o755); err == nil {
					err = os.WriteFile(filepath.Join(data, "myid"), []byte(strconv.Itoa(number)), 0o644)
				}
			}
			if err != nil {
				t.Errorf("zookeeper: %v", err)
			}
			return []string{
				"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
				"-cp", zooKeeperJar + ":" + logJar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", conf,
			}
		},
		url:   func(addr string) string { return "zk://" + addr },
		ready: ready,
	}
}

// zooKeeperReady sends srvr, which a server that takes sessions answers with its
// mode, among other things.
func zooKeeperReady(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return err
	}
	reply, err := io.ReadAll(io.LimitReader(conn, 4096))
	if err == nil && !bytes.Contains(reply, []byte("Mode: ")) {
		err = fmt.Errorf("the answer to srvr is %q", reply)
	}
	return err
}
