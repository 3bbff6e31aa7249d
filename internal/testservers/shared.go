package testservers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// An Engine is a kind of server that tests share.
type Engine struct {
	name  string // as in its variables
	start func(testing.TB) *Server

	once   sync.Once // guards the fields below
	server *Server
	failed failure
}

// The engines that take long enough to start, of those that separate their users.
var (
	sharedMariaDB   = &Engine{name: "MYSQL", start: func(t testing.TB) *Server { return MariaDB(t) }}
	sharedPostgres  = &Engine{name: "POSTGRES", start: func(t testing.TB) *Server { return Postgres(t) }}
	sharedEtcd      = &Engine{name: "ETCD", start: func(t testing.TB) *Server { return Etcd(t) }}
	sharedZooKeeper = &Engine{name: "ZK", start: func(t testing.TB) *Server { return ZooKeeper(t) }}

	Engines = []*Engine{sharedMariaDB, sharedPostgres, sharedEtcd, sharedZooKeeper}
)

// SharedMariaDB returns a server that other tests use at the same time: this one must
// keep to tables, or a database, with names of its own, and change nothing that is the
// server's. Nobody controls a shared server. It ends with the process of the tests,
// or belongs to "internal/testservers/share", which several of them share.
func SharedMariaDB(t testing.TB) *Server { t.Helper(); return sharedMariaDB.share(t) }

// SharedPostgres is SharedMariaDB for PostgreSQL.
func SharedPostgres(t testing.TB) *Server { t.Helper(); return sharedPostgres.share(t) }

// SharedEtcd is SharedMariaDB for etcd, where a test keeps to a prefix of its own.
func SharedEtcd(t testing.TB) *Server { t.Helper(); return sharedEtcd.share(t) }

// SharedZooKeeper is SharedMariaDB for ZooKeeper, where a test keeps to a path of its
// own.
func SharedZooKeeper(t testing.TB) *Server { t.Helper(); return sharedZooKeeper.share(t) }

// Variable names the variable with the URL of the engine's shared server.
func (e *Engine) Variable() string { return "HAPAX_TEST_SHARED_" + e.name }

func (e *Engine) share(t testing.TB) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_"+e.name+"_URL"); s != nil {
		return s
	}
	skipIfShort(t)
	if given := os.Getenv(e.Variable()); given != "" {
		return &Server{URL: given, Addr: hostOf(given), t: t, shared: true}
	}
	s, err := e.Start(context.Background())
	if f, ok := errors.AsType[failure](err); ok && f.missing {
		Missing(t, f.why)
	} else if err != nil {
		t.Fatal(err)
	}
	return &Server{URL: s.URL, Addr: s.Addr, t: t, shared: true}
}

// Start starts the engine's shared server, once, for as long as this process lives.
// Its data go with the process, too.
func (e *Engine) Start(ctx context.Context) (*Server, error) {
	e.once.Do(func() {
		defer func() {
			if f, ok := recover().(failure); ok {
				e.failed = f
			}
		}()
		e.server = e.start(&keeper{ctx: ctx})
	})
	if e.server == nil {
		return nil, e.failed
	}
	return e.server, nil
}

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// A failure is why a shared server did not start.
type failure struct {
	why     string
	missing bool // it is not installed
}

func (f failure) Error() string { return f.why }

// A keeper stands for the test where a server outlives every single one. Its embedded
// TB is nil: the methods here are those that starting a server calls.
type keeper struct {
	testing.TB
	ctx   context.Context
	never []func() // holds what they refer to: ports, which a collected socket would release
}

func (k *keeper) Helper()                  {}
func (k *keeper) Context() context.Context { return k.ctx }
func (k *keeper) Fatal(args ...any)        { panic(failure{why: fmt.Sprint(args...)}) }
func (k *keeper) Fatalf(f string, a ...any) {
	panic(failure{why: fmt.Sprintf(f, a...)})
}
func (k *keeper) Errorf(f string, a ...any) { k.Fatalf(f, a...) }
func (k *keeper) missing(why string)        { panic(failure{why: why, missing: true}) }

// Cleanup runs nothing: the server dies with the process, and then goes its directory.
func (k *keeper) Cleanup(f func()) { k.never = append(k.never, f) }

// leave has the directory removed when this process has ended, however it ends: one
// helper reads names from a pipe, which closes then. Memory is not for those who are
// killed to leave behind.
func leave(dir string) error {
	mu.Lock()
	defer mu.Unlock()
	if heirs == nil {
		cmd := exec.Command("sh", "-c", `trap "" INT TERM HUP; set --; while IFS= read -r d; do set -- "$@" "$d"; done
			for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$@" && exit; sleep 0.2; done`)
		pipe, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return err
		}
		heirs = pipe
	}
	_, err := fmt.Fprintln(heirs, dir)
	return err
}

var (
	mu    sync.Mutex // guards heirs
	heirs io.Writer  // the helper's; nil before it is needed
)
