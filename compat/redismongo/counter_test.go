package redismongo

import (
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// Scripts and transactions do the same to whatever a hash holds.
func TestCountersAgree(t *testing.T) {
	server := testservers.Redis(t, "--appendonly", "no")
	o, err := redis.ParseURL(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	ctx := t.Context()
	const key = "k{t}"
	counters := []counter{scripts{rdb, []string{key}, patience.Call}, newTransactions(rdb, key, patience.Call)}
	first, err := counters[1].take(ctx, asking{right: "r", threshold: 20})
	if err != nil || first.fetch == nil {
		t.Fatalf("got %+v, %v", first, err)
	}
	is := first.fetch.server
	random := rand.New(rand.NewPCG(8, 23))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	for range 1500 {
		now := time.Now().UnixMilli()
		hash := map[string]string{}
		put := func(field string, of ...string) {
			if value := pick(of...); value != "" {
				hash[field] = value
			}
		}
		put("store", "", "here", "here", "there")
		put("srv", "", is, is, is, "old "+is[41:])
		put("cur", "", "0", "95", "95", "100", "100", "120")
		put("max", "", "100", "100", "100", "90")
		put("step", "", "10", "10", "100", "0")
		put("ncur", "", "", "100", "100", "150", "90")
		put("nmax", "", "", "160", "160", "150")
		put("at", "", "0", strconv.FormatInt(now-3_600_000, 10))
		put("load", "", "", "r "+is, "other "+is, "r old")
		put("until", "", strconv.FormatInt(now+3_600_000, 10), "1")
		ask := asking{
			n: random.IntN(4) * 3, seen: int64(random.IntN(3) * 50), threshold: 1 + random.IntN(100),
			right: pick("r", "mine"), store: pick("", "here"),
		}
		in := installing{server: pick(is, is, "old"), right: pick("r", "r", "mine"), store: ask.store}
		if lo := int64(random.IntN(4) * 50); random.IntN(4) > 0 {
			in.grant = hapax.Grant{Lo: 1 + lo, Hi: 11 + lo}
		}
		type outcome struct {
			taking
			fetch fetching
			top   string
			hash  map[string]string
		}
		run := func(c counter, taking bool) (o outcome) {
			t.Helper()
			if err := rdb.Del(ctx, key).Err(); err != nil {
				t.Fatal(err)
			}
			if len(hash) > 0 {
				if err := rdb.HSet(ctx, key, hash).Err(); err != nil {
					t.Fatal(err)
				}
			}
			var err error
			if taking {
				o.taking, err = c.take(ctx, ask)
			} else {
				o.top, err = c.install(ctx, in)
			}
			if err != nil {
				t.Fatalf("%+v: %v", hash, err)
			}
			if f := o.taking.fetch; f != nil {
				o.fetch = *f
				o.fetch.age = o.fetch.age.Round(time.Hour) // the calls are not at the same time
				if f.age < 0 {
					o.fetch.age = -1
				}
				o.taking.fetch = nil
			}
			o.hash = rdb.HGetAll(ctx, key).Val()
			for _, field := range []string{"at", "until"} {
				if is := o.hash[field]; is != "" && is != hash[field] {
					o.hash[field] = "set"
				}
			}
			return o
		}
		for _, taking := range []bool{true, false} {
			a, z := run(counters[0], taking), run(counters[1], taking)
			if a.taking != z.taking || a.fetch != z.fetch || a.top != z.top || !maps.Equal(a.hash, z.hash) {
				t.Fatalf("%v with %+v, taking %v as %+v or installing %+v:\nscripts      %+v\ntransactions %+v", server.URL, hash, taking, ask, in, a, z)
			}
		}
	}
}
