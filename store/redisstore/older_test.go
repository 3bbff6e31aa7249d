package redisstore_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/redisstore"
)

// load starts a server with the keys of an older version, as its server left them that was
// stopped after 300 numbers of the tag "orders" and two of the pool "default".
func load(t *testing.T, version string) (url string, c *redis.Client) {
	t.Helper()
	commands, err := os.ReadFile("testdata/" + version + ".json")
	if err != nil {
		t.Fatal(err)
	}
	url = testservers.Redis(t).URL
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c = redis.NewClient(opts)
	t.Cleanup(func() { c.Close() })
	if err := c.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(commands)) {
		var words []any
		if err := json.Unmarshal([]byte(line), &words); err != nil {
			t.Fatal(err)
		}
		if err := c.Do(t.Context(), words...).Err(); err != nil {
			t.Fatal(line, err)
		}
	}
	return url, c
}

// Keys of older versions go on where those ended, whoever opens them first, and however
// often they are opened.
func TestKeysOfOlderVersions(t *testing.T) {
	for version, next := range map[string]int64{"9fd0ef2": 2001, "04c10f7": 301} {
		t.Run(version, func(t *testing.T) {
			url, c := load(t, version)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if s, err := redisstore.Open(t.Context(), url, redisstore.Options{Timeout: patience.Call}); err != nil {
						t.Error(err)
					} else if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for start := range int64(3) {
				s, err := redisstore.Open(t.Context(), url, redisstore.Options{Timeout: patience.Call})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.ExcludeOlder(t.Context()); err != nil {
					t.Fatal(err)
				}
				a, err := s.Allocate(t.Context(), "orders", 10, "")
				if want := (hapax.Grant{Lo: next + 10*start, Hi: next + 10*start + 10}); err != nil || a.Grant != want || a.Tag.Delta != 1 {
					t.Errorf("start %d: granted %v of %+v, %v; want %v", start, a.Grant, a.Tag, err, want)
				}
				workers, err := s.Workers(t.Context(), "default")
				if err != nil || len(workers) != 1 || workers[0].ID != 0 || workers[0].Mark < 500_000_000_000 || workers[0].Token < 2 || workers[0].Holder == "" {
					t.Errorf("start %d: the workers are %+v, %v", start, workers, err)
				}
				pools, err := s.Pools(t.Context())
				if err != nil || len(pools) != 1 || pools[0].Layout == "" {
					t.Errorf("start %d: the pools are %+v, %v", start, pools, err)
				}
				if tags, err := s.Tags(t.Context(), "", 10); err != nil || len(tags) != 3 || !tags[0].Deleted || tags[2].Delta != 0 {
					t.Errorf("start %d: the tags are %+v, %v", start, tags, err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			// A program of either version reads the format first, and knows its own alone.
			if is := c.HGet(t.Context(), "hapax:{hapax}:store", "format").Val(); is != "3" {
				t.Errorf("the format is %q", is)
			}
			// One of the first version that still runs goes to its own keys.
			if version == "9fd0ef2" {
				if err := c.HGetAll(t.Context(), "hapax:{hapax}:pools").Err(); !redis.HasErrorPrefix(err, "WRONGTYPE") {
					t.Errorf("it can read pools: %v", err)
				}
				if id := c.HGet(t.Context(), "hapax:workers:default", "store").Val(); id != "" {
					t.Errorf("it can write workers of store %q", id)
				}
			}
		})
	}
}

// A node of the first version that holds a worker ID is waited for, by name, and a
// migration that was cut short is taken up again.
func TestLivingNodeOfTheFirstVersion(t *testing.T) {
	url, c := load(t, "9fd0ef2")
	set := func(expires time.Time) {
		t.Helper()
		row := fmt.Sprintf("2 506532732971 %d node 7", expires.UnixMilli())
		if err := c.HSet(t.Context(), "hapax:workers:default", "0", row).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set(time.Now().Add(time.Hour))
	_, err := redisstore.Open(t.Context(), url, redisstore.Options{})
	wantErr(t, "beside a living node", err, hapax.ErrStoreUnavailable)
	if !strings.Contains(err.Error(), `node "node 7" of an older version, which holds worker 0 of pool "default" until`) {
		t.Errorf("the error is %v", err)
	}
	set(time.Now().Add(-time.Minute))
	s, err := redisstore.Open(t.Context(), url, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if what := s.Migrated(); !strings.Contains(what, "keys of format 1 became keys of format 3: 3 tags, 2 pools and workers") {
		t.Errorf("the store says that it changed %q", what)
	}
	if err := c.HSet(t.Context(), "hapax:{hapax}:store", "format", "1, to 3").Err(); err != nil {
		t.Fatal(err)
	}
	const worker = "0000000000000000000"
	raw, err := s.Row(t.Context(), "workers/default", worker)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := s.SwapRow(t.Context(), "workers/default", worker, raw, nil); err != nil || !ok {
		t.Fatal(ok, err)
	}
	again, err := redisstore.Open(t.Context(), url, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if workers, err := again.Workers(t.Context(), "default"); err != nil || len(workers) != 1 {
		t.Errorf("the workers are %+v, %v", workers, err)
	}
	for _, s := range []*redisstore.Store{s, again} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
