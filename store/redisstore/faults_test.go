package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// A server that keeps everything may crash and come back.
func TestCrash(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{Warn: func(code, message string) { t.Errorf("warning %s: %s", code, message) }})
	create(t, s, hapax.Tag{Name: "t"})
	last := allocate(t, s, "t", 5)
	for range 2 {
		srv.Kill()
		_, err := s.Allocate(t.Context(), "t", 5, "")
		wantErr(t, "a server that is down", err, hapax.ErrStoreUnavailable)
		srv.Start()
		g, err := allocateUntil(t, s, "t", nil)
		if err != nil {
			t.Fatal(err)
		}
		if g.Lo < last.Hi {
			t.Errorf("after a crash %v was granted; %v was granted before", g, last)
		}
		last = g
	}
}

// Grants that were acknowledged while a server was killed are not repeated.
func TestCrashUnderLoad(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	var mu sync.Mutex // guards granted
	var granted []hapax.Grant
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if a, err := s.Allocate(ctx, "t", 3, ""); err == nil {
					mu.Lock()
					granted = append(granted, a.Grant)
					mu.Unlock()
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(granted)
	}
	for range 3 {
		want := 10 + count()
		patience.Until(t, "more grants", func() bool { return count() >= want })
		srv.Kill()
		srv.Start()
	}
	cancel()
	wg.Wait()
	if last, err := allocateUntil(t, s, "t", nil); err != nil {
		t.Fatal(err)
	} else {
		granted = append(granted, last)
	}
	slices.SortFunc(granted, func(a, b hapax.Grant) int { return int(a.Lo - b.Lo) })
	for i := 1; i < len(granted); i++ {
		if granted[i].Lo < granted[i-1].Hi {
			t.Fatalf("%v was granted after %v", granted[i], granted[i-1])
		}
	}
	t.Logf("%d grants", len(granted))
}

// A server that comes back without its data is refused; one that may have lost some
// of it tells that it was restarted, and is left to those who know what they had.
func TestRestartThatMayLose(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want *hapax.Error
	}{
		{"without persistence", []string{"--appendonly", "no"}, hapax.ErrStoreReplaced},
		{"with late fsync", []string{"--appendfsync", "everysec"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := testservers.Redis(t, tt.args...)
			var codes []string
			s := open(t, srv.URL, redisstore.Options{Warn: func(code, _ string) { codes = append(codes, code) }})
			if !slices.Equal(codes, []string{redisstore.WarnNotDurable}) {
				t.Errorf("warnings are %q; want %q", codes, redisstore.WarnNotDurable)
			}
			create(t, s, hapax.Tag{Name: "t"})
			before, last := primaryOf(t, s), allocate(t, s, "t", 5)
			srv.Stop()
			srv.Start()
			g, err := allocateUntil(t, s, "t", tt.want)
			if tt.want == nil {
				if now := primaryOf(t, s); err != nil || g.Lo < last.Hi || now == before {
					t.Errorf("after a restart: %v, %v; %v was granted before; %q answers after %q", g, err, last, now, before)
				}
				return
			}
			wantErr(t, "Allocate after the restart", err, tt.want)
			wantErr(t, "Ping after the restart", s.Ping(t.Context()), tt.want)
			_, err = s.CreateTag(t.Context(), hapax.Tag{Name: "new"}, hapax.CreateFirstUse)
			wantErr(t, "CreateTag after the restart", err, tt.want)
			open(t, srv.URL, redisstore.Options{})
		})
	}
}

// A store whose data was deleted under it notices at every call, and makes
// nothing new.
func TestEmptied(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	lease := acquire(t, s)
	ctx := t.Context()
	granted := must[hapax.Allocation](t)(s.Allocate(ctx, "t", 1, ""))
	pulse := driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}}
	check := func(t *testing.T) {
		step := int64(5)
		for name, call := range map[string]func() error{
			"StoreID":      func() error { _, err := s.StoreID(ctx); return err },
			"Ping":         func() error { return s.Ping(ctx) },
			"Allocate":     func() error { _, err := s.Allocate(ctx, "t", 1, ""); return err },
			"CreateTag":    func() error { _, err := s.CreateTag(ctx, hapax.Tag{Name: "t"}, hapax.CreateFirstUse); return err },
			"Tag":          func() error { _, err := s.Tag(ctx, "t"); return err },
			"Tags":         func() error { _, err := s.Tags(ctx, "", 1); return err },
			"UpdateTag":    func() error { _, err := s.UpdateTag(ctx, "t", driver.TagUpdate{Step: &step}); return err },
			"DeleteTag":    func() error { _, err := s.DeleteTag(ctx, "t"); return err },
			"HandBack":     func() error { return s.HandBack(ctx, granted, granted.Grant.Lo) },
			"Beat":         func() error { _, err := s.Beat(ctx, pulse); return err },
			"AllocateWith": func() error { _, _, err := storetest.AllocateWith(ctx, s, pulse, "t", 1, ""); return err },
			"HandBackWith": func() error { _, err := storetest.HandBackWith(ctx, s, pulse, granted, granted.Grant.Lo); return err },
			"SwapRowWith":  func() error { _, _, err := s.SwapRowWith(ctx, pulse, "table", "row", nil, []byte("x")); return err },
			"HealTag":      func() error { _, err := s.HealTag(ctx, hapax.Tag{Name: "t"}); return err },
			"Row":          func() error { _, err := s.Row(ctx, "table", "row"); return err },
			"ListRows":     func() error { _, err := s.ListRows(ctx, "table", "", 1); return err },
			"SwapRow":      func() error { _, err := s.SwapRow(ctx, "table", "row", nil, []byte("x")); return err },
			"CreatePool":   func() error { _, err := s.CreatePool(ctx, "p", "leaf"); return err },
			"Pools":        func() error { _, err := s.Pools(ctx); return err },
			"Workers":      func() error { _, err := s.Workers(ctx, "p"); return err },
			"ExtendWorker": func() error { _, err := extend(ctx, t, s, lease, time.Minute); return err },
		} {
			wantErr(t, name, call(), hapax.ErrStoreReplaced)
		}
	}
	c := raw(t, srv)
	if err := c.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	t.Run("empty", check)
	if n := c.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys were made in an empty server", n)
	}
	other := open(t, srv.URL, redisstore.Options{})
	t.Run("another store", check)
	create(t, other, hapax.Tag{Name: "t"})
	acquire(t, other)
	t.Run("another store with the same names", check)
	if mark := must[hapax.Tag](t)(other.Tag(ctx, "t")).Mark; mark != 1 {
		t.Errorf("the other store's mark is %d; want 1", mark)
	}
}

func acquire(t testing.TB, s *redisstore.Store) hapax.Lease {
	t.Helper()
	return must[hapax.Lease](t)(s.AcquireWorker(t.Context(), hapax.AcquireRequest{
		Pool: "p", Layout: layout(t), Workers: hapax.WorkerRange{Hi: 4}, Holder: "h", Term: term(time.Second),
	}))
}

func layout(t testing.TB) hapax.Layout { return must[hapax.Layout](t)(hapax.ParseLayout("leaf")) }

// extend extends a lease to somewhat more than a length from now.
func extend(ctx context.Context, t testing.TB, s *redisstore.Store, lease hapax.Lease, length time.Duration) (hapax.Lease, error) {
	t.Helper()
	return s.ExtendWorker(ctx, lease, layout(t), term(length))
}

func term(length time.Duration) hapax.Term {
	return hapax.Term{Now: time.Now(), Length: length, TTL: time.Minute}
}

// A single line that vanished is not begun anew. It is left out of a listing, so that a
// guard that knows it finds that the store lacks it, and healing makes it anew.
func TestLostLine(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	c, ctx := raw(t, srv), t.Context()
	if n := c.Del(ctx, tagKey("t")).Val(); n != 1 {
		t.Fatalf("%d keys were deleted; want 1", n)
	}
	_, err := s.Allocate(ctx, "t", 1, "")
	wantErr(t, "Allocate", err, hapax.ErrStoreRolledBack)
	_, err = s.CreateTag(ctx, must[hapax.Tag](t)(hapax.Tag{Name: "t"}.WithDefaults()), hapax.CreateFirstUse)
	wantErr(t, "CreateTag", err, hapax.ErrStoreRolledBack)
	for name, list := range map[string]func() ([]hapax.Tag, error){
		"Tags":      func() ([]hapax.Tag, error) { return s.Tags(ctx, "", 10) },
		"TagsNamed": func() ([]hapax.Tag, error) { return s.TagsNamed(ctx, []string{"t"}) },
	} {
		if tags, err := list(); len(tags) != 0 || err != nil {
			t.Errorf("%s: %v, %v; want none", name, tags, err)
		}
	}
	healed, err := s.HealTag(ctx, hapax.Tag{Name: "t", Mark: 70, Token: 3})
	if err != nil || healed.Mark != 70 || healed.Token <= 3 {
		t.Errorf("healed: %+v, %v", healed, err)
	}
	c.Del(ctx, tagKey("t"))

	// The way out that the package describes.
	c.ZRem(ctx, "hapax:{hapax}:tags", "t")
	if g := create(t, s, hapax.Tag{Name: "t", Start: 5000}); g.Mark != 5000 {
		t.Errorf("mark is %d; want 5000", g.Mark)
	}
	allocate(t, s, "t", 1)
}

// Rows that vanished are not made anew.
func TestLostRows(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s := open(t, srv.URL, redisstore.Options{})
	lease := acquire(t, s)
	c, ctx := raw(t, srv), t.Context()
	const rows, names = "hapax:{hapax}:rows", "hapax:{hapax}:names"
	check := func(t *testing.T) {
		_, err := s.Workers(ctx, "p")
		wantErr(t, "Workers", err, hapax.ErrStoreRolledBack)
		_, err = s.Row(ctx, "table", "row")
		wantErr(t, "Row", err, hapax.ErrStoreRolledBack)
		_, err = extend(ctx, t, s, lease, time.Minute)
		wantErr(t, "ExtendWorker", err, hapax.ErrStoreRolledBack)
		_, err = s.SwapRow(ctx, "table", "row", nil, []byte("x"))
		wantErr(t, "SwapRow", err, hapax.ErrStoreRolledBack)
	}
	value := c.HGet(ctx, rows, "pools\x00p").Val()
	c.HDel(ctx, rows, "pools\x00p")
	t.Run("a row", check)
	c.HSet(ctx, rows, "pools\x00p", value)
	must[[]driver.Worker](t)(s.Workers(ctx, "p"))
	c.HDel(ctx, rows, "pools\x00p")
	c.HSet(ctx, rows, "pools\x00another", value)
	if rows, err := s.ListRows(ctx, "pools", "", 10); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("with a row under another name: %v, %v", rows, err)
	}
	c.HDel(ctx, rows, "pools\x00another")
	c.HSet(ctx, rows, "pools\x00p", value)
	c.Rename(ctx, names, "elsewhere")
	t.Run("the names", check)
	c.Rename(ctx, "elsewhere", names)
	must[[]driver.Worker](t)(s.Workers(ctx, "p"))
	if n := c.Del(ctx, rows, names).Val(); n != 2 {
		t.Fatalf("%d keys were deleted; want 2", n)
	}
	t.Run("both keys", check)
}

// A creation that was cut off is made as a whole, or not at all; the next one goes on from there.
func TestHalfCreated(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	proxy := testservers.NewProxy(t, srv.Addr)
	s, direct := open(t, proxy.URL(srv.URL), redisstore.Options{}), open(t, srv.URL, redisstore.Options{})
	c, ctx := raw(t, srv), t.Context()
	create(t, direct, hapax.Tag{Name: "first"}) // the server knows the script then
	for i, cut := range []func(func([]byte) bool){proxy.CutRequest, proxy.CutReply} {
		name := fmt.Sprint("t", i)
		cut(testservers.Contains(`{"kind"`))
		_, err := s.CreateTag(ctx, must[hapax.Tag](t)(hapax.Tag{Name: name}.WithDefaults()), hapax.CreateFirstUse)
		wantErr(t, "CreateTag", err, hapax.ErrStoreUnavailable)
		if n := proxy.Fired(); n != i+1 {
			t.Fatalf("the proxy cut %d connections; want %d", n, i+1)
		}
		made := int64(i)
		if keys, _ := c.Exists(ctx, tagKey(name)).Result(); keys != made {
			t.Errorf("%d keys were made; want %d", keys, made)
		}
		if indexed := c.ZScore(ctx, "hapax:{hapax}:tags", name).Err() == nil; indexed != (made == 1) {
			t.Errorf("the index has the name: %v", indexed)
		}
		_, err = direct.Allocate(ctx, name, 1, "")
		if made == 0 {
			wantErr(t, "Allocate", err, hapax.ErrTagNotFound)
			create(t, s, hapax.Tag{Name: name})
			_, err = direct.Allocate(ctx, name, 1, "")
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// When the answer to a grant is lost, the caller hears an error and the numbers
// are skipped: nothing sends the grant again.
func TestLostAnswer(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	proxy := testservers.NewProxy(t, srv.Addr)
	s := open(t, proxy.URL(srv.URL), redisstore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	lease := acquire(t, s)
	last := allocate(t, s, "t", 10)
	for i, cut := range []func(func([]byte) bool){proxy.CutReply, proxy.CutRequest} {
		cut(testservers.Contains("evalsha"))
		_, err := s.Allocate(t.Context(), "t", 10, "")
		wantErr(t, "a lost answer", err, hapax.ErrStoreUnavailable)
		if n := proxy.Fired(); n != i+1 {
			t.Fatalf("the proxy cut %d connections; want %d", n, i+1)
		}
	}
	want := hapax.Grant{Lo: last.Hi + 10, Hi: last.Hi + 20} // one grant was lost, one never happened
	if got := allocate(t, s, "t", 10); got != want {
		t.Errorf("the grant after a lost one is %v; want %v", got, want)
	}

	// An extension whose answer was lost is granted with the next one.
	proxy.CutReply(testservers.Contains("evalsha"))
	_, err := extend(t.Context(), t, s, lease, 10*time.Second)
	wantErr(t, "a lost extension", err, hapax.ErrStoreUnavailable)
	extended := must[hapax.Lease](t)(extend(t.Context(), t, s, lease, 20*time.Second))
	if extended.Grant.Lo != lease.Grant.Hi || extended.Grant.Len() < 15_000 {
		t.Errorf("the extension after a lost one is %v; want 20 s from %d on", extended.Grant, lease.Grant.Hi)
	}
}

// Calls end with their context, and the error tells so.
func TestSilence(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	proxy := testservers.NewProxy(t, srv.Addr)
	patient := open(t, proxy.URL(srv.URL), redisstore.Options{Timeout: time.Hour})
	hasty := open(t, proxy.URL(srv.URL)+"?read_timeout=1h", redisstore.Options{Timeout: 2 * time.Second}) // within which it also opens
	create(t, patient, hapax.Tag{Name: "t"})
	if _, err := allocateUntil(t, hasty, "t", nil); err != nil {
		t.Fatal(err)
	}
	proxy.Blackhole()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	cancelled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	for _, tt := range []struct {
		name string
		s    *redisstore.Store
		ctx  context.Context
		want error
	}{
		{"cancelled", patient, cancelled, context.Canceled},
		{"deadline", patient, short, context.DeadlineExceeded},
		{"no deadline", hasty, t.Context(), context.DeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.s.Allocate(tt.ctx, "t", 1, "")
			if !errors.Is(err, tt.want) || !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("error is %v; want %v and ErrStoreUnavailable", err, tt.want)
			}
		})
	}
	proxy.Pass()
	if _, err := allocateUntil(t, hasty, "t", nil); err != nil {
		t.Fatal(err)
	}
}

// In a Cluster a store is on one node, and the loss of its data is noticed by every call.
func TestClusterNodeEmptied(t *testing.T) {
	nodes := testservers.RedisCluster(t)
	s := open(t, nodes[0].URL, redisstore.Options{})
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, name := range names {
		create(t, s, hapax.Tag{Name: name})
	}
	acquire(t, s)
	if _, err := redisstore.Open(t.Context(), nodes[0].URL+"/1", redisstore.Options{}); err == nil {
		t.Error("a database was accepted in a Cluster")
	}
	emptied := 0
	for _, n := range nodes {
		c := raw(t, &testservers.Server{URL: "redis://" + n.Addr})
		held := c.DBSize(t.Context()).Val()
		if held == 0 {
			continue
		}
		if want := int64(4 + len(names)); held != want {
			t.Errorf("a node holds %d keys; want all %d", held, want)
		}
		if err := c.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		emptied++
		for _, name := range names {
			_, err := s.Allocate(t.Context(), name, 1, "")
			wantErr(t, "tag "+name, err, hapax.ErrStoreReplaced)
		}
		_, err := s.Workers(t.Context(), "p")
		wantErr(t, "Workers", err, hapax.ErrStoreReplaced)
	}
	if emptied != 1 {
		t.Errorf("%d nodes held data; want one", emptied)
	}
}
