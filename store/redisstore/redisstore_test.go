package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return redisstore.Open(ctx, url, redisstore.Options{})
	})
}

// open opens a store that the test's end closes. Its time limit is not the store's.
func open(t testing.TB, url string, opts redisstore.Options) *redisstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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
	for end := time.Now().Add(30 * time.Second); ; {
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
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		a, err := s.Allocate(t.Context(), tag, 1, "")
		if err == nil || want != nil && errors.Is(err, want) || ctx.Err() != nil {
			return a.Grant, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func wantErr(t testing.TB, what string, err error, sentinel *hapax.Error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: error is %v; want %v", what, err, sentinel)
	}
}

func TestConformance(t *testing.T) {
	srv := testservers.Redis(t)
	storetest.Run(t, storetest.Harness{
		Open:         func(t testing.TB) storetest.Handle { return open(t, srv.URL, redisstore.Options{}) },
		URL:          srv.URL,
		Capabilities: storetest.Capabilities{Shared: true},
	})
}

func TestConformanceInCluster(t *testing.T) {
	url := testservers.RedisCluster(t)[0].URL
	storetest.Run(t, storetest.Harness{
		Open:         func(t testing.TB) storetest.Handle { return open(t, url, redisstore.Options{}) },
		URL:          url,
		Capabilities: storetest.Capabilities{Shared: true},
	})
}

// Lua's numbers lose integers above 2^53; marks must not.
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
	if tag := must[hapax.Tag](t)(s.UpdateTag(t.Context(), "floor", hapax.TagUpdate{Floor: &floor})); tag.Mark != floor {
		t.Errorf("mark is %d; want %d", tag.Mark, floor)
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

	s := open(t, srv.URL, redisstore.Options{})
	for _, mark := range []string{"", "abc", "-5", "1.5", "1e9", "00000000000000000000000001"} {
		create(t, s, hapax.Tag{Name: "t" + mark})
		c.HSet(ctx, "hapax:tag:t"+mark, "mark", mark)
		a, err := s.Allocate(ctx, "t"+mark, 1, "")
		if err == nil {
			t.Errorf("mark %q: %v was granted", mark, a.Grant)
		}
		if got := c.HGet(ctx, "hapax:tag:t"+mark, "mark").Val(); got != mark {
			t.Errorf("mark %q became %q", mark, got)
		}
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
