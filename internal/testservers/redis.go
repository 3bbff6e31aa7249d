package testservers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

// Redis starts a Redis server that keeps everything it acknowledges. Further
// arguments go to its command line, where the last one counts: "--appendonly",
// "no" makes a server that forgets everything with its process.
// HAPAX_TEST_REDIS_URL names an existing server instead, unless there are
// further arguments.
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_REDIS_URL"); s != nil && len(args) == 0 {
		return s
	}
	dir := newDir(t, "redis", "")
	return start(t, spec{
		name: "redis", bin: Require(t, []string{"redis-server"}), dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			return append([]string{
				"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
				"--save", "", "--appendonly", "yes", "--appendfsync", "always",
				"--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0",
			}, args...)
		},
		url:   func(addr string) string { return "redis://" + addr },
		ready: redisReady,
	})
}

// redisReady waits until the server has loaded its data.
func redisReady(ctx context.Context, addr string) error {
	_, err := RedisCommand(ctx, addr, "PING")
	return err
}

// RedisCommand sends one inline command and returns the first line of the
// answer; an error answer is an error.
func RedisCommand(ctx context.Context, addr, command string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience.Call)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && strings.HasPrefix(line, "-") {
		err = fmt.Errorf("redis: %s", strings.TrimSpace(line[1:]))
	}
	return strings.TrimSpace(line), err
}

// RedisReplica starts a Redis server that follows master, and waits until both
// say that it is in step: until then the master does not wait for it.
func RedisReplica(t testing.TB, master *Server, args ...string) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s := Redis(t, append([]string{"--replicaof", host + " " + port}, args...)...)
	eventually(t, "the replica in step", func(ctx context.Context) error {
		role, err := RedisInfo(ctx, s.Addr, "replication", "master_link_status")
		if err == nil && role != "up" {
			err = fmt.Errorf("master_link_status is %q", role)
		}
		return err
	})
	eventually(t, "the replica online", func(ctx context.Context) error {
		for i := 0; ; i++ {
			replica, err := RedisInfo(ctx, master.Addr, "replication", "slave"+strconv.Itoa(i))
			if err != nil {
				return err // there are no more
			}
			if strings.Contains(replica, ",port="+strconv.Itoa(s.port)+",state=online,") {
				return nil
			}
		}
	})
	return s
}

// AwaitRedisReplica waits until the replica has all that master has been told so far.
func AwaitRedisReplica(t testing.TB, master, replica *Server) {
	t.Helper()
	eventually(t, "the replica with everything", func(ctx context.Context) error {
		told, err := RedisInfo(ctx, master.Addr, "replication", "master_repl_offset")
		if err != nil {
			return err
		}
		has, err := RedisInfo(ctx, replica.Addr, "replication", "slave_repl_offset")
		if err == nil && has != told {
			err = fmt.Errorf("it is at %s of %s", has, told)
		}
		return err
	})
}

// RedisSentinels starts n Sentinels that watch master under the name "hapax"
// and fail over when q of them see it down for two seconds: a load must not make them do
// so by itself. Their URL is that of a store, with all Sentinels.
func RedisSentinels(t testing.TB, master *Server, n, q int) []*Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf("sentinel monitor hapax %s %s %d\nsentinel down-after-milliseconds hapax %d\n"+
		"sentinel failover-timeout hapax 5000\n", host, port, q, patience.Scale(2*time.Second).Milliseconds())
	var all []*Server
	var addrs []string
	for range n {
		dir := newDir(t, "sentinel", "")
		file := filepath.Join(dir, "sentinel.conf")
		if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		s := start(t, spec{
			name: "sentinel", bin: Require(t, []string{"redis-server"}), dir: dir, stop: syscall.SIGTERM,
			args: func(port int) []string {
				return []string{file, "--sentinel", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir}
			},
			url:   func(addr string) string { return "redis+sentinel://" + addr + "/hapax" },
			ready: redisReady,
		})
		all = append(all, s)
		addrs = append(addrs, s.Addr)
	}
	for _, s := range all {
		s.URL = "redis+sentinel://" + strings.Join(addrs, ",") + "/hapax"
		eventually(t, "Sentinel knowing the replica", func(ctx context.Context) error {
			status, err := RedisInfo(ctx, s.Addr, "sentinel", "master0")
			if err == nil && (strings.Contains(status, "slaves=0") || !strings.Contains(status, "sentinels="+strconv.Itoa(n))) {
				err = fmt.Errorf("master0 is %q", status)
			}
			return err
		})
	}
	return all
}

// RedisCluster starts a Cluster of three masters without replicas. The URL of
// each is that of a store, with all nodes.
func RedisCluster(t testing.TB, args ...string) []*Server {
	t.Helper()
	var all []*Server
	var addrs []string
	for range 3 {
		s := Redis(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "60000", // nobody is to be given up who waits for the processor
		}, args...)...)
		all = append(all, s)
		addrs = append(addrs, s.Addr)
	}
	for i, s := range all {
		s.URL = "redis+cluster://" + strings.Join(addrs, ",")
		from, to := i*16384/3, (i+1)*16384/3-1
		commands := []string{fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", from, to), fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1)}
		if host, port, err := net.SplitHostPort(all[0].Addr); err == nil && i > 0 {
			commands = append(commands, fmt.Sprintf("CLUSTER MEET %s %s", host, port))
		}
		for _, c := range commands {
			if _, err := RedisCommand(t.Context(), s.Addr, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, s := range all {
		eventually(t, "the cluster complete", func(ctx context.Context) error {
			state, err := redisLine(ctx, s.Addr, "CLUSTER INFO", "cluster_state")
			if err == nil && state != "ok" {
				err = fmt.Errorf("cluster_state is %q", state)
			}
			return err
		})
	}
	return all
}

// RedisInfo returns one field of INFO.
func RedisInfo(ctx context.Context, addr, section, field string) (string, error) {
	return redisLine(ctx, addr, "INFO "+section, field)
}

// redisLine sends an inline command and returns a field of an answer that
// consists of lines "field:value".
func redisLine(ctx context.Context, addr, command, field string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience.Call)); err != nil {
		return "", err
	}
	// QUIT ends the answer.
	if _, err := fmt.Fprintf(conn, "%s\r\nQUIT\r\n", command); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("redis: %s has no %s (%v)", command, field, lines.Err())
}

// eventually asks until f succeeds.
func eventually(t testing.TB, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: not after %v: %v", what, patience.Long, err)
		}
		patience.Again()
	}
}
