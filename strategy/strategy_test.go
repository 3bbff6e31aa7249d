package strategy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// newRegistry returns a registry with the two built-in strategies, which logs
// nothing.
func newRegistry(t testing.TB) *strategy.Registry {
	t.Helper()
	store := memstore.New()
	t.Cleanup(func() { store.Close() })
	r := strategy.NewRegistry(strategy.Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, r.Register("segment", strategy.Segment(store, hapax.SegmentOptions{})))
	must(t, r.Register("snowflake", strategy.Snowflake(store, hapax.SnowflakeOptions{})))
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, r *strategy.Registry, name string, tag hapax.Tag) *strategy.Line {
	t.Helper()
	l, err := r.Open(t.Context(), name, tag)
	must(t, err)
	t.Cleanup(func() { l.Close(context.WithoutCancel(t.Context())) })
	return l
}

func TestBuiltInStrategies(t *testing.T) {
	r := newRegistry(t)
	if got := r.Strategies(); !slices.Equal(got, []string{"segment", "snowflake"}) {
		t.Errorf("got %q", got)
	}
	l := open(t, r, "", hapax.Tag{Name: "orders", Start: 100})
	if id, err := l.Next(t.Context()); err != nil || id != 100 {
		t.Errorf("got %d, %v, want the tag's start, 100", id, err)
	}
	if l.Strategy() != "segment" || l.Tag() != "orders" {
		t.Errorf("the line is of %q, %q", l.Strategy(), l.Tag())
	}

	// Two tags of a pool share an issuer, and closing one leaves the other.
	a := open(t, r, "", hapax.Tag{Name: "a", Kind: hapax.KindSnowflake})
	b := open(t, r, "", hapax.Tag{Name: "b", Kind: hapax.KindSnowflake})
	x, err := a.Next(t.Context())
	must(t, err)
	must(t, a.Close(t.Context()))
	must(t, a.Close(t.Context()))
	y, err := b.Next(t.Context())
	must(t, err)
	if y <= x {
		t.Errorf("the second tag of the pool issued %d after %d", y, x)
	}
	must(t, b.Close(t.Context()))
	if _, err := b.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
		t.Errorf("the pool's issuer outlived its last tag: %v", err)
	}
}

func TestSnowflakePoolOpenedAtOnce(t *testing.T) {
	s := strategy.Snowflake(memstore.New(), hapax.SnowflakeOptions{Workers: hapax.WorkerRange{}})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = ended
			}
			issuer, err := s.Open(ctx, hapax.Tag{Name: fmt.Sprint("t", i)})
			if err != nil {
				if i%2 == 1 {
					t.Errorf("tag %d failed because of another's context: %v", i, err)
				}
				return
			}
			if _, err := issuer.Next(t.Context()); err != nil {
				t.Errorf("tag %d: %v", i, err)
			}
			if err := issuer.Close(t.Context()); err != nil {
				t.Errorf("tag %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// panicky is a clock that panics once.
type panicky struct {
	hapax.SystemClock

	calls atomic.Int64
}

func (p *panicky) Now() (time.Time, time.Duration) {
	if p.calls.Add(1) == 1 {
		panic("of the program that embeds it")
	}
	return p.SystemClock.Now()
}

func TestSnowflakePoolOutlivesAPanic(t *testing.T) {
	s := strategy.Snowflake(memstore.New(), hapax.SnowflakeOptions{Clock: &panicky{}})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the opener did not panic")
			}
		}()
		_, _ = s.Open(t.Context(), hapax.Tag{Name: "first"})
	}()
	issuer, err := s.Open(t.Context(), hapax.Tag{Name: "second"})
	must(t, err)
	if _, err := issuer.Next(t.Context()); err != nil {
		t.Error(err)
	}
	must(t, issuer.Close(t.Context()))
}

func TestNames(t *testing.T) {
	r := newRegistry(t)
	for name, err := range map[string]error{
		"strategy taken":     r.Register("segment", strategy.Func(nil)),
		"strategy nameless":  r.Register("", strategy.Func(nil)),
		"strategy nil":       r.Register("x", nil),
		"strategy unknown":   r.OnReject("x", nil),
		"plugin nameless":    r.Use(strategy.Plugin{}),
		"plugin unknown":     r.Remove("x"),
		"plugin not on":      r.Switch("x", true),
		"plugin not ordered": r.Reorder("x", 1),
	} {
		if !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.Open(t.Context(), "x", hapax.Tag{Name: "t"}); !errors.Is(err, strategy.ErrUnknownStrategy) {
		t.Errorf("a strategy that is not registered: %v", err)
	}
	if _, err := r.Open(t.Context(), "segment", hapax.Tag{}); !errors.Is(err, hapax.ErrInvalidTag) {
		t.Errorf("a tag without a name: %v", err)
	}
	must(t, r.Use(strategy.Plugin{Name: "p"}))
	if err := r.Use(strategy.Plugin{Name: "p"}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a name that is taken: %v", err)
	}
}

func TestVeryIssuer(t *testing.T) {
	inner := &counter{}
	r := newRegistry(t)
	must(t, r.Register("mine", strategy.Func(func(context.Context, hapax.Tag) (hapax.Issuer, error) { return inner, nil })))
	l := open(t, r, "mine", hapax.Tag{Name: "t"})
	if l.Issuer() != hapax.Issuer(inner) {
		t.Error("a line without plugins does not give the strategy's own issuer")
	}
	must(t, r.Use(strategy.Plugin{Name: "p", Tags: []string{"other"}}))
	if l.Issuer() != hapax.Issuer(inner) {
		t.Error("a plugin of another tag came between")
	}
	must(t, r.Use(strategy.Plugin{Name: "q", Strategies: []string{"mine"}}))
	if l.Issuer() != hapax.Issuer(l) {
		t.Error("the plugin is passed over")
	}
	must(t, r.Switch("q", false))
	if l.Issuer() != hapax.Issuer(inner) {
		t.Error("a plugin that is off came between")
	}
}

// counter issues from 1, or fails.
type counter struct {
	mu   sync.Mutex
	last hapax.ID
	err  error
}

func (c *counter) Next(ctx context.Context) (hapax.ID, error) {
	var one [1]hapax.ID
	_, err := c.NextN(ctx, one[:])
	return one[0], err
}

func (c *counter) NextN(_ context.Context, dst []hapax.ID) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	for i := range dst {
		c.last++
		dst[i] = c.last
	}
	return len(dst), nil
}

func (c *counter) Close(context.Context) error { return nil }

func TestOrderAndChanges(t *testing.T) {
	r := newRegistry(t)
	var seen []string
	plugin := func(name string, order int) strategy.Plugin {
		return strategy.Plugin{
			Name: name, Order: order,
			Before: func(_ context.Context, c strategy.Call) error {
				seen = append(seen, fmt.Sprintf("%s before %d", name, c.N))
				return nil
			},
			After: func(_ context.Context, c strategy.Call, ids strategy.Numbers) error {
				seen = append(seen, fmt.Sprintf("%s after %d from %d", name, ids.Len(), ids.At(0)))
				return nil
			},
		}
	}
	must(t, r.Use(plugin("b", 2)))
	must(t, r.Use(plugin("a", 2)))
	must(t, r.Use(plugin("first", 1)))
	l := open(t, r, "segment", hapax.Tag{Name: "t"})
	dst := make([]hapax.ID, 5)
	for _, step := range []struct {
		change func() error
		want   string
	}{
		{func() error { return nil }, "first before 5, a before 5, b before 5, first after 5 from 1, a after 5 from 1, b after 5 from 1"},
		{func() error { return r.Reorder("first", 3) }, "a before 5, b before 5, first before 5, a after 5 from 6, b after 5 from 6, first after 5 from 6"},
		{func() error { return r.Switch("b", false) }, "a before 5, first before 5, a after 5 from 11, first after 5 from 11"},
		{func() error { return r.Remove("a") }, "first before 5, first after 5 from 16"},
		{func() error { return r.Switch("b", true) }, "b before 5, first before 5, b after 5 from 21, first after 5 from 21"},
	} {
		must(t, step.change())
		seen = nil
		n, err := l.NextN(t.Context(), dst)
		if err != nil || n != 5 {
			t.Fatalf("got %d numbers, %v", n, err)
		}
		if got := strings.Join(seen, ", "); got != step.want {
			t.Errorf("got  %s\nwant %s", got, step.want)
		}
	}
	if names := fmt.Sprint(r.Plugins()[0].Name, r.Plugins()[1].Name); names != "bfirst" {
		t.Errorf("listed as %s", names)
	}
}

func TestVeto(t *testing.T) {
	r := newRegistry(t)
	var told []error
	var handled []strategy.Refusal
	later := false
	must(t, r.Use(strategy.Plugin{
		Name:    "door",
		Before:  func(context.Context, strategy.Call) error { return errors.New("we are closed") },
		OnError: func(_ context.Context, _ strategy.Call, err error) { told = append(told, err) },
	}))
	must(t, r.Use(strategy.Plugin{Name: "later", Order: 1, Before: func(context.Context, strategy.Call) error { later = true; return nil }}))
	must(t, r.OnReject("segment", func(_ context.Context, f strategy.Refusal) { handled = append(handled, f) }))
	l := open(t, r, "segment", hapax.Tag{Name: "t"})
	_, err := l.Next(t.Context())
	veto, ok := errors.AsType[*strategy.VetoError](err)
	if !ok || veto.Plugin != "door" || hapax.CodeOf(err) != strategy.ErrRejected.Code() || !strings.Contains(err.Error(), "we are closed") {
		t.Errorf("got %v", err)
	}
	if later {
		t.Error("a plugin was asked after the veto")
	}
	if n, err := l.NextN(t.Context(), make([]hapax.ID, 3)); n != 0 || !errors.Is(err, strategy.ErrRejected) {
		t.Errorf("the batch got %d, %v", n, err)
	}
	if len(told) != 2 || len(handled) != 2 || handled[1].N != 3 || handled[1].Tag != "t" || !errors.Is(handled[1].Err, strategy.ErrRejected) {
		t.Errorf("told %v, handled %v", told, handled)
	}
	must(t, r.Remove("door"))
	if id, err := l.Next(t.Context()); err != nil || id != 1 {
		t.Errorf("a veto used up a number: got %d, %v", id, err)
	}
}

func TestRefusalsWithoutPlugins(t *testing.T) {
	var log bytes.Buffer
	r := strategy.NewRegistry(strategy.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	inner := &counter{err: hapax.ErrLineExhausted}
	must(t, r.Register("mine", strategy.Func(func(context.Context, hapax.Tag) (hapax.Issuer, error) { return inner, nil })))
	l := open(t, r, "mine", hapax.Tag{Name: "t"})
	if _, err := l.Next(t.Context()); !errors.Is(err, hapax.ErrLineExhausted) {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(log.String(), "strategy=mine tag=t n=1") {
		t.Errorf("the default handler logged %q", &log)
	}
	var handled []error
	must(t, r.OnReject("mine", func(_ context.Context, f strategy.Refusal) { handled = append(handled, f.Err); panic("handler") }))
	if _, err := l.NextN(t.Context(), make([]hapax.ID, 2)); !errors.Is(err, hapax.ErrLineExhausted) || len(handled) != 1 {
		t.Errorf("got %v, handled %v", err, handled)
	}
}

func TestPanics(t *testing.T) {
	for _, tt := range []struct {
		hook    string
		plugin  strategy.Plugin
		refused bool
	}{
		{"Before", strategy.Plugin{Before: func(context.Context, strategy.Call) error { panic("oh") }}, true},
		{"After", strategy.Plugin{After: func(context.Context, strategy.Call, strategy.Numbers) error { panic(errors.New("oh")) }}, false},
		{"Replace", strategy.Plugin{Replace: func(_ context.Context, _ strategy.Call, ids []hapax.ID) error { ids[0] = 7; panic("oh") }}, true},
	} {
		t.Run(tt.hook, func(t *testing.T) {
			r := newRegistry(t)
			var told []error
			reached := 0
			tt.plugin.Name = "broken"
			tt.plugin.OnError = func(context.Context, strategy.Call, error) { panic("here too") }
			must(t, r.Use(tt.plugin))
			must(t, r.Use(strategy.Plugin{
				Name: "sound", Order: 1,
				After:   func(context.Context, strategy.Call, strategy.Numbers) error { reached++; return nil },
				OnError: func(_ context.Context, _ strategy.Call, err error) { told = append(told, err) },
			}))
			l := open(t, r, "segment", hapax.Tag{Name: "t"})
			if id, err := l.Next(t.Context()); (err != nil) != tt.refused || tt.refused == (id != 0) || len(told) != 1 {
				t.Errorf("a single call got %d, %v; told %v", id, err, told)
			}
			told, reached = nil, 0
			dst := []hapax.ID{-1, -1}
			n, err := l.NextN(t.Context(), dst)
			if len(told) != 1 {
				t.Fatalf("told %v", told)
			}
			f, ok := errors.AsType[*strategy.PluginError](told[0])
			if !ok || f.Plugin != "broken" || f.Hook != tt.hook || len(f.Stack) == 0 || !strings.Contains(f.Error(), "oh") {
				t.Errorf("told %v", told[0])
			}
			if tt.refused {
				if n != 0 || hapax.CodeOf(err) != strategy.ErrPluginFailed.Code() || reached != 0 {
					t.Errorf("got %d numbers, %v; the next plugin saw %d calls", n, err, reached)
				}
				return
			}
			if n != 2 || err != nil || dst[0] != 2 || dst[1] != 3 || reached != 1 {
				t.Errorf("got %v, %v; the next plugin saw %d calls", dst[:n], err, reached)
			}
		})
	}
}

func TestReplaceIsFrozenWhileOpen(t *testing.T) {
	r := newRegistry(t)
	replace := func(_ context.Context, _ strategy.Call, ids []hapax.ID) error {
		for i := range ids {
			ids[i] *= 10
		}
		return nil
	}
	must(t, r.Use(strategy.Plugin{Name: "ten", Tags: []string{"t"}, Replace: replace}))
	l := open(t, r, "segment", hapax.Tag{Name: "t"})
	if id, err := l.Next(t.Context()); err != nil || id != 10 {
		t.Errorf("got %d, %v", id, err)
	}
	for name, err := range map[string]error{
		"remove":  r.Remove("ten"),
		"switch":  r.Switch("ten", false),
		"reorder": r.Reorder("ten", 4),
		"add":     r.Use(strategy.Plugin{Name: "other", Replace: replace}),
	} {
		if !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, r.Use(strategy.Plugin{Name: "elsewhere", Tags: []string{"u"}, Replace: replace}))
	must(t, l.Close(t.Context()))
	must(t, r.Remove("ten"))
}
