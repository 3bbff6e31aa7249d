package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// dice returns a number from 0 to less than sides.
type dice func(sides int) int

// The tags of the simulation, and how their numbers come about.
var simTags = map[string]TagConfig{
	"plain":   {Step: 7, MaxStep: 20},
	"coded":   {Step: 7, MaxStep: 20, Code: "C-{id:9}"},
	"daily":   {Step: 7, MaxStep: 20, Code: "{yyyy}{MM}{dd}-{seq:9}", Zone: "UTC"},
	"hidden":  {Step: 7, MaxStep: 20},
	"veiled":  {Step: 7, MaxStep: 20, Code: "V-{id:9}"},
	"flakes":  {Kind: hapax.KindSnowflake},
	"strange": {Strategy: "strange", Step: 1, MaxStep: 5},
}

// noon is a clock that no run of the tests brings to the next day, on which numbers
// restart.
type noon struct{}

var simBegan = time.Now()

func (noon) Now() (time.Time, time.Duration) {
	since := time.Since(simBegan)
	return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).Add(since), since
}

// A chaos fails, panics and vetoes at random, in each of its hooks.
type chaos struct {
	roll dice
	back *givenBack // of a broken twin; else nil
}

var errChaos = errors.New("chaos")

func (c chaos) strike() error {
	switch c.roll(8) {
	case 0:
		panic(errChaos)
	case 1:
		return errChaos
	}
	return nil
}

func (c chaos) plugins(scramble strategy.Plugin) []strategy.Plugin {
	replace := scramble.Replace
	scramble.Tags = []string{"hidden", "veiled"}
	scramble.Replace = func(ctx context.Context, call strategy.Call, ids []hapax.ID) error {
		before := c.strike() // and yet it replaces
		if err := replace(ctx, call, ids); err != nil {
			return err
		}
		return errors.Join(before, c.strike())
	}
	return []strategy.Plugin{scramble, {
		Name: "chaos", Order: 1,
		Before: func(context.Context, strategy.Call) error { return c.strike() },
		After: func(_ context.Context, call strategy.Call, ids strategy.Numbers) error {
			err := c.strike()
			if err != nil && c.back != nil && call.Tag() == "strange" {
				c.back.give(ids)
			}
			return err
		},
		OnError: func(context.Context, strategy.Call, error) { _ = c.strike() },
	}}
}

// givenBack is what a broken twin of a strategy gives out once more: what a plugin
// failed on.
type givenBack struct {
	mu  sync.Mutex // guards ids
	ids []hapax.ID
}

func (b *givenBack) give(ids strategy.Numbers) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ids = slices.AppendSeq(b.ids, ids.All())
}

// strange is a strategy of one's own: odd numbers, from the tag's segments.
type strange struct {
	*hapax.Segment

	back *givenBack // nil but in the twin
}

func (s strange) Next(ctx context.Context) (hapax.ID, error) {
	var one [1]hapax.ID
	_, err := s.NextN(ctx, one[:])
	return one[0], err
}

func (s strange) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	if s.back != nil {
		s.back.mu.Lock()
		defer s.back.mu.Unlock()
		if n := copy(dst, s.back.ids); n == len(dst) {
			s.back.ids = s.back.ids[n:]
			return n, nil
		}
	}
	n, err := s.Segment.NextN(ctx, dst)
	for i := range dst[:n] {
		dst[i] = 2*dst[i] + 1
	}
	return n, err
}

func (s strange) TryNext() (hapax.ID, bool) { return 0, false }

// A twin is what a simulation is broken by; the zero twin breaks nothing.
type twin struct {
	lossy bool // two numbers are replaced by the same
	keys  bool // each node replaces numbers otherwise, and says that it does not
	back  bool // what a plugin failed on is issued once more
}

// A world is some nodes on a store, with plugins that strike at random, and all the
// numbers that their callers got.
type world struct {
	store driver.Store
	twin  twin
	roll  dice
	back  *givenBack
	nodes []*Service
	got   map[string]map[string]bool // by tag
	calls int
	fails int
}

func (w *world) node(t testing.TB, i int) *Service {
	key := "a-key-of-16-bytes"
	if w.twin.keys {
		key = fmt.Sprintf("%d-key-of-16-bytes", i)
	}
	s, err := strategy.NewScrambler([]byte(key), 3)
	if err != nil {
		t.Fatal(err)
	}
	scramble := s.Plugin()
	scramble.Frozen = "the same"
	if w.twin.lossy {
		scramble.Replace = func(_ context.Context, _ strategy.Call, ids []hapax.ID) error {
			for i, id := range ids {
				ids[i] = id / 2
			}
			return nil
		}
	}
	r := strategy.NewRegistry(strategy.Options{Logger: slog.New(slog.DiscardHandler)})
	for _, p := range (chaos{w.roll, w.back}).plugins(scramble) {
		if err := r.Use(p); err != nil {
			t.Fatal(err)
		}
	}
	err = r.Register("strange", strategy.Func(func(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
		seg, err := hapax.NewSegment(ctx, w.store, tag.Name, hapax.SegmentOptions{NoCreate: true})
		if err != nil {
			return nil, err
		}
		return strange{seg, w.back}, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	svc, err := New(t.Context(), w.store, Options{Logger: slog.New(slog.DiscardHandler), Tags: simTags, Strategies: r, Clock: noon{}})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

func (w *world) stop(t testing.TB, s *Service) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// note keeps what a call gave. It returns the first number that came before.
func (w *world) note(tag string, ids []hapax.ID, err error) (again string) {
	w.calls++
	if err != nil {
		w.fails++
		if !errors.Is(err, strategy.ErrRejected) && !errors.Is(err, strategy.ErrPluginFailed) {
			return fmt.Sprintf("not a number but %v", err)
		}
		return ""
	}
	for _, id := range ids {
		text := id.String()
		if w.got[tag][text] {
			return fmt.Sprintf("%s: %s", tag, text)
		}
		if w.got[tag] == nil {
			w.got[tag] = map[string]bool{}
		}
		w.got[tag][text] = true
	}
	return ""
}

// call takes numbers in one of the service's ways.
func (w *world) call(ctx context.Context, s *Service, tag string) (again string) {
	ids := make([]hapax.ID, 1+w.roll(5))
	var err error
	switch w.roll(5) {
	case 0:
		var id hapax.ID
		id, err = s.Next(ctx, tag)
		return w.note(tag, []hapax.ID{id}, err)
	case 1:
		var id hapax.ID
		id, err = s.NextBytes(ctx, []byte(tag))
		return w.note(tag, []hapax.ID{id}, err)
	case 2:
		if simTags[tag].Code != "" {
			issued, err := s.NextCodes(ctx, tag, len(ids))
			return w.note(tag, issued.IDs, err)
		}
	case 3:
		if tag == "plain" || tag == "coded" {
			g, err := s.Reserve(ctx, tag, int64(len(ids)))
			return w.note(tag, grantIDs(g), err)
		}
	case 4:
		if tag == "plain" || tag == "coded" {
			a, err := s.Allocate(ctx, tag, int64(len(ids)), "")
			return w.note(tag, grantIDs(a.Grant), err)
		}
	}
	n, err := s.NextN(ctx, tag, ids)
	if n < len(ids) && err == nil {
		return "too few, and no error"
	}
	if n > 0 && err != nil { // what was issued counts
		if again := w.note(tag, ids[:n], nil); again != "" {
			return again
		}
	}
	return w.note(tag, ids, err)
}

// play simulates a world, and returns the first number that came twice; empty for none.
func play(t testing.TB, roll dice, steps int, broken twin) (again string) {
	w := &world{store: memstore.New(), twin: broken, roll: roll, got: map[string]map[string]bool{}}
	if broken.back {
		w.back = &givenBack{}
	}
	for i := range 2 {
		w.nodes = append(w.nodes, w.node(t, i))
	}
	defer func() {
		for _, s := range w.nodes {
			w.stop(t, s)
		}
	}()
	for tag := range simTags { // which leases do not
		if _, err := w.nodes[0].CreateTag(t.Context(), hapax.Tag{Name: tag}, hapax.CreateFirstUse); err != nil {
			return err.Error()
		}
	}
	tags := []string{"plain", "coded", "daily", "hidden", "veiled", "flakes", "strange"}
	for range steps {
		i := roll(len(w.nodes))
		if roll(40) == 0 {
			w.stop(t, w.nodes[i])
			w.nodes[i] = w.node(t, i)
		}
		if again := w.call(t.Context(), w.nodes[i], tags[roll(len(tags))]); again != "" {
			return again
		}
	}
	if w.calls-w.fails == 0 && steps > 100 {
		return "nothing at all"
	}
	return ""
}

// TestUniqueThoughPluginsFail has plugins that fail, panic and veto at random stand
// around every call, on nodes that start anew: no number comes twice.
func TestUniqueThoughPluginsFail(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.IntRange(0, 120).Draw(rt, "steps")
		side := rapid.IntRange(0, 1<<20)
		if again := play(t, func(sides int) int { return side.Draw(rt, "dice") % sides }, steps, twin{}); again != "" {
			rt.Fatal(again)
		}
	})
}

// TestPluginTwins has the same simulation catch what is broken on purpose.
func TestPluginTwins(t *testing.T) {
	for name, broken := range map[string]twin{
		"two numbers replaced by one":      {lossy: true},
		"another key on each node":         {keys: true},
		"a panic that gives a number back": {back: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				if again := play(t, rand.New(rand.NewPCG(seed, 1)).IntN, 300, broken); again != "" {
					t.Log(again)
					return
				}
			}
			t.Error("nothing came twice")
		})
	}
}

// TestUniqueThoughPluginsFailAtOnce is the same with many callers at a time, while the
// plugin is switched on and off.
func TestUniqueThoughPluginsFailAtOnce(t *testing.T) {
	w := &world{store: memstore.New(), roll: rand.IntN, got: map[string]map[string]bool{}}
	s := w.node(t, 0)
	defer w.stop(t, s)
	var mu sync.Mutex // guards w
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 200 {
				for _, tag := range []string{"plain", "hidden", "strange"} {
					ids := make([]hapax.ID, 1+rand.IntN(3))
					_, err := s.NextN(t.Context(), tag, ids)
					mu.Lock()
					again := w.note(tag, ids, err)
					mu.Unlock()
					if again != "" {
						t.Error(again)
						return
					}
				}
			}
		})
	}
	for i := range 200 {
		if _, err := s.SetPlugin(t.Context(), "chaos", new(i%2 == 0), nil); err != nil {
			t.Error(err)
		}
	}
	callers.Wait()
	if w.fails == 0 || w.fails == w.calls {
		t.Errorf("%d of %d calls failed", w.fails, w.calls)
	}
}
