package testservers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
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
	bin := Require(t, []string{"java"})
	jars, _ := filepath.Glob("/usr/share/java/zookeeper.jar") // the pattern is valid
	if len(jars) == 0 {
		Missing(t, "zookeeper.jar is not installed")
	}
	dir := newDir(t, "zookeeper", "")
	return start(t, spec{
		name: "zookeeper", bin: bin, dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			conf := filepath.Join(dir, "zoo.cfg")
			text := fmt.Sprintf("tickTime=1000\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\n"+
				"admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n%s\n",
				filepath.Join(dir, "data"), port, strings.Join(lines, "\n"))
			if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
				t.Errorf("zookeeper: %v", err)
			}
			return []string{
				"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
				"-cp", jars[0] + ":/usr/share/java/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", conf,
			}
		},
		url:   func(addr string) string { return "zk://" + addr },
		ready: zooKeeperReady,
	})
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
