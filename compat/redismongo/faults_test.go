package redismongo_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/mongostore"
)

// The tests of the table of faults in docs/redis-and-mongodb.md, on real servers
// that are killed with SIGKILL.

func mongo(t testing.TB, url string) *mongostore.Store {
	t.Helper()
	s, err := mongostore.Open(t.Context(), url, mongostore.Options{Timeout: 2 * time.Second})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// servers starts both, and two issuers that share them.
func servers(t *testing.T, opts redismongo.Options) (r, m *testservers.Server, a, z *redismongo.Issuer) {
	t.Helper()
	m = testservers.MongoDB(t)
	m.MustControl()
	r = testservers.Redis(t, forgets...)
	store := mongo(t, m.URL)
	return r, m, issuer(t, connect(t, r), store, opts), issuer(t, connect(t, r), store, opts)
}

// untilRefused issues until nothing is left, and returns how many that were.
func (b *book) untilRefused(i *redismongo.Issuer) int {
	b.t.Helper()
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(b.t.Context(), 1500*time.Millisecond)
		id, err := i.Next(ctx)
		cancel()
		if err == nil {
			b.all = append(b.all, id)
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, hapax.ErrStoreUnavailable) && !errors.Is(err, hapax.ErrRefillPending) {
			b.t.Fatalf("refused with %v", err)
		}
		return n
	}
}

// back waits until the issuer uses Redis.
func back(t testing.TB, is ...*redismongo.Issuer) {
	t.Helper()
	for _, i := range is {
		patience.Until(t, "Redis in use", func() bool { return !i.Stats().Away })
	}
}

func TestFaultRedis(t *testing.T) {
	r, _, a, z := servers(t, fixed(50))
	b := &book{t: t}
	b.rising(120, a, z)
	r.Kill()
	for range 200 { // far more than the reserve: MongoDB fills it
		b.next(a)
		b.next(z)
	}
	if s := a.Stats(); !s.Away || s.Local.Issued == 0 {
		t.Errorf("without Redis: %+v", s)
	}
	r.Start() // it has forgotten all
	back(t, a, z)
	b.rising(120, a, z)
	b.unique()
}

func TestFaultMongoDB(t *testing.T) {
	_, m, a, z := servers(t, fixed(50))
	b := &book{t: t}
	b.rising(65, a, z)
	patience.Until(t, "the second segment", func() bool { return a.Stats().FromRedis+z.Stats().FromRedis == 65 })
	m.Kill()
	// What Redis was given is issued to the last number, and then nothing.
	top := slices.Max(b.all)
	n := b.untilRefused(a)
	if n == 0 || slices.Max(b.all) == top || a.Stats().Local.Issued != 0 {
		t.Errorf("without MongoDB: %d numbers, %+v", n, a.Stats())
	}
	m.Start()
	b.rising(120, a, z)
	b.unique()
}

// TestFaultMongoDBExtend has numbers go on without MongoDB, in order and on every
// process, also on one that starts meanwhile.
func TestFaultMongoDBExtend(t *testing.T) {
	opts := fixed(50)
	opts.OnStoreLoss, opts.Reserve = redismongo.Extend, 1000
	r, m, a, z := servers(t, opts)
	b := &book{t: t}
	store := mongo(t, m.URL)
	b.rising(500, a, z) // the next segment is due
	rdb := connect(t, r)
	patience.Until(t, "the next segment", func() bool { return rdb.HExists(t.Context(), "hapax:seq:{orders}", "nmax").Val() })
	m.Kill()
	b.rising(400, a, z)
	started := issuer(t, connect(t, r), store, redismongo.Options{
		Step: 50, MinStep: 50, MaxStep: 50, OnStoreLoss: redismongo.Extend, Reserve: 1000, Timeout: time.Second,
	})
	b.rising(400, started, a, z)
	if s := started.Stats(); s.Away || s.Local.Remaining != 0 {
		t.Errorf("a process that started without MongoDB: %+v", s)
	}
	if n := b.untilRefused(a); n < 200 || n > 2300 {
		t.Errorf("%d numbers were left of the reserve", n)
	}
	m.Start()
	b.rising(120, a, started, z)
	patience.Until(t, "a reserve of its own", func() bool { return started.Stats().Local.Remaining > 0 })
	b.unique()
}

func TestFaultBoth(t *testing.T) {
	r, m, a, z := servers(t, fixed(50))
	b := &book{t: t}
	b.rising(60, a, z)
	m.Kill()
	r.Kill()
	for _, i := range []*redismongo.Issuer{a, z} {
		b.next(i) // finds that Redis is away
		if n := b.untilRefused(i); n < 49 || !i.Stats().Away {
			t.Errorf("the reserve of 50 gave %d numbers", n)
		}
	}
	r.Start() // empty, and nobody can fill it
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if id, err := a.Next(ctx); err == nil {
		t.Errorf("got %d from nowhere", id)
	}
	m.Start()
	back(t, a, z)
	b.rising(120, a, z)
	b.unique()
}

// TestFaultService kills a process that issues.
func TestFaultService(t *testing.T) {
	m := testservers.MongoDB(t)
	r := testservers.Redis(t, forgets...)
	b := &book{t: t}
	for life := range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestIssue$")
		cmd.Env = append(os.Environ(), "ISSUE_REDIS="+r.URL, "ISSUE_MONGODB="+m.URL)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		var ids []hapax.ID
		for lines := bufio.NewScanner(out); lines.Scan(); {
			id, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				continue // the test's own output
			}
			if ids = append(ids, hapax.ID(id)); len(ids) == 130 {
				break
			}
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		if len(ids) < 130 || !slices.IsSorted(ids) || len(b.all) > 0 && ids[0] <= slices.Max(b.all) {
			t.Fatalf("life %d issued %v", life, ids)
		}
		b.all = append(b.all, ids...)
	}
	b.unique()
}

// TestIssue is the process of TestFaultService.
func TestIssue(t *testing.T) {
	if os.Getenv("ISSUE_REDIS") == "" {
		t.Skip("for TestFaultService")
	}
	o, err := redis.ParseURL(os.Getenv("ISSUE_REDIS"))
	must(t, err)
	i := issuer(t, redis.NewClient(o), mongo(t, os.Getenv("ISSUE_MONGODB")), fixed(50))
	for {
		id, err := i.Next(t.Context())
		must(t, err)
		fmt.Fprintln(os.Stdout, id)
	}
}

func TestFaultRedisEmptiedOrBehind(t *testing.T) {
	m := testservers.MongoDB(t)
	store := mongo(t, m.URL)
	for _, tt := range []struct {
		name  string
		args  []string
		spoil func(t *testing.T, r *testservers.Server, c *redis.Client, b *book, is ...*redismongo.Issuer)
	}{
		{"emptied", forgets, func(t *testing.T, _ *testservers.Server, c *redis.Client, _ *book, _ ...*redismongo.Issuer) {
			must(t, c.FlushAll(t.Context()).Err())
		}},
		{"set back by hand", forgets, func(t *testing.T, _ *testservers.Server, c *redis.Client, b *book, is ...*redismongo.Issuer) {
			for _, i := range is { // each has seen more than the hash will say
				b.next(i)
			}
			must(t, c.HIncrBy(t.Context(), c.Keys(t.Context(), "*").Val()[0], "cur", -20).Err())
		}},
		{"killed with an old snapshot", forgets, func(t *testing.T, r *testservers.Server, c *redis.Client, b *book, is ...*redismongo.Issuer) {
			must(t, c.Save(t.Context()).Err())
			b.rising(20, is...)
			r.Kill()
			r.Start()
			// A node that has seen nothing comes before those that know better.
			opts := fixed(50)
			opts.Prefix = "killed with an old snapshot"
			b.rising(20, issuer(t, c, store, opts))
		}},
		{"killed with all on disk", []string{"--appendfsync", "always"}, func(_ *testing.T, r *testservers.Server, _ *redis.Client, _ *book, _ ...*redismongo.Issuer) {
			r.Kill()
			r.Start()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := testservers.Redis(t, tt.args...)
			c := connect(t, r)
			opts := fixed(50)
			opts.Prefix = tt.name
			a, z := issuer(t, c, store, opts), issuer(t, connect(t, r), store, opts)
			b := &book{t: t}
			b.rising(70, a, z)
			tt.spoil(t, r, c, b, a, z)
			back(t, a, z)
			for range 5 { // an issuer that has not noticed yet that Redis was away notices now
				b.next(a)
				b.next(z)
			}
			back(t, a, z)
			b.rising(120, a, z)
			b.unique()
		})
	}
}

func TestFaultAllDownAndBack(t *testing.T) {
	m := testservers.MongoDB(t)
	r := testservers.Redis(t) // it keeps all, and that must not matter
	b := &book{t: t}
	for range 3 {
		store := mongo(t, m.URL)
		c := connect(t, r)
		a, err := redismongo.New(t.Context(), c, store, "orders", fixed(50))
		must(t, err)
		back(t, a)
		b.rising(70, a)
		r.Kill()
		m.Kill()
		// The service dies as well: nothing is closed in good order before all is up.
		m.Start()
		r.Start()
		t.Cleanup(func() { a.Close(context.WithoutCancel(t.Context())) })
	}
	b.unique()
}

// TestFaultsAtRandom has nodes issue while Redis is killed and emptied again and
// again.
func TestFaultsAtRandom(t *testing.T) {
	r := testservers.Redis(t, forgets...)
	store := memstore.New()
	var is []*redismongo.Issuer
	for range 3 {
		is = append(is, issuer(t, connect(t, r), store, fixed(50)))
	}
	done := make(chan []op)
	go func() { done <- hammer(t, is, 1500) }()
	admin := connect(t, r)
	for k := 0; ; k++ {
		select {
		case ops := <-done:
			b := &book{t: t}
			for _, o := range ops {
				b.all = append(b.all, o.ids...)
			}
			b.unique()
			if k == 0 {
				t.Error("no fault came in time")
			}
			return
		case <-time.After(30 * time.Millisecond):
			if k%2 == 0 {
				_ = admin.FlushAll(t.Context()).Err() // it may be down
				continue
			}
			r.Kill()
			r.Start()
		}
	}
}

// TestBusy has a script of somebody else keep Redis busy, until an operator ends it.
func TestBusy(t *testing.T) {
	r := testservers.Redis(t, append(forgets, "--busy-reply-threshold", "50")...)
	opts := fixed(50)
	opts.Timeout = 2 * time.Second
	a := issuer(t, connect(t, r), memstore.New(), opts)
	b := &book{t: t}
	b.rising(60, a)
	admin := connect(t, r)
	ended := make(chan error, 1)
	go func() { ended <- admin.Eval(context.Background(), "while true do end", nil).Err() }()
	for !a.Stats().Away {
		b.next(a)
	}
	for range 100 {
		b.next(a)
	}
	operator := connect(t, r)
	patience.Until(t, "the end of the script", func() bool { return operator.ScriptKill(t.Context()).Err() == nil })
	if <-ended == nil {
		t.Error("the script ended by itself")
	}
	back(t, a)
	must(t, operator.ScriptFlush(t.Context()).Err())
	for range 60 {
		b.next(a)
	}
	b.unique()
	if s := a.Stats(); s.FromRedis <= 60 {
		t.Errorf("after the script: %+v", s)
	}
}
