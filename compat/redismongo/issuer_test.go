package redismongo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// forgets makes a Redis that keeps nothing beyond its process.
var forgets = []string{"--appendonly", "no"}

func connect(t testing.TB, s *testservers.Server) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(s.URL)
	must(t, err)
	o.ContextTimeoutEnabled = true
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func issuer(t testing.TB, rdb redis.UniversalClient, store hapax.SegmentStore, opts redismongo.Options) *redismongo.Issuer {
	t.Helper()
	if opts.Timeout == 0 {
		opts.Timeout = patience.Call // a server that is dead refuses at once
	}
	i, err := redismongo.New(t.Context(), rdb, store, "orders", opts)
	must(t, err)
	t.Cleanup(func() { i.Close(context.WithoutCancel(t.Context())) })
	return i
}

// fixed makes all segments of one size.
func fixed(n int64) redismongo.Options {
	return redismongo.Options{Step: n, MinStep: n, MaxStep: n}
}

// A book notes what was issued.
type book struct {
	t   testing.TB
	all []hapax.ID
}

func (b *book) next(i *redismongo.Issuer) hapax.ID {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience.Long)
	defer cancel()
	id, err := i.Next(ctx)
	must(b.t, err)
	b.all = append(b.all, id)
	return id
}

// rising takes n numbers from the issuers in turn, each of which must lie above all
// that the book has.
func (b *book) rising(n int, is ...*redismongo.Issuer) {
	b.t.Helper()
	top := hapax.ID(0)
	if len(b.all) > 0 {
		top = slices.Max(b.all)
	}
	for k := range n {
		id := b.next(is[k%len(is)])
		if id <= top {
			b.t.Fatalf("got %d after %d", id, top)
		}
		top = id
	}
}

// unique fails if a number was issued twice.
func (b *book) unique() {
	b.t.Helper()
	slices.Sort(b.all)
	for k := 1; k < len(b.all); k++ {
		if b.all[k] == b.all[k-1] {
			b.t.Fatalf("%d was issued twice", b.all[k])
		}
	}
}

func TestHash(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	store := memstore.New()
	opts := fixed(100)
	opts.Start = 1000
	opts.Threshold = 50
	i := issuer(t, rdb, store, opts)
	b := &book{t: t}
	first := b.next(i)
	hash := func() map[string]string { return rdb.HGetAll(t.Context(), "hapax:seq:{orders}").Val() }
	if h := hash(); first != 1000 || h["cur"] != "1000" || h["max"] != "1099" || h["step"] != "100" {
		t.Errorf("got %d, and the hash is %v", first, h)
	}
	b.rising(48, i)
	if h := hash(); h["ncur"] != "" {
		t.Errorf("below the threshold the hash is %v", h)
	}
	b.rising(1, i)
	patience.Until(t, "the next segment", func() bool { return hash()["ncur"] == "1199" && hash()["nmax"] == "1299" }) // what lies between is the process's own reserve
	b.rising(51, i)
	if h := hash(); h["cur"] != "1200" || h["max"] != "1299" || h["ncur"] != "" {
		t.Errorf("at the joint the hash is %v", h)
	}
	if s := i.Stats(); s.FromRedis != 101 || s.Away || s.Local.Issued != 0 {
		t.Errorf("got %+v", s)
	}
	dst := make([]hapax.ID, 350) // across joints
	n, err := i.NextN(t.Context(), dst)
	if err != nil || n != len(dst) || !slices.IsSorted(dst) || dst[0] != 1201 {
		t.Errorf("got %d numbers from %d, %v", n, dst[0], err)
	}
	b.all = append(b.all, dst...)
	b.unique()
	must(t, i.Close(t.Context()))
	must(t, i.Close(t.Context()))
	if _, err := i.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestStepAdapts(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	i := issuer(t, rdb, memstore.New(), redismongo.Options{Step: 10, MinStep: 10, MaxStep: 80})
	b := &book{t: t}
	b.rising(400, i)
	patience.Until(t, "the largest step", func() bool {
		b.rising(1, i)
		return rdb.HGet(t.Context(), "hapax:seq:{orders}", "step").Val() == "80"
	})
	// A segment that lasts for hours is followed by a smaller one.
	must(t, rdb.HSet(t.Context(), "hapax:seq:{orders}", "at", time.Now().Add(-5*time.Hour).UnixMilli()).Err())
	patience.Until(t, "a smaller step", func() bool {
		b.rising(1, i)
		return rdb.HGet(t.Context(), "hapax:seq:{orders}", "step").Val() == "40"
	})
	b.unique()
}

// The second segment is fetched when a part of the first is used: that says nothing yet of how long a
// whole one lasts.
func TestSecondSegmentIsLikeTheFirst(t *testing.T) {
	for name, withoutEval := range map[string]bool{"scripts": false, "transactions": true} {
		t.Run(name, func(t *testing.T) {
			rdb := connect(t, testservers.Redis(t, forgets...))
			i := issuer(t, rdb, memstore.New(), redismongo.Options{Step: 10, MaxStep: 80, WithoutEval: withoutEval})
			b := &book{t: t}
			for _, want := range []int{10, 20} { // the second lasted for less than 20 minutes
				b.rising(2, i)
				patience.Until(t, "the next segment", func() bool { return rdb.HExists(t.Context(), "hapax:seq:{orders}", "nmax").Val() })
				next := rdb.HMGet(t.Context(), "hapax:seq:{orders}", "ncur", "nmax").Val()
				before, _ := strconv.Atoi(next[0].(string))
				last, _ := strconv.Atoi(next[1].(string))
				if last-before != want {
					t.Fatalf("after %d numbers, the next segment has %d, want %d", len(b.all), last-before, want)
				}
				b.rising(8, i)
			}
		})
	}
}

// TestLargeNumbers crosses the powers of ten and of two where Lua's numbers lose.
// The reserve is there whenever the next segment is due, whatever bounds the step has.
func TestReserve(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	opts := fixed(10)
	opts.OnStoreLoss, opts.Reserve, opts.Threshold = redismongo.Extend, 100, 30
	i := issuer(t, rdb, memstore.New(), opts)
	b := &book{t: t}
	for range 20 {
		b.rising(41, i)
		v := rdb.HMGet(t.Context(), "hapax:seq:{orders}", "cur", "max", "nmax").Val()
		cur, _ := strconv.ParseInt(v[0].(string), 10, 64)
		last := v[1].(string)
		if v[2] != nil {
			last = v[2].(string)
		}
		if end, _ := strconv.ParseInt(last, 10, 64); end-cur < 100 {
			patience.Until(t, "the next segment", func() bool {
				return rdb.HGet(t.Context(), "hapax:seq:{orders}", "nmax").Val() != ""
			})
		}
	}
	if step := rdb.HGet(t.Context(), "hapax:seq:{orders}", "step").Val(); step != "143" {
		t.Errorf("a segment has %s numbers", step)
	}
}

// TestNewWithoutStore starts while the store is away: Redis has numbers, or not.
func TestNewWithoutStore(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	var lost atomic.Bool
	store := &reach{SegmentStore: memstore.New(), all: &lost}
	b := &book{t: t}
	a := issuer(t, rdb, store, fixed(100))
	b.rising(10, a)
	lost.Store(true)
	opts := fixed(100)
	opts.Timeout = 200 * time.Millisecond
	z := issuer(t, rdb, store, opts)
	b.rising(30, z, a)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	opts.Prefix = "another"
	if _, err := redismongo.New(ctx, rdb, store, "orders", opts); !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("neither store nor segment: %v", err)
	}
	must(t, z.Close(t.Context())) // before it had a reserve
	lost.Store(false)
	b.rising(300, a)
	b.unique()
}

// TestBackWhileWaiting has a call that waits for the store go on when Redis is back.
func TestBackWhileWaiting(t *testing.T) {
	server := testservers.Redis(t, forgets...)
	proxy := testservers.NewProxy(t, server.Addr)
	var lost atomic.Bool
	store := &reach{SegmentStore: memstore.New(), all: &lost}
	o, err := redis.ParseURL(proxy.URL(server.URL))
	must(t, err)
	o.ContextTimeoutEnabled = true
	rdb := redis.NewClient(o)
	defer rdb.Close()
	i := issuer(t, rdb, store, fixed(100))
	b := &book{t: t}
	b.rising(10, i)
	lost.Store(true)
	proxy.Cut()
	for b.next(i); i.Stats().Local.Remaining > 0; {
		b.next(i)
	}
	got := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		_, err := i.Next(ctx)
		got <- err
	}()
	patience.Until(t, "a call that waits", func() bool { return i.Stats().Local.Waits > 0 })
	proxy.Pass() // Redis has numbers; the store stays away
	must(t, <-got)
	b.unique()
}

// TestImpatientCallers wait for less long than Redis may take: they too get numbers once
// Redis counts as away.
func TestImpatientCallers(t *testing.T) {
	server := testservers.Redis(t, forgets...)
	proxy := testservers.NewProxy(t, server.Addr)
	o, err := redis.ParseURL(proxy.URL(server.URL))
	must(t, err)
	o.ContextTimeoutEnabled = true
	rdb := redis.NewClient(o)
	defer rdb.Close()
	opts := fixed(100)
	opts.Timeout = 300 * time.Millisecond
	i := issuer(t, rdb, memstore.New(), opts)
	b := &book{t: t}
	b.rising(10, i)
	proxy.Blackhole()
	patience.Until(t, "a number", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		id, err := i.Next(ctx)
		if err == nil {
			b.all = append(b.all, id)
		}
		return err == nil
	})
	b.unique()
}

func TestInMemory(t *testing.T) {
	i, err := redismongo.InMemory(t.Context(), "orders", redismongo.Options{Start: 100})
	must(t, err)
	for want := range hapax.ID(5000) {
		id, err := i.Next(t.Context())
		must(t, err)
		if id != want+100 {
			t.Fatalf("got %d, want %d", id, want+100)
		}
	}
	must(t, i.Close(t.Context()))
	if _, err := redismongo.InMemory(t.Context(), "orders", redismongo.Options{Threshold: -1}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a bad option: %v", err)
	}
}

func TestLargeNumbers(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	for _, start := range []int64{1e15 - 20, 1<<53 - 20, 1e18 - 20, hapax.MaxMark - 200} {
		opts := fixed(15)
		opts.Start, opts.Prefix = start, fmt.Sprint("p", start)
		i := issuer(t, rdb, memstore.New(), opts)
		b := &book{t: t}
		b.rising(100, i)
		if hi := slices.Max(b.all); int64(hi) < start+100 || int64(hi) > start+200 {
			t.Errorf("from %d: got up to %d", start, hi)
		}
		b.unique()
	}
	opts := fixed(15)
	opts.Start = hapax.MaxMark - 40
	i := issuer(t, rdb, memstore.New(), opts)
	var err error
	for range 100 {
		if _, err = i.Next(t.Context()); err != nil {
			break
		}
	}
	if !errors.Is(err, hapax.ErrLineExhausted) {
		t.Errorf("at the end of the line: %v", err)
	}
}

// TestInstallations sends installations late and twice.
func TestInstallations(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	ctx := t.Context()
	keys := []string{"k"}
	take := func(seen int64) []any {
		v, err := redismongo.TakeScript.Run(ctx, rdb, keys, 10, seen, 20, "right"+strconv.FormatInt(seen, 10), 60_000, "").Slice()
		must(t, err)
		return v
	}
	install := func(server, right string, before, last int64) string {
		v, err := redismongo.InstallScript.Run(ctx, rdb, keys, server, right, before, last, last-before, "").StringSlice()
		must(t, err)
		return strings.Join(v, " ")
	}
	v := take(0)
	server := v[3].(string)
	for name, tt := range map[string]struct{ server, right string }{
		"another's right":  {server, "right9"},
		"another server's": {strings.Repeat("0", 40) + server[40:], "right0"},
		"another history":  {server[:41] + strings.Repeat("0", 40), "right0"},
	} {
		if got := install(tt.server, tt.right, 0, 10); got != "no" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := install(server, "right0", 0, 20); got != "ok" {
		t.Errorf("got %s", got)
	}
	if got := install(server, "right0", 0, 20); got != "no" {
		t.Errorf("twice: %s", got)
	}
	if v := take(0); v[1] != "10" || v[2] != int64(10) || len(v) != 6 {
		t.Errorf("got %v", v)
	}
	must(t, rdb.FlushAll(ctx).Err())
	if got := install(server, "right0", 20, 40); got != "no" {
		t.Errorf("late, after the server was emptied: %s", got)
	}
	take(1)
	if got := install(server, "right1", 40, 60); got != "ok" {
		t.Errorf("got %s", got)
	}
	take(41)
	if v := take(59); v[0] != "dry" { // behind what somebody has seen
		t.Errorf("got %v", v)
	}
	if v := take(0); v[0] != "dry" {
		t.Errorf("a cursor that was found behind serves on: %v", v)
	}
	if got := install(server, "right41", 30, 50); got != "low 60" {
		t.Errorf("a segment below those that are known: %s", got)
	}
}

func TestForeignHashAndStoreThatWentBack(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	must(t, rdb.HSet(t.Context(), "hapax:seq:{orders}", "cur", 5000, "max", 5999, "step", 1000).Err())
	store := memstore.New()
	opts := fixed(100)
	var refused atomic.Int64
	opts.Observer = func(e hapax.Event) {
		if errors.Is(e.Err, hapax.ErrStoreRolledBack) {
			refused.Add(1)
		}
	}
	i := issuer(t, rdb, store, opts)
	_, err := i.Next(t.Context())
	if !errors.Is(err, hapax.ErrStoreRolledBack) || !strings.Contains(err.Error(), "5999") {
		t.Errorf("below a hash that exists: %v", err)
	}
	floor := int64(6000)
	_, err = store.UpdateTag(t.Context(), "orders", driver.TagUpdate{Floor: &floor})
	must(t, err)
	b := &book{t: t}
	patience.Until(t, "the floor", func() bool {
		id, err := i.Next(t.Context())
		b.all = append(b.all, id)
		return err == nil && id == 6000
	})
	// Whoever guards the store latches the refusal; here it wears off once the store
	// is past what is known, and not before.
	b.rising(500, i)
	back := store.Snapshot()
	b.rising(500, i)
	store.Restore(back)
	before := refused.Load()
	b.rising(1000, i)
	if refused.Load() == before {
		t.Error("nobody was told of the store that went back")
	}
	b.unique()
}

// A forgetful store knows no tag any more once it has forgotten all.
type forgetful struct {
	hapax.SegmentStore

	forgot  atomic.Bool
	created atomic.Int64
}

func (f *forgetful) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if f.forgot.Load() {
		return hapax.Allocation{}, hapax.ErrTagNotFound
	}
	return f.SegmentStore.Allocate(ctx, tag, n, last)
}

func (f *forgetful) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	f.created.Add(1)
	return f.SegmentStore.CreateTag(ctx, tag, mode)
}

// A tag that was used and is not there any more is not made anew: others would begin at its start.
func TestStoreThatLostTheTag(t *testing.T) {
	store := &forgetful{SegmentStore: memstore.New()}
	i, b := issuer(t, connect(t, testservers.Redis(t, forgets...)), store, fixed(100)), &book{t: t}
	b.rising(10, i)
	store.forgot.Store(true)
	before := store.created.Load()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	var err error
	for err == nil {
		_, err = i.Next(ctx)
	}
	if !errors.Is(err, hapax.ErrStoreRolledBack) || store.created.Load() != before {
		t.Errorf("%v; the tag was made %d times, and %d before", err, store.created.Load(), before)
	}
}

// TestAnotherStore has two processes share a Redis but not the store, which grants each
// of them the same numbers.
func TestAnotherStore(t *testing.T) {
	server := testservers.Redis(t, forgets...)
	rdb, b := connect(t, server), &book{t: t}
	a := issuer(t, rdb, memstore.New(), fixed(50))
	b.rising(120, a)
	_, err := redismongo.New(t.Context(), rdb, memstore.New(), "orders", redismongo.Options{Timeout: patience.Long})
	if !errors.Is(err, hapax.ErrStoreReplaced) || !strings.Contains(err.Error(), "hapax:seq:{orders}") {
		t.Errorf("another store: %v", err)
	}
	b.rising(120, a)
	// Redis is emptied, and then belongs to whoever comes first.
	must(t, rdb.FlushAll(t.Context()).Err())
	z, other := issuer(t, rdb, memstore.New(), fixed(50)), &book{t: t}
	other.rising(120, z)
	if _, err := a.Next(t.Context()); !errors.Is(err, hapax.ErrStoreReplaced) {
		t.Errorf("the first one: %v", err)
	}
	other.rising(120, z)
}

func TestReady(t *testing.T) {
	server := testservers.Redis(t, forgets...)
	proxy := testservers.NewProxy(t, server.Addr)
	o, err := redis.ParseURL(proxy.URL(server.URL))
	must(t, err)
	o.ContextTimeoutEnabled = true
	rdb := redis.NewClient(o)
	defer rdb.Close()
	var lost atomic.Bool
	i := issuer(t, rdb, &reach{SegmentStore: memstore.New(), all: &lost}, fixed(10))
	b := &book{t: t}
	ready := func(when string, want *hapax.Error) {
		t.Helper()
		if err := i.Ready(); want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", when, err, want)
		}
	}
	b.rising(15, i)
	ready("with all", nil)
	lost.Store(true)
	ready("without the store", nil)
	b.untilRefused(i)
	ready("with nothing left in Redis", hapax.ErrStoreUnavailable)
	proxy.Cut()
	b.next(i)
	ready("without Redis", nil)
	b.untilRefused(i)
	ready("with nothing at all", hapax.ErrStoreUnavailable)
	proxy.Pass()
	lost.Store(false)
	b.next(i)
	back(t, i)
	ready("with all again", nil)
	must(t, i.Close(t.Context()))
	ready("closed", hapax.ErrClosed)
}

func TestAccountWithoutInfo(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	for user, rules := range map[string][]any{
		"nobody": {"off"},
		"noinfo": {"-info"},
		"noeval": {"-eval", "-evalsha"},
	} {
		args := append([]any{"ACL", "SETUSER", user, "on", "nopass", "~*", "+@all"}, rules...)
		must(t, rdb.Do(t.Context(), args...).Err())
		o := *rdb.Options()
		o.Username, o.Password = user, "any"
		c := redis.NewClient(&o)
		defer c.Close()
		_, err := redismongo.New(t.Context(), c, memstore.New(), "orders", redismongo.Options{Timeout: patience.Long})
		if !errors.Is(err, hapax.ErrStoreUnsafe) {
			t.Errorf("%s: %v", user, err)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]redismongo.Options{
		"prefix":    {Prefix: "{"},
		"threshold": {Threshold: 101},
		"timeout":   {Timeout: -1},
		"step":      {Step: -1},
		"loss":      {OnStoreLoss: "wait"},
		"reserve":   {Reserve: 10},
		"too much":  {OnStoreLoss: redismongo.Extend, Reserve: hapax.MaxStep},
		"negative":  {OnStoreLoss: redismongo.Extend, Reserve: -1},
		"all used":  {OnStoreLoss: redismongo.Extend, Threshold: 91},
	} {
		if _, err := redismongo.New(t.Context(), redis.NewClient(&redis.Options{}), memstore.New(), "t", opts); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
