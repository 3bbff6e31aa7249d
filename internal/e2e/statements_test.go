package e2e

import (
	"context"
	"net/url"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A dumper makes a dump of a store as statements, and puts it back.
type dumper struct {
	programs []string
	dump     func(server *testservers.Server) []string
	carryOut func(server *testservers.Server) []string
}

var dumpers = map[string]dumper{
	"postgres": {
		[]string{"pg_dump", "psql"},
		func(s *testservers.Server) []string { return []string{"pg_dump", "--clean", "--if-exists", s.URL} },
		func(s *testservers.Server) []string { return []string{"psql", "-q", s.URL} },
	},
	"mariadb": {
		[]string{"mariadb-dump", "mariadb"},
		func(s *testservers.Server) []string { return append([]string{"mariadb-dump"}, mariaDBArgs(s)...) },
		func(s *testservers.Server) []string { return append([]string{"mariadb"}, mariaDBArgs(s)...) },
	},
}

func mariaDBArgs(s *testservers.Server) []string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil
	}
	return []string{"--no-defaults", "-u" + u.User.Username(), "-h" + u.Hostname(), "-P" + u.Port(), strings.Trim(u.Path, "/")}
}

// carryOut runs a program with an input, and returns what it prints.
func carryOut(t *testing.T, input string, args []string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(input)
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s", args[0], err, said.String())
	}
	return out.String()
}

// TestDumpPutBack: the tables of a store are dropped under load, are missing for a while, and come
// back older, with a segment and a worker's time granted since. It is noticed and healed, and
// nothing is granted twice.
func TestDumpPutBack(t *testing.T) {
	t.Parallel()
	for name := range dumpers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDumpPutBack(t, name, 100*time.Millisecond, 2*time.Second)
		})
	}
}

// TestDumpPutBackSoak does that fifty times, with tables that are missing for 0.1 to 10 s.
func TestDumpPutBackSoak(t *testing.T) {
	patience.Soak(t, "chance")
	var all []time.Duration
	for i := range 50 {
		all = append(all, 100*time.Millisecond+time.Duration(i)*9900*time.Millisecond/49)
	}
	for name := range dumpers {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			testDumpPutBack(t, name, all...)
		})
	}
}

func testDumpPutBack(t *testing.T, name string, missing ...time.Duration) {
	d := dumpers[name]
	for _, program := range d.programs {
		testservers.Require(t, []string{program})
	}
	for _, store := range youngStores {
		if store.name == name {
			f := newYoungFleet(t, store.start(t), store.open)
			for _, away := range missing {
				f.putBackDump(d, away)
			}
		}
	}
}

func (f *youngFleet) putBackDump(d dumper, away time.Duration) {
	f.t.Helper()
	f.serve()
	f.lease()
	dump := carryOut(f.t, "", d.dump(f.server))
	for range 10 {
		f.await(1)
	}
	f.lease()
	before := f.fenced()
	carryOut(f.t, "DROP TABLE hapax_meta, hapax_rows;", d.carryOut(f.server))
	var over atomic.Bool
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		for !over.Load() {
			for node := range f.nodes {
				_ = f.take(node)
			}
		}
	}()
	patience.Slow(away)
	carryOut(f.t, dump, d.carryOut(f.server))
	back := time.Now()
	patience.Until(f.t, "the loss is noticed", func() bool { return f.fenced() > before })
	over.Store(true)
	<-loaded
	for node := range f.nodes {
		f.await(node)
	}
	f.lease()
	f.t.Logf("tables missing for %v: all are granted numbers %.1f s after they are back", away.Round(time.Millisecond), time.Since(back).Seconds())
}

// lease takes the time of the only worker, which must begin where it was taken before, or later.
func (f *youngFleet) lease() {
	f.t.Helper()
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		f.t.Fatal(err)
	}
	var l hapax.Lease
	patience.Until(f.t, "a worker", func() bool {
		ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Second)
		defer cancel()
		l, err = f.nodes[1].AcquireWorker(ctx, hapax.AcquireRequest{
			Pool: "p", Layout: layout, Holder: "node 1", Workers: hapax.WorkerRange{Lo: 0, Hi: 1},
			Term: hapax.Term{Now: time.Now(), Length: 10 * time.Millisecond, Ahead: time.Hour, TTL: time.Second},
		})
		return err == nil
	})
	if l.Grant.Lo < f.ticks {
		f.t.Errorf("worker 0 is granted %v, and was granted time up to %d", l.Grant, f.ticks)
	}
	f.ticks = l.Grant.Hi
}
