package redisstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return redisstore.Open(ctx, url, redisstore.Options{Timeout: patience.Call})
	})
}

// open opens a store that the test's end closes. Its time limit is not the store's.
func open(t testing.TB, url string, opts redisstore.Options) *redisstore.Store {
	t.Helper()
	opts.Timeout = cmp.Or(opts.Timeout, patience.Call)
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	s, err := redisstore.Open(ctx, url, opts)
	for errors.Is(err, hapax.ErrStoreUnavailable) && ctx.Err() == nil { // it waits for replicas, and one may be late
		s, err = redisstore.Open(ctx, url, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// raw returns a client of the server itself.
func raw(t testing.TB, s *testservers.Server) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// must returns v, or ends the test.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func create(t testing.TB, s *redisstore.Store, def hapax.Tag) hapax.Tag {
	t.Helper()
	def = must[hapax.Tag](t)(def.WithDefaults())
	return must[hapax.Tag](t)(s.CreateTag(t.Context(), def, hapax.CreateExplicit))
}

// createUntil creates tag t through a store that waits for replicas, which a busy
// machine may make late.
func createUntil(t testing.TB, s *redisstore.Store) {
	t.Helper()
	def := must[hapax.Tag](t)(hapax.Tag{Name: "t"}.WithDefaults())
	for end := time.Now().Add(patience.Long); ; {
		_, err := s.CreateTag(t.Context(), def, hapax.CreateExplicit)
		if err == nil || errors.Is(err, hapax.ErrTagExists) {
			return
		}
		if !errors.Is(err, hapax.ErrStoreUnavailable) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func allocate(t testing.TB, s *redisstore.Store, tag string, n int64) hapax.Grant {
	t.Helper()
	return must[hapax.Allocation](t)(s.Allocate(t.Context(), tag, n, "")).Grant
}

// allocateUntil allocates until it succeeds or fails with the sentinel, which
// may be nil, and returns what happened. Other errors pass: the server is down.
func allocateUntil(t testing.TB, s *redisstore.Store, tag string, want *hapax.Error) (hapax.Grant, error) {
	t.Helper()
	var got hapax.Allocation
	err := patience.Await(t, "a grant, or the error", func() (err error, _ error) {
		got, err = s.Allocate(t.Context(), tag, 1, "")
		return err, nil
	}, func(err error) bool { return err == nil || want != nil && errors.Is(err, want) })
	return got.Grant, err
}

func wantErr(t testing.TB, what string, err error, sentinel *hapax.Error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: error is %v; want %v", what, err, sentinel)
	}
}

func TestConformance(t *testing.T) {
	srv := testservers.Redis(t)
	h := storetest.Harness{
		Open:         func(t testing.TB) storetest.Handle { return open(t, srv.URL, redisstore.Options{}) },
		URL:          srv.URL,
		Capabilities: storetest.Capabilities{Shared: true},
		Silence: testservers.Silence(srv, srv.URL, func(ctx context.Context, url string, timeout time.Duration) (storetest.Handle, error) {
			return redisstore.Open(ctx, url, redisstore.Options{Timeout: timeout})
		}),
	}
	storetest.Run(t, h)
	storetest.RunKV(t, h)
}

// A store that is restored takes the identity of the one that it was.
func TestRestoredIdentity(t *testing.T) {
	url := testservers.Redis(t).URL
	storetest.RunRestored(t, func(ctx context.Context) (storetest.Handle, error) {
		return redisstore.Open(ctx, url, redisstore.Options{Prefix: "restored:", Timeout: patience.Call})
	})
}

// No step writes to another store that stands where the opened one stood.
func TestReplaced(t *testing.T) {
	srv := testservers.Redis(t)
	c := raw(t, srv)
	storetest.RunReplaced(t, func(ctx context.Context) (storetest.Handle, error) {
		return redisstore.Open(ctx, srv.URL, redisstore.Options{Prefix: "replaced:", Timeout: patience.Call})
	}, func(ctx context.Context) error { return c.HSet(ctx, "replaced:{hapax}:store", "id", "another").Err() })
}

func TestConformanceInCluster(t *testing.T) {
	url := testservers.RedisCluster(t)[0].URL
	h := storetest.Harness{
		Open:         func(t testing.TB) storetest.Handle { return open(t, url, redisstore.Options{}) },
		URL:          url,
		Capabilities: storetest.Capabilities{Shared: true},
	}
	storetest.Run(t, h)
	storetest.RunKV(t, h)
}

// Marks go up to the top of the range, digit by digit.
func TestTopOfTheRange(t *testing.T) {
	s := open(t, testservers.Redis(t).URL, redisstore.Options{Prefix: "top:"})
	for _, lo := range []int64{1<<53 - 1, 1<<53 + 1, 1<<62 + 1, 999_999_999, 1_999_999_999, hapax.MaxMark - 1_000_000_001} {
		name := fmt.Sprint("t", lo)
		create(t, s, hapax.Tag{Name: name, Start: lo, Step: 7})
		for i := range int64(3) {
			want := hapax.Grant{Lo: lo + 7*i, Hi: lo + 7*i + 7}
			if got := allocate(t, s, name, 7*(i&1)); got != want {
				t.Errorf("allocation is %v; want %v", got, want)
			}
		}
	}
	create(t, s, hapax.Tag{Name: "end", Start: hapax.MaxMark - 10, Step: 7})
	_, err := s.Allocate(t.Context(), "end", 11, "")
	wantErr(t, "one number too many", err, hapax.ErrLineExhausted)
	_, err = s.Allocate(t.Context(), "end", hapax.MaxStep, "")
	wantErr(t, "far too many numbers", err, hapax.ErrLineExhausted)
	if got, want := allocate(t, s, "end", 0), (hapax.Grant{Lo: hapax.MaxMark - 10, Hi: hapax.MaxMark - 3}); got != want {
		t.Errorf("allocation is %v; want %v", got, want)
	}
	_, err = s.Allocate(t.Context(), "end", 0, "")
	wantErr(t, "a whole step at the end", err, hapax.ErrLineExhausted)
	if got, want := allocate(t, s, "end", 3), (hapax.Grant{Lo: hapax.MaxMark - 3, Hi: hapax.MaxMark}); got != want {
		t.Errorf("allocation is %v; want %v", got, want)
	}
	create(t, s, hapax.Tag{Name: "carry", Start: hapax.MaxMark - 600_000_000})
	_, err = s.Allocate(t.Context(), "carry", 600_000_001, "")
	wantErr(t, "one number too many, with a carry", err, hapax.ErrLineExhausted)
	if got := allocate(t, s, "carry", 600_000_000); got.Hi != hapax.MaxMark {
		t.Errorf("allocation is %v; want the end at %d", got, int64(hapax.MaxMark))
	}
	floor := int64(hapax.MaxMark - 1)
	create(t, s, hapax.Tag{Name: "floor"})
	if tag := must[hapax.Tag](t)(s.UpdateTag(t.Context(), "floor", driver.TagUpdate{Floor: &floor})); tag.Mark != floor {
		t.Errorf("mark is %d; want %d", tag.Mark, floor)
	}
}

// Nor may they lose digits of a product.
func TestWidths(t *testing.T) {
	s := open(t, testservers.Redis(t).URL, redisstore.Options{Prefix: "widths:"})
	i := 0
	rapid.Check(t, func(r *rapid.T) {
		i++
		def := hapax.Tag{
			Name: fmt.Sprint("t", i), Start: rapid.Int64Range(1, 1<<61).Draw(r, "start"),
			Step:  1 << rapid.IntRange(0, 40).Draw(r, "step's bits"),
			Delta: rapid.OneOf(rapid.Int64Range(1, hapax.MaxDelta), rapid.Just[int64](hapax.MaxDelta)).Draw(r, "delta"),
		}
		def.Step -= rapid.Int64Range(0, def.Step-1).Draw(r, "less")
		create(t, s, def)
		lo, last := def.Start, hapax.GrantKey("")
		for range 3 {
			n := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(1, hapax.MaxStep), rapid.Int64Range(999_999_000, 1_000_001_000)).Draw(r, "n")
			width := must[int64](t)(driver.Width(hapax.Tag{Kind: hapax.KindSegment, Step: def.Step, Delta: def.Delta}, n))
			a, err := s.Allocate(t.Context(), def.Name, n, last)
			if lo > hapax.MaxMark-width {
				if !errors.Is(err, hapax.ErrLineExhausted) {
					r.Fatalf("%v, %v; want ErrLineExhausted", a.Grant, err)
				}
				continue
			}
			if want := (hapax.Grant{Lo: lo, Hi: lo + width}); err != nil || a.Grant != want || a.From != def.Start {
				r.Fatalf("%v from %d, %v; want %v from %d", a.Grant, a.From, err, want, def.Start)
			}
			lo, last = a.Grant.Hi, a.Key
		}
	})
}

// A tag whose row has no token is at 0.
func TestWithoutToken(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, c, ctx := open(t, srv.URL, redisstore.Options{}), raw(t, srv), t.Context()
	for name, end := range map[string]func(hapax.Allocation) error{
		"handed back": func(a hapax.Allocation) error { return s.HandBack(ctx, a, a.Grant.Lo) },
		"healed":      func(hapax.Allocation) error { _, err := s.HealTag(ctx, hapax.Tag{Name: "healed"}); return err },
	} {
		create(t, s, hapax.Tag{Name: name})
		if row := c.Get(ctx, tagKey(name)).Val(); row == "" || strings.Contains(row, "token") {
			t.Fatalf("%s: the row is %q", name, row)
		}
		a := must[hapax.Allocation](t)(s.Allocate(ctx, name, 5, ""))
		if err := end(a); a.Tag.Token != 0 || err != nil {
			t.Errorf("%s: allocated under token %d, then error %v", name, a.Tag.Token, err)
		}
		if tag := must[hapax.Tag](t)(s.Tag(ctx, name)); tag.Token != 1 {
			t.Errorf("%s: the tag is %+v; want token 1", name, tag)
		}
	}
}

// A field that a hand's edit made into something else is refused, and left alone.
func TestEditedByHand(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, c, ctx := open(t, srv.URL, redisstore.Options{}), raw(t, srv), t.Context()
	for _, field := range []string{"mark", "step", "delta", "run", "token"} {
		for _, value := range []string{"", "abc", "-5", "1.5", "1e9", "0x10", "007", "00000000000000000000000001"} {
			name := field + value
			create(t, s, hapax.Tag{Name: name})
			first := must[hapax.Allocation](t)(s.Allocate(ctx, name, 5, ""))
			if err := s.HandBack(ctx, first, first.Grant.Lo); err != nil { // so that there is a token
				t.Fatal(err)
			}
			a := must[hapax.Allocation](t)(s.Allocate(ctx, name, 5, ""))
			row := c.Get(ctx, tagKey(name)).Val()
			before := regexp.MustCompile(`"`+field+`":\d+`).ReplaceAllLiteralString(row, `"`+field+`":`+value)
			if before == row {
				t.Fatalf("%s: %q has no such field", name, row)
			}
			c.Set(ctx, tagKey(name), before, 0)
			_, err := s.Allocate(ctx, name, 0, a.Key)
			wantErr(t, name+": Allocate", err, hapax.ErrStoreCorrupt)
			wantErr(t, name+": HandBack", s.HandBack(ctx, a, a.Grant.Lo), hapax.ErrStoreCorrupt)
			if after := c.Get(ctx, tagKey(name)).Val(); before != after {
				t.Errorf("%s: %q became %q", name, before, after)
			}
		}
	}
}

// tagKey is where the test's tags are.
func tagKey(name string) string { return "hapax:{hapax}:tag:" + name }

// A store of a client that exists leaves it open.
func TestNew(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	c, ctx := raw(t, srv), t.Context()
	s, err := redisstore.New(ctx, c, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, hapax.Tag{Name: "t"})
	last := allocate(t, s, "t", 10)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_, err = s.Allocate(ctx, "t", 1, "")
	wantErr(t, "Allocate on a closed store", err, hapax.ErrClosed)
	wantErr(t, "Ping on a closed store", s.Ping(ctx), hapax.ErrClosed)
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("the client: %v", err)
	}
	if g := allocate(t, open(t, srv.URL, redisstore.Options{}), "t", 1); g.Lo != last.Hi {
		t.Errorf("%v was granted after %v", g, last)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{srv.Addr}, ReadOnly: true})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": srv.Addr}})
	defer cluster.Close()
	defer ring.Close()
	for name, client := range map[string]redis.UniversalClient{"reads from replicas": cluster, "a ring": ring, "none": nil} {
		_, err := redisstore.New(ctx, client, redisstore.Options{})
		wantErr(t, name, err, hapax.ErrInvalidArgument)
	}
}

func TestForeignKeys(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	c, ctx := raw(t, srv), t.Context()
	c.Set(ctx, "x:{hapax}:store", "mine", 0)
	_, err := redisstore.Open(ctx, srv.URL+"?prefix=x:", redisstore.Options{})
	wantErr(t, "a key of another type", err, hapax.ErrStoreCorrupt)
	c.HSet(ctx, "y:{hapax}:store", "id", "I", "format", "9")
	_, err = redisstore.Open(ctx, srv.URL+"?prefix=y:", redisstore.Options{})
	wantErr(t, "another format", err, hapax.ErrStoreCorrupt)
	if want := "says format 9, and this version, hapax " + hapax.Version() + ", knows format 4"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v; want %s", err, want)
	}
	if all := c.HGetAll(ctx, "y:{hapax}:store").Val(); !maps.Equal(all, map[string]string{"id": "I", "format": "9"}) {
		t.Errorf("the keys of a newer version became %v", all)
	}
}

func TestEviction(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	var codes []string
	open(t, srv.URL, redisstore.Options{Warn: func(code, _ string) { codes = append(codes, code) }})
	if !slices.Equal(codes, []string{redisstore.WarnEviction}) {
		t.Errorf("warnings are %q; want %q", codes, redisstore.WarnEviction)
	}
}

// An account may lack the rights that only the checks need.
func TestAccounts(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	c, ctx := raw(t, srv), t.Context()
	for user, rights := range map[string]string{"blind": "-info", "half": "-config"} {
		if err := c.Do(ctx, "acl", "setuser", user, "on", ">s3cret", "~*", "&*", "+@all", rights).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ user, warning string }{{"blind", redisstore.WarnNoIdentity}, {"half", redisstore.WarnNotDurable}} {
		t.Run(tt.user, func(t *testing.T) {
			var codes []string
			s := open(t, "redis://"+tt.user+":s3cret@"+srv.Addr+"?prefix="+tt.user, redisstore.Options{Warn: func(code, _ string) { codes = append(codes, code) }})
			if !slices.Equal(codes, []string{tt.warning}) {
				t.Errorf("warnings are %q; want %q", codes, tt.warning)
			}
			create(t, s, hapax.Tag{Name: "t"})
			allocate(t, s, "t", 1)
		})
	}
	t.Run("as documented", func(t *testing.T) { // in docs/choosing-a-store.md
		args := []any{"acl", "setuser", "small", "on", ">s3cret"}
		for right := range strings.FieldsSeq("~hapax:* +@connection +@hash +@sortedset +get +set +del +exists +eval +evalsha +info +config|get +time +wait") {
			args = append(args, right)
		}
		if err := c.Do(ctx, args...).Err(); err != nil {
			t.Fatal(err)
		}
		s := open(t, "redis://small:s3cret@"+srv.Addr, redisstore.Options{Warn: func(code, message string) { t.Errorf("warning %s: %s", code, message) }})
		create(t, s, hapax.Tag{Name: "t"})
		allocate(t, s, "t", 1)
		lease := acquire(t, s)
		must[hapax.Lease](t)(extend(ctx, t, s, lease, time.Minute))
		must[[]hapax.Tag](t)(s.Tags(ctx, "", 10))
		must[time.Time](t)(s.StoreTime(ctx))
	})
	for _, login := range []string{"half:s3cret2", "nobody:s3cret2"} {
		_, err := redisstore.Open(ctx, "redis://"+login+"@"+srv.Addr, redisstore.Options{})
		wantErr(t, login, err, hapax.ErrStoreUnavailable)
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

func TestStoreTime(t *testing.T) {
	s := open(t, testservers.Redis(t).URL, redisstore.Options{})
	now := must[time.Time](t)(s.StoreTime(t.Context()))
	if d := time.Since(now).Abs(); d > time.Minute {
		t.Errorf("the server's clock is %v away", d)
	}
}

func BenchmarkAllocate(b *testing.B) {
	s := open(b, testservers.Redis(b).URL, redisstore.Options{Prefix: "bench:"})
	if _, err := s.Tag(b.Context(), "t"); err != nil {
		create(b, s, hapax.Tag{Name: "t"})
	}
	for b.Loop() {
		allocate(b, s, "t", 0)
	}
}
