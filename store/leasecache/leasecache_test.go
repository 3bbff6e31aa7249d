package leasecache

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/fileid"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func openCache(t *testing.T, path string, upstream Upstream) *Cache {
	t.Helper()
	c, err := Open(t.Context(), path, upstream, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// modern moves virtual time, which begins in the year 2000, past every token.
type modern struct{ start time.Time }

func (m modern) Now() (time.Time, time.Duration) {
	now := time.Now()
	return now.AddDate(26, 0, 0), now.Sub(m.start)
}

// inVirtualTime runs a test in a bubble, with a store that can be taken away.
func inVirtualTime(t *testing.T, f func(t *testing.T, store *storetest.Faults, opts hapax.SnowflakeOptions)) {
	synctest.Test(t, func(t *testing.T) {
		opts := hapax.SnowflakeOptions{Holder: "me", Clock: modern{time.Now()}, Grant: time.Minute, KeepWarm: true}
		f(t, storetest.NewFaults(memstore.New()), opts)
	})
}

// issue takes numbers for a while, which must rise above those before.
func issue(t *testing.T, s *hapax.Snowflake, seen []hapax.ID, during time.Duration) []hapax.ID {
	t.Helper()
	for over := time.Now().Add(during); time.Now().Before(over); time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		id, err := s.Next(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) > 0 && id <= seen[len(seen)-1] {
			t.Fatalf("after %d came %d", seen[len(seen)-1], id)
		}
		seen = append(seen, id)
	}
	return seen
}

// crash ends an issuer as a crash does: nothing reaches the store or the file.
func crash(t *testing.T, s *hapax.Snowflake, c *Cache) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_ = s.Close(context.Background()) // the cache is closed, so that nothing is sealed
}

// An issuer that crashes while the store is away goes on with the same worker ID,
// above what it issued, as long as the granted time lasts, and not longer.
func TestStartWithoutTheStore(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store *storetest.Faults, opts hapax.SnowflakeOptions) {
		path := filepath.Join(t.TempDir(), "lease")
		c := openCache(t, path, store)
		s, err := hapax.NewSnowflake(t.Context(), c, opts)
		if err != nil {
			t.Fatal(err)
		}
		seen := issue(t, s, nil, 20*time.Second)
		worker, token := s.Stats().Worker, s.Stats().Token
		granted, err := store.Workers(t.Context(), hapax.DefaultPool)
		if err != nil {
			t.Fatal(err)
		}
		store.Down()
		for range 3 {
			crash(t, s, c)
			c = openCache(t, path, store)
			if s, err = hapax.NewSnowflake(t.Context(), c, opts); err != nil {
				t.Fatal(err)
			}
			if st := s.Stats(); st.Worker != worker || st.Token != token {
				t.Fatalf("it goes on with worker %d, token %d; it had worker %d, token %d", st.Worker, st.Token, worker, token)
			}
			seen = issue(t, s, seen, 5*time.Second)
		}
		time.Sleep(10 * time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Next(ctx); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("when the granted time is over the error is %v", err)
		}
		leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range seen {
			if at, err := leaf.Time(id); err != nil || !at.Before(leaf.TimeOf(granted[0].Mark)) {
				t.Fatalf("%d was issued at %v, error %v; granted was up to %v", id, at, err, leaf.TimeOf(granted[0].Mark))
			}
		}
		crash(t, s, c)
		c = openCache(t, path, store)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := hapax.NewSnowflake(ctx, c, opts); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a start after the granted time: error is %v", err)
		}
		store.Up()
		if s, err = hapax.NewSnowflake(t.Context(), c, opts); err != nil {
			t.Fatal(err)
		}
		issue(t, s, seen, time.Second)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A graceful stop gives the lease back; one while the store is away keeps it for
// the next start.
func TestCacheSeal(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store *storetest.Faults, opts hapax.SnowflakeOptions) {
		path := filepath.Join(t.TempDir(), "lease")
		var seen []hapax.ID
		run := func(down bool) {
			t.Helper()
			c := openCache(t, path, store)
			s, err := hapax.NewSnowflake(t.Context(), c, opts)
			if err != nil {
				t.Fatal(err)
			}
			seen = issue(t, s, seen, 5*time.Second)
			if down {
				store.Down()
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		run(false)
		rows, err := store.Workers(t.Context(), hapax.DefaultPool)
		if err != nil || len(rows) != 1 || rows[0].Token != 2 {
			t.Fatalf("after a stop the workers are %+v, error %v", rows, err)
		}
		run(true) // a new lease, kept in the file
		run(true) // the same
		store.Up()
		if rows, err = store.Workers(t.Context(), hapax.DefaultPool); err != nil || len(rows) != 1 || rows[0].Token != 3 {
			t.Fatalf("after two stops without the store the workers are %+v, error %v", rows, err)
		}
		run(false)
		if rows, err = store.Workers(t.Context(), hapax.DefaultPool); err != nil || len(rows) != 1 || rows[0].Token != 4 {
			t.Fatalf("after a stop with the store again the workers are %+v, error %v", rows, err)
		}
	})
}

// The lease in a copied, damaged or foreign file is not used; the store is asked.
func TestCacheFallsBack(t *testing.T) {
	for name, spoil := range map[string]struct {
		file func(t *testing.T, path string, data []byte)
		opts func(*hapax.SnowflakeOptions)
		code hapax.Code
	}{
		"copied": {file: func(t *testing.T, path string, data []byte) {
			rename(t, path)
			write(t, path, data)
		}, code: "store_copied"},
		"damaged": {file: func(t *testing.T, path string, data []byte) { data[20] ^= 1; write(t, path, data) }, code: "store_corrupt"},
		"cut":     {file: func(t *testing.T, path string, data []byte) { write(t, path, data[:len(data)/2]) }, code: "store_corrupt"},
		"empty":   {file: func(t *testing.T, path string, _ []byte) { write(t, path, nil) }, code: "store_corrupt"},
		"another boot": {file: func(t *testing.T, path string, data []byte) {
			if fileid.Boot() == "" {
				t.Skip("the system does not tell one boot from another")
			}
			var k kept
			text, _, _ := bytes.Cut(data, []byte("\n"))
			if err := json.Unmarshal(text, &k); err != nil {
				t.Fatal(err)
			}
			if k.Boot == "" {
				t.Fatal("the file does not tell the boot")
			}
			text = bytes.Replace(text, []byte(k.Boot), []byte("another"), 1)
			write(t, path, fmt.Appendf(text, "\n%08x\n", checksum(text)))
		}, code: "store_copied"},
		"gone":           {file: func(t *testing.T, path string, _ []byte) { rename(t, path) }},
		"another holder": {opts: func(o *hapax.SnowflakeOptions) { o.Holder = "you" }},
		"other workers":  {opts: func(o *hapax.SnowflakeOptions) { o.Workers = hapax.WorkerRange{Lo: 5, Hi: 7} }},
		"another list":   {opts: func(o *hapax.SnowflakeOptions) { o.Among = []int64{8, 9} }},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, store *storetest.Faults, opts hapax.SnowflakeOptions) {
				path := filepath.Join(t.TempDir(), "lease")
				c := openCache(t, path, store)
				s, err := hapax.NewSnowflake(t.Context(), c, opts)
				if err != nil {
					t.Fatal(err)
				}
				seen := issue(t, s, nil, time.Second)
				crash(t, s, c)
				if spoil.file != nil {
					data, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					spoil.file(t, path, data)
				}
				if spoil.opts != nil {
					spoil.opts(&opts)
				}
				var warned hapax.Code
				c, err = Open(t.Context(), path, store, Options{Warn: func(code, _ string) { warned = hapax.Code(code) }})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				store.Down()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := hapax.NewSnowflake(ctx, c, opts); !errors.Is(err, hapax.ErrStoreUnavailable) {
					t.Fatalf("without the store the error is %v", err)
				}
				store.Up()
				if s, err = hapax.NewSnowflake(t.Context(), c, opts); err != nil {
					t.Fatal(err)
				}
				if s.Stats().Worker == 0 || warned != spoil.code {
					t.Errorf("it took worker %d and warned of %q; want another than 0, and %q", s.Stats().Worker, warned, spoil.code)
				}
				issue(t, s, seen, time.Second)
				_ = s.Close(t.Context())
			})
		})
	}
}

// A lease that a newer version has written is refused, by both formats, and left as it is.
func TestLeaseOfANewerVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lease")
	text := []byte(`{"format":"hapax lease 3","file":{},"store":"S","layout":"L","more":1}`)
	text = fmt.Appendf(slices.Clone(text), "\n%08x\n", checksum(text))
	write(t, path, text)
	_, err := Open(t.Context(), path, memstore.New(), Options{})
	if want := `its format is "hapax lease 3", and this version, hapax ` + hapax.Version() + `, reads "hapax lease 2"`; !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v; want %s", err, want)
	}
	if raw, err := os.ReadFile(path); err != nil || !bytes.Equal(raw, text) {
		t.Errorf("the file became %q, %v", raw, err)
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, path string) {
	t.Helper()
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
}

// wantError checks sentinel and text of an error.
func wantError(t *testing.T, err error, sentinel *hapax.Error, parts ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) || hapax.CodeOf(err) != sentinel.Code() {
		t.Fatalf("error is %v; want %v", err, sentinel)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error is %q; want it to say %q", err, part)
		}
	}
}

// Two processes cannot have one cache.
func TestCacheIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lease")
	c := openCache(t, path, memstore.New())
	_, err := Open(t.Context(), path, memstore.New(), Options{})
	wantError(t, err, hapax.ErrStoreLocked, path)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	openCache(t, path, memstore.New())
	_, err = Open(t.Context(), filepath.Join(path, "none", "x"), memstore.New(), Options{})
	wantError(t, err, hapax.ErrStoreUnavailable)
	for _, part := range []time.Duration{-1, time.Millisecond - 1, hapax.DefaultMaxGrant + 1, time.Hour} {
		_, err = Open(t.Context(), path, memstore.New(), Options{Part: part})
		wantError(t, err, hapax.ErrInvalidArgument, "part")
	}
	for _, part := range []time.Duration{time.Millisecond, hapax.DefaultMaxGrant} {
		c, err := Open(t.Context(), filepath.Join(t.TempDir(), "lease"), memstore.New(), Options{Part: part})
		if err != nil {
			t.Fatalf("a part of %v: %v", part, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Where the file cannot be written the store's leases pass, and a lease that is
// in the file gets no further.
func TestCacheWithoutAFile(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store *storetest.Faults, opts hapax.SnowflakeOptions) {
		path := filepath.Join(t.TempDir(), "lease")
		c := openCache(t, path, store)
		s, err := hapax.NewSnowflake(t.Context(), c, opts)
		if err != nil {
			t.Fatal(err)
		}
		seen := issue(t, s, nil, time.Second)
		if err := os.MkdirAll(filepath.Join(path+".tmp", "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if id, err := s.Next(ctx); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Fatalf("a part that the file does not tell of: %d, error %v", id, err)
		}
		crash(t, s, c)
		c = openCache(t, path, store)
		time.Sleep(10 * time.Minute)
		if s, err = hapax.NewSnowflake(t.Context(), c, opts); err != nil {
			t.Fatal(err)
		}
		seen = issue(t, s, seen, 5*time.Minute)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(path + ".tmp"); err != nil {
			t.Fatal(err)
		}
		if s, err = hapax.NewSnowflake(t.Context(), openCache(t, path, store), opts); err != nil {
			t.Fatal(err)
		}
		issue(t, s, seen, time.Second)
		_ = s.Close(t.Context())
	})
}

// Whatever happens to process, store and clock, no tick of a worker is handed out
// twice, by the cache or beside it.
func TestCacheNeverRepeats(t *testing.T) {
	leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	dir, runs := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprint(runs))
		store := storetest.NewFaults(memstore.New())
		clock := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		var used []hapax.Grant // of worker 0, or worker 1 shifted far away
		note := func(l hapax.Lease) {
			g := hapax.Grant{Lo: l.Grant.Lo + l.Worker<<50, Hi: l.Grant.Hi + l.Worker<<50}
			for _, o := range used {
				if g.Lo < o.Hi && o.Lo < g.Hi {
					t.Fatalf("worker %d: ticks [%d, %d) were handed out before", l.Worker, l.Grant.Lo, l.Grant.Hi)
				}
			}
			used = append(used, g)
		}
		request := func(holder string) hapax.AcquireRequest {
			return hapax.AcquireRequest{
				Pool: "p", Layout: leaf, Workers: hapax.WorkerRange{Lo: 0, Hi: 2}, Holder: holder,
				Term: hapax.Term{Now: clock, Length: 20 * time.Second, Ahead: 10 * time.Millisecond, TTL: 30 * time.Second},
			}
		}
		open := func() *Cache {
			c, err := Open(context.Background(), path, store, Options{})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := open()
		defer func() { c.Close() }()
		var mine, other hapax.Lease
		ctx, held, at := context.Background(), false, 0 // at: of the last part in used
		acquire := func() error {
			l, err := c.AcquireWorker(ctx, request("me"))
			if err == nil {
				note(l)
				mine, held, at = l, true, len(used)-1
			}
			return err
		}
		crash := func() {
			c.Close()
			c, held = open(), false
		}
		if rapid.Bool().Draw(t, "resumed") {
			if err := acquire(); err != nil {
				t.Fatal(err)
			}
			token := mine.Token
			crash()
			early := time.Duration(rapid.IntRange(0, 10).Draw(t, "early")) * time.Millisecond // as much as numbers may lead
			clock = clock.Add(DefaultPart - early)
			if err := acquire(); err != nil || mine.Token != token {
				t.Fatalf("the lease of token %d was not resumed: %+v, error %v", token, mine, err)
			}
		}
		store.Inject(func(op storetest.Op) storetest.Fault {
			switch rapid.IntRange(0, 9).Draw(t, "fault") {
			case 0:
				return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
			case 1:
				return storetest.Fault{Lose: hapax.ErrStoreUnavailable}
			}
			return storetest.Fault{}
		})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			clock = clock.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 500, 1500, 4000, 40_000, -700, -20_000}).Draw(t, "ms")) * time.Millisecond)
			switch rapid.SampledFrom([]string{"acquire", "extend", "extend", "extend", "crash", "stop", "down", "up", "other"}).Draw(t, "step") {
			case "acquire":
				_ = acquire()
			case "extend":
				req := request("me")
				if l, err := c.ExtendWorker(ctx, mine, leaf, req.Term); held && err == nil {
					note(l)
					mine, at = l, len(used)-1
				}
			case "crash":
				crash()
			case "stop":
				if held {
					last := rapid.Int64Range(mine.Grant.Lo, mine.Grant.Hi).Draw(t, "last") // what was used of the last part
					used[at].Hi = last + mine.Worker<<50
					_ = c.SealWorker(ctx, mine, last)
					if rapid.Bool().Draw(t, "again") {
						_ = c.SealWorker(ctx, mine, last)
					}
				}
				crash()
			case "down":
				store.Down()
			case "up":
				store.Up()
			case "other":
				if l, err := store.AcquireWorker(ctx, request("other")); err == nil {
					note(l)
					other = l
				} else if l, err := store.ExtendWorker(ctx, other, leaf, hapax.Term{Now: clock, TTL: time.Second}); err == nil {
					note(l)
					other = l
				}
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	text := []byte(`{"format":"hapax lease 2","file":{},"store":"S","layout":"L","lease":{"pool":"p","worker":1,"token":1,"key":"k","holder":"h","lo":1,"hi":9,"from":1,"mark":5}}`)
	f.Add(fmt.Appendf(slices.Clone(text), "\n%08x\n", checksum(text)))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if k, err := parse(data); err == nil && k.Lease != nil && (k.Lease.Mark > k.Lease.Hi || k.Lease.Token < 1) {
			t.Errorf("%q is the lease %+v", data, k.Lease)
		}
	})
}
