package e2e

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// An opsStore is a real store that a test operates: the servers reach it at one
// address, which follows the primary, or at those of all members of a cluster.
type opsStore struct {
	t       *testing.T
	url     string
	primary *testservers.Server
	standby *testservers.Server
	proxy   *testservers.Proxy    // nil before a cluster
	members []*testservers.Server // of a cluster

	promoted bool // the primary was started as a replica
}

// opsStores are the stores that are operated. There are no replicas of MariaDB here: it
// is moved to another server with its data.
var opsStores = []struct {
	name  string
	start func(*testing.T) *opsStore
	ops   []operation
}{
	{"postgres", func(t *testing.T) *opsStore { return oneAddress(t, testservers.Postgres(t)) }, slicesOf(oneServer, postgresOperations)},
	{"mariadb", func(t *testing.T) *opsStore { return oneAddress(t, testservers.MariaDB(t, "--server-id=1")) }, slicesOf(oneServer, mariaDBOperations)},
	{"redis", func(t *testing.T) *opsStore { return oneAddress(t, testservers.Redis(t)) }, slicesOf(oneServer, redisOperations)},
	{"etcd", func(t *testing.T) *opsStore {
		members, url := testservers.EtcdCluster(t, 3)
		return &opsStore{t: t, url: url, members: members}
	}, clusterOperations},
	{"zookeeper", func(t *testing.T) *opsStore {
		members, url := testservers.ZooKeeperEnsemble(t, 3)
		return &opsStore{t: t, url: url, members: members}
	}, clusterOperations},
}

func slicesOf(all ...[]operation) (ops []operation) {
	for _, some := range all {
		ops = append(ops, some...)
	}
	return ops
}

func oneAddress(t *testing.T, server *testservers.Server) *opsStore {
	server.MustControl()
	proxy := testservers.NewProxy(t, server.Addr)
	return &opsStore{t: t, url: proxy.URL(server.URL), primary: server, proxy: proxy}
}

// oneServer are operations of a store at one address.
var oneServer = []operation{
	{name: "store restarted", do: func(_ *opsFleet, s *opsStore, _ int) { s.primary.Stop(); s.up() }},
	{name: "store killed and started", do: func(_ *opsFleet, s *opsStore, _ int) { s.primary.Kill(); s.up() }},
	{name: "store away for 8 s", do: func(_ *opsFleet, s *opsStore, _ int) {
		s.proxy.Cut()
		patience.Slow(8 * time.Second)
		s.proxy.Pass()
	}},
	{name: "connections hang for 8 s", do: func(_ *opsFleet, s *opsStore, _ int) {
		s.proxy.Blackhole()
		patience.Slow(8 * time.Second)
		s.proxy.Pass()
	}},
	{name: "store frozen for 8 s", do: func(_ *opsFleet, s *opsStore, _ int) {
		s.primary.Pause()
		patience.Slow(8 * time.Second)
		s.primary.Resume()
	}},
}

// clusterOperations are those of a cluster of three.
var clusterOperations = []operation{
	{name: "member killed and started", do: func(_ *opsFleet, s *opsStore, turn int) {
		m := s.members[turn%len(s.members)]
		m.Kill()
		patience.Slow(2 * time.Second)
		m.Start()
	}},
	{name: "all members restarted in turn", do: func(f *opsFleet, s *opsStore, _ int) {
		for _, m := range s.members {
			m.Stop()
			m.Start()
			f.awaitAll("a member's restart")
		}
	}},
	{name: "majority away for 8 s", do: func(_ *opsFleet, s *opsStore, turn int) {
		for i := range 2 {
			s.members[(turn+i)%3].Pause()
		}
		patience.Slow(8 * time.Second)
		for i := range 2 {
			s.members[(turn+i)%3].Resume()
		}
	}},
	{name: "all members killed and started", do: func(_ *opsFleet, s *opsStore, _ int) {
		for _, m := range s.members {
			m.Kill()
		}
		startAll(s.members)
	}},
}

// startAll starts the members of a cluster at the same time, since one alone is not
// ready.
func startAll(members []*testservers.Server) {
	started := make(chan struct{})
	for _, m := range members {
		go func() { m.Start(); started <- struct{}{} }()
	}
	for range members {
		<-started
	}
}

// follow starts a standby, once for each primary.
func (s *opsStore) follow() {
	if s.standby == nil {
		s.standby = testservers.PostgresReplica(s.t, s.primary)
	}
}

// sql carries a statement out on a server.
func (s *opsStore) sql(server *testservers.Server, statement string) {
	s.t.Helper()
	if err := s.trySQL(server, statement); err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
}

func (s *opsStore) trySQL(server *testservers.Server, statement string) error {
	db, err := sql.Open("pgx", server.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(s.t.Context(), statement)
	return err
}

// synchronous has every commit wait for the standby, or not.
func (s *opsStore) synchronous(names string) {
	s.t.Helper()
	s.sql(s.primary, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
	s.sql(s.primary, "SELECT pg_reload_conf()")
}

// inStep waits until the standby has all that the primary has.
func (s *opsStore) inStep() {
	s.t.Helper()
	patience.Until(s.t, "the standby is in step", func() bool {
		return s.trySQL(s.primary, "SELECT 1 / count(*) FROM pg_stat_replication WHERE state = 'streaming'") == nil
	})
}

// switchOver makes the standby the primary, whose server is gone.
func (s *opsStore) switchOver() {
	s.t.Helper()
	// A standby has the settings of its primary, and nobody follows it yet.
	s.sql(s.standby, "ALTER SYSTEM RESET synchronous_standby_names")
	s.sql(s.standby, "SELECT pg_reload_conf()")
	promote(s.t, s.standby)
	s.proxy.Lead(s.standby.Addr)
	s.primary, s.standby = s.standby, nil
}

var postgresOperations = []operation{
	{name: "synchronous_standby_names on and off", do: func(f *opsFleet, s *opsStore, _ int) {
		s.follow()
		s.inStep()
		for _, names := range []string{"*", "", "*", ""} {
			s.synchronous(names)
			patience.Slow(1500 * time.Millisecond)
			f.awaitAll("synchronous_standby_names = '" + names + "'")
		}
	}},
	{name: "planned switch to the standby", do: func(_ *opsFleet, s *opsStore, _ int) {
		s.follow()
		s.inStep()
		s.primary.Stop() // it ends when the standby has everything
		s.switchOver()
	}},
	{name: "synchronous primary killed, standby promoted, names set again", do: func(f *opsFleet, s *opsStore, _ int) {
		s.follow()
		s.inStep()
		s.synchronous("*")
		patience.Slow(2 * time.Second)
		s.primary.Kill()
		s.switchOver()
		f.awaitAll("the failover")
		s.follow()
		s.inStep()
		s.synchronous("*")
		patience.Slow(2 * time.Second)
		f.awaitAll("the names set again")
		s.synchronous("")
	}},
	{name: "asynchronous primary killed, standby behind promoted", loses: true, do: func(_ *opsFleet, s *opsStore, _ int) {
		s.follow()
		s.inStep()
		s.standby.Stop()
		patience.Slow(2 * time.Second) // it lacks these
		s.primary.Kill()
		s.standby.Start()
		s.switchOver()
	}},
}

var mariaDBOperations = []operation{
	{name: "moved to another server", do: func(_ *opsFleet, s *opsStore, _ int) { s.move(func() {}) }},
	{name: "a server on a copy takes over", loses: true, do: func(_ *opsFleet, s *opsStore, _ int) {
		s.move(func() {
			s.primary.Start()
			patience.Slow(3 * time.Second) // the copy lacks these
			s.primary.Kill()
		})
	}},
}

// move stops the server, copies its data, calls between and goes on at another server
// with the copy.
func (s *opsStore) move(between func()) {
	other := testservers.MariaDB(s.t, "--server-id=2")
	other.Stop()
	s.primary.Stop()
	copyData(s.t, s.primary.Dir, other.Dir)
	between()
	s.primary.Kill()
	other.Start()
	s.proxy.Lead(other.Addr)
	s.primary = other
}

// redisCommand carries one command out.
func (s *opsStore) redisCommand(server *testservers.Server, command string) {
	s.t.Helper()
	if _, err := testservers.RedisCommand(s.t.Context(), server.Addr, command); err != nil {
		s.t.Fatalf("%s: %v", command, err)
	}
}

// awaitWrites waits until Redis has been seen to be written to so many times.
func (s *opsStore) awaitWrites(times int) {
	s.t.Helper()
	last := ""
	patience.Until(s.t, fmt.Sprintf("%d writes", times), func() bool {
		at, err := testservers.RedisInfo(s.t.Context(), s.primary.Addr, "replication", "master_repl_offset")
		if err != nil {
			s.t.Fatal(err)
		}
		if at != last {
			last = at
			times--
		}
		return times < 0 // the first look counts for nothing
	})
}

// takeOver makes a replica the primary.
func (s *opsStore) takeOver(replica *testservers.Server) {
	s.redisCommand(replica, "REPLICAOF NO ONE")
	s.proxy.Lead(replica.Addr)
	s.primary.Kill()
	s.primary, s.promoted = replica, true
}

// up starts the primary. A Redis that was started as a replica has to be told anew that
// it is none.
func (s *opsStore) up() {
	s.t.Helper()
	s.primary.Start()
	if s.promoted {
		s.redisCommand(s.primary, "REPLICAOF NO ONE")
	}
}

var redisOperations = []operation{
	{name: "replica attached, primary restarted", do: func(f *opsFleet, s *opsStore, _ int) {
		replica := testservers.RedisReplica(s.t, s.primary)
		f.awaitAll("the replica")
		s.primary.Stop()
		s.up()
		f.awaitAll("the restart")
		replica.Kill()
	}},
	{name: "planned switch to the replica", do: func(_ *opsFleet, s *opsStore, _ int) {
		replica := testservers.RedisReplica(s.t, s.primary)
		s.proxy.Cut()
		testservers.AwaitRedisReplica(s.t, s.primary, replica)
		s.takeOver(replica)
		s.proxy.Pass()
	}},
	{name: "replica that lacks heartbeats promoted", loses: true, do: func(f *opsFleet, s *opsStore, _ int) {
		replica := testservers.RedisReplica(s.t, s.primary)
		f.awaitAll("the replica")
		f.pause(true) // so that it lacks no grant
		testservers.AwaitRedisReplica(s.t, s.primary, replica)
		s.redisCommand(replica, "REPLICAOF NO ONE")
		s.awaitWrites(3*len(f.running()) + 1) // it lacks several heartbeats of a node at least
		s.takeOver(replica)
		f.pause(false)
	}},
	{name: "primary killed, replica behind promoted", loses: true, do: func(f *opsFleet, s *opsStore, _ int) {
		replica := testservers.RedisReplica(s.t, s.primary)
		replica.Kill()
		f.awaitGrants(2) // it lacks these
		s.primary.Kill()
		replica.Start()
		s.takeOver(replica)
	}},
}

// stopAll ends the store, in good order.
func (s *opsStore) stopAll() {
	for _, server := range s.servers() {
		server.Stop()
	}
}

// killAll ends it as a power loss does.
func (s *opsStore) killAll() {
	for _, server := range s.servers() {
		server.Kill()
	}
}

func (s *opsStore) startAll() { startAll(s.servers()) }

func (s *opsStore) servers() []*testservers.Server {
	if s.members != nil {
		return s.members
	}
	return []*testservers.Server{s.primary}
}

// A storeCopy is a copy of all that a store keeps, by its directories.
type storeCopy map[string]string

// copy stops the store, copies it, and starts it again.
func (s *opsStore) copy() storeCopy {
	s.t.Helper()
	c := storeCopy{}
	s.stopAll()
	into := s.t.TempDir()
	for i, server := range s.servers() {
		c[server.Dir] = filepath.Join(into, strconv.Itoa(i))
		copyData(s.t, server.Dir, c[server.Dir])
	}
	s.startAll()
	return c
}

// putBack replaces the store by a copy, and starts it.
func (s *opsStore) putBack(c storeCopy) {
	s.t.Helper()
	s.killAll()
	for dir, from := range c {
		copyData(s.t, from, dir)
	}
	s.startAll()
}
