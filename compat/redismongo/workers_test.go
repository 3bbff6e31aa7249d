package redismongo_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/identity"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// client is the instance of the documented example.
var client = redismongo.Instance{Name: "sequence-client", Port: 8112, IP: netip.MustParseAddr("192.168.1.102")}

func nth(n int) redismongo.Instance {
	i := client
	i.Port = uint16(n)
	return i
}

// services are the worker IDs of services, counted from 1.
var services = hapax.WorkerRange{Lo: 1, Hi: 256}

func TestInstanceNames(t *testing.T) {
	if k := client.Key(); k != "sequence-client.8112.3232235878" {
		t.Errorf("the key is %s", k)
	}
	i := client
	i.IP = netip.MustParseAddr("192.168.0.222")
	if f := i.File(); f != "sequence-client:8112:3232235742.properties" {
		t.Errorf("the file is %s", f)
	}
	i.IP = netip.MustParseAddr("::ffff:192.168.0.222")
	if f := i.File(); f != "sequence-client:8112:3232235742.properties" {
		t.Errorf("the file of the mapped address is %s", f)
	}
	i.IP = netip.MustParseAddr("fd00::1")
	if k := i.Key(); k != "sequence-client.8112.336294682933583715844663186250927177729" {
		t.Errorf("the key of an IPv6 address is %s", k)
	}
	for name, bad := range map[string]redismongo.Instance{
		"no name":        {Port: 1, IP: client.IP},
		"a path":         {Name: "../etc", Port: 1, IP: client.IP},
		"hidden":         {Name: ".x", Port: 1, IP: client.IP},
		"a colon":        {Name: "a:b", Port: 1, IP: client.IP},
		"a line break":   {Name: "a\nb", Port: 1, IP: client.IP},
		"long":           {Name: strings.Repeat("x", 101), Port: 1, IP: client.IP},
		"no port":        {Name: "a", IP: client.IP},
		"no address":     {Name: "a", Port: 1},
		"a link's scope": {Name: "a", Port: 1, IP: netip.MustParseAddr("fe80::1%eth0")},
	} {
		s := redismongo.Sticky{Registry: &table{}, Instance: bad, Dir: t.TempDir()}
		if _, err := s.Worker(t.Context(), services); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A table is a registry in memory.
type table struct {
	ids  map[string]int64
	away bool
}

func (r *table) Register(_ context.Context, key string, ids hapax.WorkerRange, wanted int64) (int64, error) {
	if r.away {
		return 0, hapax.ErrStoreUnavailable
	}
	if r.ids == nil {
		r.ids = map[string]int64{}
	}
	if _, ok := r.ids[key]; !ok {
		r.ids[key] = max(wanted, ids.Lo)
	}
	return r.ids[key], nil
}

func TestLocalFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, client.File())
	r := &table{away: true}
	s := redismongo.Sticky{Registry: r, Instance: client, Dir: dir}
	if _, err := s.Worker(t.Context(), services); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("neither registry nor file: %v", err)
	}
	r.away, r.ids = false, map[string]int64{client.Key(): 7}
	want := func(when string, id int64, content string) {
		t.Helper()
		got, err := s.Worker(t.Context(), services)
		raw, _ := os.ReadFile(path)
		if err != nil || got != id || string(raw) != content {
			t.Errorf("%s: worker ID %d, error %v, file %q", when, got, err, raw)
		}
	}
	want("from the registry", 7, "workerId=7\n")
	r.away = true
	want("from the file", 7, "workerId=7\n")
	r.away, r.ids = false, nil
	want("a registry that was emptied", 7, "workerId=7\n")
	r.ids[client.Key()] = 9
	want("a registry that knows better", 9, "workerId=9\n")

	for name, content := range map[string]string{
		"empty": "", "no number": "workerId=x", "negative": "workerId=-1", "outside": "workerId=256", "below": "workerId=0",
		"twice": "workerId=1\nworkerId=2", "another key": "worker=1", "large": "workerId=1\n" + strings.Repeat("#", 5000),
		"overflow": "workerId=18446744073709551617", "no value": "workerId",
	} {
		must(t, os.WriteFile(path, []byte(content), 0o600))
		r.away = true
		if id, err := s.Worker(t.Context(), services); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: worker ID %d, error %v", name, id, err)
		}
		r.away = false
		want(name+", with the registry", 9, "workerId=9\n")
	}
	for name, content := range map[string]string{
		"as Java writes it": "#Sun Nov 22 00:00:00 UTC 2026\nworkerId=3\n",
		"spaces":            "  workerId : 3  \r\n", "other lines": "! note\nname=x\nWORKERID 3",
	} {
		must(t, os.WriteFile(path, []byte(content), 0o600))
		r.away = true
		if id, err := s.Worker(t.Context(), services); id != 3 || err != nil {
			t.Errorf("%s: worker ID %d, error %v", name, id, err)
		}
	}
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o700))
	r.away = false
	if _, err := s.Worker(t.Context(), services); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a directory in the file's place: %v", err)
	}
	r.ids[client.Key()] = 256
	s.Dir = ""
	if _, err := s.Worker(t.Context(), services); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("a worker ID from a registry that is none: %v", err)
	}
}

// TestRegistries has instances come again and again, at the same time, until no worker
// ID is left.
func TestRegistries(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	keeper := testservers.SharedZooKeeper(t)
	for name, r := range map[string]redismongo.Registry{
		"redis":            redismongo.RedisRegistry{Client: rdb},
		"redis, no script": redismongo.RedisRegistry{Client: rdb, Key: "other", WithoutEval: true},
		"zookeeper":        redismongo.ZooKeeperRegistry{URL: keeper.URL + "/" + rand.Text() + "/workers"},
	} {
		t.Run(name, func(t *testing.T) {
			few := hapax.WorkerRange{Lo: 1, Hi: 7}
			ask := func(i redismongo.Instance) (int64, error) {
				return redismongo.Sticky{Registry: r, Instance: i, Timeout: patience.Long}.Worker(t.Context(), few)
			}
			first, err := ask(client)
			if err != nil || first != 1 {
				t.Fatalf("the first instance has worker ID %d, error %v", first, err)
			}
			var wg sync.WaitGroup
			ids := make([]int64, 10)
			for k := range ids { // each of five instances twice
				wg.Go(func() {
					id, err := ask(nth(1 + k/2))
					if err != nil {
						t.Error(err)
					}
					ids[k] = id
				})
			}
			wg.Wait()
			for k := 0; k < len(ids); k += 2 {
				if ids[k] != ids[k+1] {
					t.Errorf("an instance has the worker IDs %d and %d", ids[k], ids[k+1])
				}
			}
			slices.Sort(ids)
			if got := fmt.Sprint(slices.Compact(ids)); got != "[2 3 4 5 6]" {
				t.Errorf("the instances have %s", got)
			}
			if _, err := ask(nth(99)); !errors.Is(err, hapax.ErrNoWorker) {
				t.Errorf("one instance too many: %v", err)
			}
			if again, err := ask(client); again != first || err != nil {
				t.Errorf("the first instance comes again with worker ID %d, error %v", again, err)
			}
			wants, err := r.Register(t.Context(), "wants.1.2", hapax.WorkerRange{Lo: 1, Hi: 100}, 42)
			if err != nil || wants != 42 {
				t.Errorf("who wants 42 gets %d, error %v", wants, err)
			}
			if other, err := r.Register(t.Context(), "wants.1.3", hapax.WorkerRange{Lo: 1, Hi: 100}, 42); err != nil || other != 7 {
				t.Errorf("who wants what is taken gets %d, error %v", other, err)
			}
		})
	}
	if h := rdb.HGetAll(t.Context(), redismongo.DefaultWorkersKey).Val(); h[client.Key()] != "1" {
		t.Errorf("the hash is %v", h)
	}
}

func TestRegistriesInTrouble(t *testing.T) {
	server := testservers.Redis(t, forgets...)
	rdb := connect(t, server)
	ctx := t.Context()
	must(t, rdb.Set(ctx, "text", "x", 0).Err())
	must(t, rdb.HSet(ctx, "odd", client.Key(), "x").Err())
	for key, want := range map[string]*hapax.Error{"text": hapax.ErrStoreCorrupt, "odd": hapax.ErrStoreCorrupt} {
		r := redismongo.RedisRegistry{Client: rdb, Key: key}
		if _, err := r.Register(ctx, client.Key(), services, -1); !errors.Is(err, want) {
			t.Errorf("%s: %v", key, err)
		}
	}
	server.Kill()
	for name, r := range map[string]redismongo.Registry{
		"redis":     redismongo.RedisRegistry{Client: rdb},
		"zookeeper": redismongo.ZooKeeperRegistry{URL: fmt.Sprintf("zk://127.0.0.1:%d", testservers.FreePort(t))},
	} {
		s := redismongo.Sticky{Registry: r, Instance: client, Timeout: 300 * time.Millisecond}
		if _, err := s.Worker(ctx, services); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("%s is away: %v", name, err)
		}
	}
	for _, url := range []string{"", "zk://", "redis://h", "zk://h//x", "zk://h/..", "zk://h?x", "zk://u%zz:p@h", "zk://" + strings.Repeat("h,", 40) + "h"} {
		if err := (redismongo.ZooKeeperRegistry{URL: url}).Validate(); !errors.Is(err, hapax.ErrInvalidArgument) || strings.Contains(err.Error(), "zz") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// TestSameWorker gives two instances the same worker ID in each of the ways in which that
// happens: the second one waits, and issues nothing meanwhile.
func TestSameWorker(t *testing.T) {
	rdb := connect(t, testservers.Redis(t, forgets...))
	const other = 9000
	for name, second := range map[string]func(t *testing.T, first redismongo.Sticky) redismongo.Sticky{
		"the same name": func(_ *testing.T, first redismongo.Sticky) redismongo.Sticky { return first },
		"a copied file": func(t *testing.T, first redismongo.Sticky) redismongo.Sticky {
			raw, err := os.ReadFile(filepath.Join(first.Dir, first.Instance.File()))
			must(t, err)
			s := redismongo.Sticky{Registry: &table{away: true}, Instance: nth(other), Dir: t.TempDir()}
			must(t, os.WriteFile(filepath.Join(s.Dir, s.Instance.File()), raw, 0o600))
			return s
		},
		"a registry that was emptied": func(t *testing.T, first redismongo.Sticky) redismongo.Sticky {
			must(t, rdb.FlushAll(t.Context()).Err())
			return redismongo.Sticky{Registry: first.Registry, Instance: nth(other), Dir: t.TempDir()}
		},
		"a registry that was edited": func(t *testing.T, first redismongo.Sticky) redismongo.Sticky {
			must(t, rdb.HSet(t.Context(), redismongo.DefaultWorkersKey, nth(other).Key(), "0").Err())
			return redismongo.Sticky{Registry: first.Registry, Instance: nth(other)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, rdb.FlushAll(t.Context()).Err())
			store := memstore.New()
			open := func(ctx context.Context, s redismongo.Sticky) (*hapax.Snowflake, error) {
				id, err := s.Worker(ctx, hapax.WorkerRange{Lo: 0, Hi: 1024})
				must(t, err)
				if id != 0 {
					t.Fatalf("the worker ID is %d; both are to have 0", id)
				}
				var opts hapax.SnowflakeOptions
				identity.Choice{IDs: hapax.WorkerRange{Lo: id, Hi: id + 1}}.Apply(&opts)
				return hapax.NewSnowflake(ctx, store, opts)
			}
			first := redismongo.Sticky{Registry: redismongo.RedisRegistry{Client: rdb}, Instance: client, Dir: t.TempDir()}
			a, err := open(t.Context(), first)
			must(t, err)
			issued := map[hapax.ID]bool{}
			issue := func(f *hapax.Snowflake) {
				t.Helper()
				dst := make([]hapax.ID, 1000)
				_, err := f.NextN(t.Context(), dst)
				must(t, err)
				for _, id := range dst {
					if issued[id] {
						t.Fatalf("%d was issued twice", id)
					}
					issued[id] = true
				}
			}
			issue(a)
			twin := second(t, first)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := open(ctx, twin); !errors.Is(err, hapax.ErrNoWorker) {
				t.Errorf("while the first one lives: %v", err)
			}
			issue(a)
			must(t, a.Close(t.Context()))
			z, err := open(t.Context(), twin)
			must(t, err)
			issue(z)
			must(t, z.Close(t.Context()))
		})
	}
}
