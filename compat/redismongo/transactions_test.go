package redismongo_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// mixed opens two issuers that run scripts and two that do without.
func mixed(t testing.TB, opts redismongo.Options) []*redismongo.Issuer {
	t.Helper()
	server, store := testservers.Redis(t, forgets...), memstore.New()
	var is []*redismongo.Issuer
	for k := range 4 {
		opts.WithoutEval = k%2 == 0
		is = append(is, issuer(t, connect(t, server), store, opts))
	}
	return is
}

// Processes that run no scripts share the order of those that do.
func TestBothWaysTogether(t *testing.T) {
	is := mixed(t, fixed(40))
	linear(t, hammer(t, is, 100))
	for k, i := range is {
		if s := i.Stats(); s.Away || s.Local.Issued != 0 || s.FromRedis == 0 {
			t.Errorf("node %d: %+v", k, s)
		}
	}
}

// Without WATCH two processes write what both have read, and numbers repeat.
func TestTwinWithoutWatch(t *testing.T) {
	defer redismongo.BreakWatch()()
	is := mixed(t, fixed(1000))
	var all []hapax.ID
	for _, o := range hammer(t, []*redismongo.Issuer{is[0], is[2]}, 300) {
		all = append(all, o.ids...)
	}
	issued := len(all)
	slices.Sort(all)
	if len(slices.Compact(all)) == issued {
		t.Error("no number came twice")
	}
}

func TestFaultsWithoutEval(t *testing.T) {
	opts := refusing
	opts.WithoutEval = true
	if repeats, issued := orders(t, 1, opts); len(repeats) > 0 || issued < 500 {
		t.Errorf("%d numbers, of which came twice: %v", issued, repeats)
	}
}

func TestAccountWithoutEval(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	account := func(rules ...any) *redis.Client {
		must(t, rdb.Do(t.Context(), append([]any{"ACL", "SETUSER", "app", "reset", "on", "nopass", "~hapax:*"}, rules...)...).Err())
		o := *rdb.Options()
		o.Username, o.Password = "app", "any"
		c := redis.NewClient(&o)
		t.Cleanup(func() { c.Close() })
		return c
	}
	needed := []any{"+watch", "+unwatch", "+multi", "+exec", "+info", "+time", "+hmget", "+hset", "+hdel"}
	opts := fixed(50)
	opts.WithoutEval = true
	b := &book{t: t}
	b.rising(120, issuer(t, account(needed...), memstore.New(), opts))
	opts.Timeout = patience.Long
	for k := range needed {
		if needed[k] == "+unwatch" { // for a connection that was given up
			continue
		}
		c := account(slices.Delete(slices.Clone(needed), k, k+1)...)
		opts.Prefix = "hapax:without" + needed[k].(string)
		i, err := redismongo.New(t.Context(), c, memstore.New(), "orders", opts)
		if err == nil { // only who fetches a segment needs it
			_, err = i.Next(t.Context())
			must(t, i.Close(t.Context()))
		}
		if !errors.Is(err, hapax.ErrStoreUnsafe) {
			t.Errorf("without %s: %v", needed[k], err)
		}
	}
	r := redismongo.RedisRegistry{Client: account("+watch", "+unwatch", "+multi", "+exec", "+hgetall", "+hset"), Key: "hapax:workers", WithoutEval: true}
	if id, err := r.Register(t.Context(), client.Key(), services, -1); err != nil || id != 1 {
		t.Errorf("worker ID %d, %v", id, err)
	}
	r.WithoutEval = false
	if _, err := r.Register(t.Context(), nth(5).Key(), services, -1); !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("a registry by script: %v", err)
	}
}

// The step of a hash that somebody else left is that of the first segment.
func TestForeignStep(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	must(t, rdb.HSet(t.Context(), "hapax:seq:{orders}", "cur", 90, "max", 99, "step", 250).Err())
	i := issuer(t, rdb, memstore.New(), redismongo.Options{Start: 100, Step: 40})
	b := &book{t: t}
	b.rising(1, i)
	if got := rdb.HMGet(t.Context(), "hapax:seq:{orders}", "cur", "max", "step").Val(); b.all[0] != 100 || got[0] != "100" || got[1] != "349" || got[2] != "250" {
		t.Errorf("got %d; the hash has %v", b.all[0], got)
	}
}
