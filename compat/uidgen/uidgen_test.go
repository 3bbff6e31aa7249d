package uidgen

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

func TestLayout(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings Settings
		want     string // a built-in name, or a part of the error
	}{
		{"defaults", Settings{}, hapax.LayoutUIDGenerator28},
		{"documented sample", Settings{TimeBits: 29, WorkerBits: 21, SeqBits: 13, EpochStr: "2016-09-20"}, hapax.LayoutUIDGenerator29},
		{"the same written out", Settings{TimeBits: 28, WorkerBits: 22, SeqBits: 13, EpochStr: "2016-05-20", Zone: China}, hapax.LayoutUIDGenerator28},
		{"sum", Settings{TimeBits: 30}, "\"30 + 22 + 13 = 65\""},
		{"width", Settings{TimeBits: -1}, "invalid timeBits -1"},
		{"epoch", Settings{EpochStr: "20.05.2016"}, "invalid epochStr"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := tt.settings.Layout()
			if got := l.Name(); err == nil && got != tt.want {
				t.Errorf("layout %q (%s); want %q", got, l, tt.want)
			} else if err != nil && (!strings.Contains(err.Error(), tt.want) || !errors.Is(err, hapax.ErrInvalidArgument)) {
				t.Errorf("got %v; want %q", err, tt.want)
			}
		})
	}
	// The original read the epoch anew in each machine's zone.
	utc, err := Settings{Zone: time.UTC}.Layout()
	if err != nil || utc.Epoch().Unix() != 1463702400 {
		t.Errorf("epoch %v in UTC, %v; want 1463702400", utc.Epoch().Unix(), err)
	}
}

// TestVectors reads the numbers that the facts about uid-generator give.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "layout-vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct {
			Layout string
			Fields map[string]int64
			ID     hapax.ID
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, v := range file.Vectors {
		if !strings.HasPrefix(v.Layout, "uidgenerator-") {
			continue
		}
		seen++
		l, err := hapax.ParseLayout(v.Layout)
		if err != nil {
			t.Fatal(err)
		}
		text, err := ParseUID(l, China, v.ID)
		var got map[string]string
		if err == nil {
			err = json.Unmarshal([]byte(text), &got)
		}
		when := l.TimeOf(v.Fields["time"]).In(China).Format(time.DateTime)
		if err != nil || got["UID"] != v.ID.String() || got["timestamp"] != when ||
			got["workerId"] != hapax.ID(v.Fields["worker"]).String() || got["sequence"] != hapax.ID(v.Fields["sequence"]).String() {
			t.Errorf("%s, %d: %s, %v", v.Layout, v.ID, text, err)
		}
	}
	if seen == 0 {
		t.Error("there is no vector")
	}
}

func TestParseUID(t *testing.T) {
	l, err := hapax.ParseLayout(hapax.LayoutUIDGenerator29)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseUID(l, China, 180363646902239241)
	if want := `{"UID":"180363646902239241","timestamp":"2017-01-19 12:15:46","workerId":"4","sequence":"9"}`; got != want || err != nil {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	if got, err := ParseUID(l, nil, -1); err == nil {
		t.Errorf("a negative number was explained: %s", got)
	}
}

// small has 32 numbers in a second; its epoch lies before the time of synctest.
var small = Settings{TimeBits: 40, WorkerBits: 18, SeqBits: 5, EpochStr: "1999-12-31", Zone: time.UTC}

func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func newCached(t *testing.T, opts CachedOptions) *CachedGenerator {
	t.Helper()
	opts.Settings = small
	c, err := NewCached(t.Context(), memstore.New(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func take(t *testing.T, c interface {
	GetUID(context.Context) (hapax.ID, error)
},
) hapax.ID {
	t.Helper()
	id, err := c.GetUID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// lead returns how far a number's time is ahead of the clock, in seconds.
func lead(t *testing.T, c *CachedGenerator, id hapax.ID) int64 {
	t.Helper()
	at, err := c.layout.Time(id)
	if err != nil {
		t.Fatal(err)
	}
	return at.Unix() - time.Now().Unix()
}

func TestRing(t *testing.T) {
	bubble(t, "is whole at the start and holds its size", func(t *testing.T) {
		c := newCached(t, CachedOptions{})
		if c.Size() != 32<<3 || c.Left() != c.Size() {
			t.Errorf("%d of %d are left; want 256 of 256", c.Left(), c.Size())
		}
		began := time.Now()
		for range c.Size() {
			take(t, c)
		}
		if waited := time.Since(began); waited != 0 || c.Left() != 0 {
			t.Errorf("waited %v, and %d are left", waited, c.Left())
		}
	})

	// The original threw away 19 to 20 % of all numbers: the rest of the second that
	// was being filled, and one slot for ever.
	bubble(t, "uses every number of a second", func(t *testing.T) {
		c := newCached(t, CachedOptions{})
		counts := map[int64]int64{}
		var first, last int64
		for i := range 32 * 60 {
			at, err := c.layout.Time(take(t, c))
			if err != nil {
				t.Fatal(err)
			}
			if last = at.Unix(); i == 0 {
				first = last
			}
			counts[last]++
		}
		for second := first; second <= last; second++ {
			if counts[second] != 32 {
				t.Errorf("second %d has %d numbers; want 32", second-first, counts[second])
			}
		}
	})

	// It ran 8 to 35 hours ahead in 13 s, and a restart then went back.
	bubble(t, "borrows no more than its size", func(t *testing.T) {
		c := newCached(t, CachedOptions{})
		for range 32 * 30 {
			if l := lead(t, c, take(t, c)); l > 7 {
				t.Fatalf("a number is %d s ahead; want at most 7", l)
			}
		}
	})

	bubble(t, "comes back to the clock when idle", func(t *testing.T) {
		c := newCached(t, CachedOptions{})
		for range c.Size() {
			take(t, c)
		}
		if l := lead(t, c, take(t, c)); l < 7 {
			t.Fatalf("the burst is %d s ahead; want 7 or more", l)
		}
		time.Sleep(8 * time.Second)
		if l := lead(t, c, take(t, c)); l != 0 {
			t.Errorf("after a pause a number is %d s ahead; want 0", l)
		}
		time.Sleep(time.Hour) // nothing in the ring gets old
		if l := lead(t, c, take(t, c)); l != 0 {
			t.Errorf("after an hour a number is %d s ahead; want 0", l)
		}
	})

	// Two takers could get the same slot.
	bubble(t, "gives no number to two takers", func(t *testing.T) {
		c := newCached(t, CachedOptions{BoostPower: 6})
		const takers, each = 8, 500
		taken := make([][]hapax.ID, takers)
		var wg sync.WaitGroup
		for i := range takers {
			wg.Go(func() {
				for range each {
					taken[i] = append(taken[i], take(t, c))
				}
			})
		}
		wg.Wait()
		all := slices.Concat(taken...)
		slices.Sort(all)
		if n := len(slices.Compact(all)); n != takers*each {
			t.Errorf("%d numbers of %d are different", n, takers*each)
		}
	})

	// A restart went back behind what was borrowed.
	bubble(t, "goes on above what was borrowed after a restart", func(t *testing.T) {
		store, last := memstore.New(), hapax.ID(0)
		for range 3 {
			c, err := NewCached(t.Context(), store, CachedOptions{Options: Options{Settings: small, Holder: "h"}})
			if err != nil {
				t.Fatal(err)
			}
			for range c.Left() {
				id := take(t, c)
				if id <= last {
					t.Fatalf("%d follows %d", id, last)
				}
				last = id
			}
			if c.Stats().Worker != 0 {
				t.Errorf("worker %d; want the same again", c.Stats().Worker)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
		}
	})

	bubble(t, "is the plain generator but for the borrowing", func(t *testing.T) {
		g, err := New(t.Context(), memstore.New(), Options{Settings: small})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close(t.Context())
		for range 32 * 10 {
			at, err := g.layout.Time(take(t, g))
			if err != nil || at.Unix()-time.Now().Unix() > 1 {
				t.Fatalf("%v ahead, %v; want at most a second", time.Until(at), err)
			}
		}
	})
}

func TestRejectedTake(t *testing.T) {
	full := errors.New("full")
	bubble(t, "is asked when nothing is left", func(t *testing.T) {
		var asked atomic.Int64
		c := newCached(t, CachedOptions{RejectedTake: func(context.Context) error { asked.Add(1); return full }})
		for range c.Size() {
			take(t, c)
		}
		if asked.Load() != 0 {
			t.Fatalf("asked %d times while there were numbers", asked.Load())
		}
		if id, err := c.GetUID(t.Context()); !errors.Is(err, full) || asked.Load() != 1 {
			t.Fatalf("got %d, %v, asked %d times", id, err, asked.Load())
		}
		time.Sleep(time.Second)
		take(t, c)
	})

	// A handler that did not fail fell through to a slot that was used.
	bubble(t, "that does not fail lets the call wait", func(t *testing.T) {
		var asked atomic.Int64
		c := newCached(t, CachedOptions{RejectedTake: func(context.Context) error { asked.Add(1); return nil }})
		seen := map[hapax.ID]bool{}
		for range c.Size() + 3*32 {
			id := take(t, c)
			if seen[id] {
				t.Fatalf("%d was taken twice", id)
			}
			seen[id] = true
		}
		if asked.Load() < 3 {
			t.Errorf("asked %d times; want 3 or more", asked.Load())
		}
	})

	bubble(t, "that is not set waits to the deadline", func(t *testing.T) {
		c := newCached(t, CachedOptions{})
		for range c.Size() {
			take(t, c)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := c.GetUID(ctx)
		if !errors.Is(err, hapax.ErrTickExhausted) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})

	// A refill that is in flight is waited for; the handler is not asked.
	bubble(t, "is not asked while granted time is on its way", func(t *testing.T) {
		store := &awayStore{memstore.New(), time.Now().Add(40 * time.Second)} // longer than the grant reaches
		var asked atomic.Int64
		c, err := NewCached(t.Context(), store, CachedOptions{Options: Options{Settings: small}, RejectedTake: func(context.Context) error { asked.Add(1); return full }})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		until, waited := time.Now().Add(50*time.Second), false
		for time.Now().Before(until) {
			began := time.Now()
			if _, err := c.GetUID(t.Context()); err != nil {
				t.Fatal(err)
			}
			waited = waited || time.Since(began) > time.Second
			time.Sleep(100 * time.Millisecond)
		}
		if !waited || asked.Load() != 0 {
			t.Errorf("waited for the store: %v; asked %d times; want true and 0", waited, asked.Load())
		}
	})
}

// awayStore extends no lease before a time.
type awayStore struct {
	hapax.WorkerStore
	until time.Time
}

func (s *awayStore) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	if time.Now().Before(s.until) {
		return l, hapax.ErrStoreUnavailable
	}
	return s.WorkerStore.ExtendWorker(ctx, l, layout, term)
}

func TestRejectedPut(t *testing.T) {
	bubble(t, "is called by scheduled fills of a full ring, also after a panic", func(t *testing.T) {
		var called atomic.Int64
		c := newCached(t, CachedOptions{ScheduleInterval: time.Minute, RejectedPut: func() {
			if called.Add(1) == 1 {
				panic("a handler that fails stopped the original's padding for ever")
			}
		}})
		time.Sleep(3*time.Minute + time.Second)
		if called.Load() != 3 {
			t.Errorf("called %d times; want 3", called.Load())
		}
		time.Sleep(58 * time.Second) // just before the next fill
		for range c.Size() {
			take(t, c)
		}
		time.Sleep(2 * time.Second)
		if called.Load() != 3 {
			t.Errorf("called %d times; want 3, since the ring was not full", called.Load())
		}
	})
}

func TestOptions(t *testing.T) {
	workers := memstore.New()
	for _, tt := range []struct {
		name string
		opts CachedOptions
		want string
	}{
		{"boost", CachedOptions{BoostPower: 16}, "invalid boostPower"},
		{"negative boost", CachedOptions{BoostPower: -1}, "invalid boostPower"},
		{"padding", CachedOptions{PaddingFactor: 100}, "invalid paddingFactor 100"},
		{"schedule", CachedOptions{ScheduleInterval: time.Millisecond}, "invalid scheduleInterval"},
		{"bits", CachedOptions{Options: Options{Settings: Settings{SeqBits: 62}}}, "62"},
	} {
		if _, err := NewCached(t.Context(), workers, tt.opts); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
	if _, err := New(t.Context(), nil, Options{}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("no workers: %v", err)
	}
	// The default layout's time is over; the original went negative.
	if id, err := New(t.Context(), workers, Options{}); !errors.Is(err, hapax.ErrTimeExhausted) {
		t.Errorf("the default layout: %v, %v; want ErrTimeExhausted", id, err)
	}
	if maxBoostPower > math.Log2(float64(hapax.PoisonMargin/2/time.Second)) {
		t.Error("the longest ring is longer than an issuer may run ahead")
	}
}
