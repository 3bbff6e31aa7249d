package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/strategy"
)

func newStrategies(t *testing.T, plugins ...strategy.Plugin) *strategy.Registry {
	t.Helper()
	r := strategy.NewRegistry(strategy.Options{Logger: slog.New(slog.DiscardHandler)})
	for _, p := range plugins {
		if err := r.Use(p); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// tens counts in tens, and closes when it is told to.
type tens struct {
	n      atomic.Int64
	closed atomic.Int64
}

func (i *tens) Next(context.Context) (hapax.ID, error) {
	if i.n.Load() >= 1000 {
		return 0, fmt.Errorf("%w: there is no more", hapax.ErrLineExhausted)
	}
	return hapax.ID(10 * i.n.Add(1)), nil
}

func (i *tens) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	for k := range dst {
		id, err := i.Next(ctx)
		if err != nil {
			return k, err
		}
		dst[k] = id
	}
	return len(dst), nil
}

func (i *tens) Close(context.Context) error { i.closed.Add(1); return nil }

func TestStrategyOfOnesOwn(t *testing.T) {
	r := newStrategies(t)
	made := &tens{}
	var opened hapax.Tag
	register := func(r *strategy.Registry) {
		err := r.Register("tens", strategy.Func(func(_ context.Context, tag hapax.Tag) (hapax.Issuer, error) {
			opened = tag
			return made, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
	}
	register(r)
	var refusals atomic.Int64
	if err := r.OnReject("tens", func(_ context.Context, f strategy.Refusal) {
		if f.Tag == "steps" && errors.Is(f.Err, hapax.ErrLineExhausted) {
			refusals.Add(1)
		}
	}); err != nil {
		t.Fatal(err)
	}
	store := memstore.New()
	opts := Options{Strategies: r, Tags: map[string]TagConfig{"steps": {Strategy: "tens", Step: 7, MaxStep: 70}}}
	s := open(t, store, opts)
	if id := mustNext(t, s, "steps"); id != 10 {
		t.Errorf("got %d, want 10", id)
	}
	if opened.Name != "steps" || opened.Step != 7 {
		t.Errorf("the strategy saw %+v", opened)
	}
	ids := make([]hapax.ID, 3)
	if n, err := s.NextN(t.Context(), "steps", ids); n != 3 || err != nil || !slices.Equal(ids, []hapax.ID{20, 30, 40}) {
		t.Errorf("NextN: %d, %v, %v", n, err, ids)
	}
	for what, err := range map[string]error{
		"in a row": func() error { _, err := s.Reserve(t.Context(), "steps", 5); return err }(),
		"leased":   func() error { _, err := s.Allocate(t.Context(), "steps", 5, ""); return err }(),
	} {
		if !errors.Is(err, hapax.ErrKindMismatch) {
			t.Errorf("%s: %v", what, err)
		}
	}
	made.n.Store(1000)
	if _, err := s.Next(t.Context(), "steps"); !errors.Is(err, hapax.ErrLineExhausted) || refusals.Load() != 1 {
		t.Errorf("%v; the handler was told %d times", err, refusals.Load())
	}

	tag, err := s.Tag(t.Context(), "steps")
	if err != nil || define.Read(tag).Says.Strategy != "tens" || tag.Kind != hapax.KindSegment {
		t.Errorf("stored is %+v, %v", tag, err)
	}
	if _, err := s.UpdateTag(t.Context(), "steps", driver.TagUpdate{Extra: new(define.CodeExtra("S-{id:6}", ""))}); err != nil {
		t.Fatal(err)
	}
	if tag, err = s.Tag(t.Context(), "steps"); err != nil || define.Read(tag).Says.Strategy != "tens" {
		t.Errorf("with a code, stored is %+v, %v", tag, err)
	}
	made.n.Store(5)
	if got, err := s.NextCodes(t.Context(), "steps", 1); err != nil || got.Codes[0] != "S-000060" {
		t.Errorf("got %v, %v", got, err)
	}
	if err := s.Close(t.Context()); err != nil || made.closed.Load() == 0 {
		t.Errorf("Close: %v; the issuer was closed %d times", err, made.closed.Load())
	}

	// A node without the strategy refuses the tag, and one of the same name is another.
	other := open(t, store, Options{})
	if _, err := other.Next(t.Context(), "steps"); !errors.Is(err, strategy.ErrUnknownStrategy) || !strings.Contains(err.Error(), `"tens"`) {
		t.Errorf("without the strategy: %v", err)
	}
	if _, err := other.Allocate(t.Context(), "steps", 1, ""); !errors.Is(err, hapax.ErrKindMismatch) {
		t.Errorf("a lease without the strategy: %v", err)
	}
	if _, err := other.CreateTag(t.Context(), hapax.Tag{Name: "x", Extra: `{"code":1,"strategy":"tens"}`}, hapax.CreateExplicit); !errors.Is(err, strategy.ErrUnknownStrategy) {
		t.Errorf("a new tag without the strategy: %v", err)
	}
	if _, err := other.DeleteTag(t.Context(), "steps"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.CreateTag(t.Context(), hapax.Tag{Name: "steps"}, hapax.CreateExplicit); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("revived with another strategy: %v", err)
	}
}

func TestStrategyInTheConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		tag  TagConfig
		want string // part of the error; empty: none
	}{
		"a built-in one":   {TagConfig{Strategy: "snowflake"}, ""},
		"the kind's":       {TagConfig{Kind: hapax.KindSegment, Strategy: "segment"}, ""},
		"unknown":          {TagConfig{Strategy: "tens"}, `invalid tags.t.strategy "tens": want one of segment, snowflake`},
		"another kind's":   {TagConfig{Kind: hapax.KindSegment, Strategy: "snowflake"}, "tags.t.kind"},
		"one's own a kind": {TagConfig{Kind: hapax.KindSnowflake, Strategy: "tens"}, "tags.t.kind"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Options{Tags: map[string]TagConfig{"t": c.tag}}.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// every issues numbers of a tag in every way that the service has.
var every = map[string]func(ctx context.Context, s *Service, tag string, n int) ([]hapax.ID, error){
	"NextN": func(ctx context.Context, s *Service, tag string, n int) ([]hapax.ID, error) {
		ids := make([]hapax.ID, n)
		_, err := s.NextN(ctx, tag, ids)
		return ids, err
	},
	"Reserve": func(ctx context.Context, s *Service, tag string, n int) ([]hapax.ID, error) {
		g, err := s.Reserve(ctx, tag, int64(n))
		return grantIDs(g), err
	},
	"NextCodes": func(ctx context.Context, s *Service, tag string, n int) ([]hapax.ID, error) {
		got, err := s.NextCodes(ctx, tag, n)
		return got.IDs, err
	},
	"Allocate": func(ctx context.Context, s *Service, tag string, n int) ([]hapax.ID, error) {
		a, err := s.Allocate(ctx, tag, int64(n), "")
		return grantIDs(a.Grant), err
	},
}

func grantIDs(g hapax.Grant) (ids []hapax.ID) {
	for n := g.Lo; n < g.Hi; n++ {
		ids = append(ids, hapax.ID(n))
	}
	return ids
}

// TestPluginsSeeEveryCall has a call in each of the service's ways be one call of each
// hook, with the numbers that the caller gets.
func TestPluginsSeeEveryCall(t *testing.T) {
	for way, take := range every {
		t.Run(way, func(t *testing.T) {
			var before, after []int
			var seen []hapax.ID
			var caller string
			r := newStrategies(t, strategy.Plugin{
				Name: "watch",
				Before: func(ctx context.Context, c strategy.Call) error {
					before, caller = append(before, c.N), strategy.CallerOf(ctx)
					return nil
				},
				After: func(_ context.Context, _ strategy.Call, ids strategy.Numbers) error {
					after = append(after, ids.Len())
					seen = slices.AppendSeq(seen, ids.All())
					return nil
				},
			})
			s := open(t, memstore.New(), Options{Strategies: r, Tags: map[string]TagConfig{"orders": {Code: "O-{id:6}"}}})
			ctx := auth.NewContext(t.Context(), nil, "192.0.2.7:4711")
			if _, err := s.CreateTag(ctx, hapax.Tag{Name: "orders"}, hapax.CreateFirstUse); err != nil {
				t.Fatal(err)
			}
			var all []hapax.ID
			for range 2 { // on a line that is to be opened, and on one that is
				ids, err := take(ctx, s, "orders", 5)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, ids...)
			}
			if !slices.Equal(before, []int{5, 5}) || caller != "192.0.2.7" {
				t.Errorf("Before was called for %v, by %q", before, caller)
			}
			if way == "Allocate" { // issued elsewhere
				return
			}
			if !slices.Equal(after, []int{5, 5}) || !slices.Equal(seen, all) {
				t.Errorf("After saw %v: %v of %v", after, seen, all)
			}
		})
	}
}

func TestVetoInEveryWay(t *testing.T) {
	for way, take := range every {
		t.Run(way, func(t *testing.T) {
			words := errors.New("we are closed")
			r := newStrategies(t, strategy.Plugin{Name: "hours", Tags: []string{"orders"}, Before: func(context.Context, strategy.Call) error { return words }})
			store := memstore.New()
			s := open(t, store, Options{Strategies: r, Tags: map[string]TagConfig{"orders": {Code: "O-{id:6}"}, "other": {Code: "O-{id:6}"}}})
			for _, tag := range []string{"orders", "other"} {
				if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: tag}, hapax.CreateFirstUse); err != nil {
					t.Fatal(err)
				}
			}
			_, err := take(t.Context(), s, "orders", 3)
			veto, ok := errors.AsType[*strategy.VetoError](err)
			if !ok || veto.Plugin != "hours" || !errors.Is(err, words) || hapax.CodeOf(err) != strategy.ErrRejected.Code() {
				t.Errorf("got %v", err)
			}
			if _, err := take(t.Context(), s, "other", 3); err != nil {
				t.Errorf("another tag: %v", err)
			}
			if err := r.Switch("hours", false); err != nil {
				t.Fatal(err)
			}
			if ids, err := take(t.Context(), s, "orders", 3); err != nil || !slices.Equal(ids, []hapax.ID{1, 2, 3}) {
				t.Errorf("switched off: %v, %v, want the first numbers", ids, err)
			}
		})
	}
}

func TestVetoOfOne(t *testing.T) {
	r := newStrategies(t, strategy.Plugin{Name: "no", Before: func(context.Context, strategy.Call) error { return errors.New("no") }})
	s := open(t, memstore.New(), Options{Strategies: r})
	for range 2 {
		if _, err := s.Next(t.Context(), "orders"); !errors.Is(err, strategy.ErrRejected) {
			t.Errorf("Next: %v", err)
		}
		if _, err := s.NextBytes(t.Context(), []byte("orders")); !errors.Is(err, strategy.ErrRejected) {
			t.Errorf("NextBytes: %v", err)
		}
	}
}

// TestPluginsOfPeriods has the plugins of a tag whose numbers restart serve its lines
// too, once a call.
func TestPluginsOfPeriods(t *testing.T) {
	type call struct {
		strategy, tag string
		n             int
	}
	var calls []call
	r := newStrategies(t, strategy.Plugin{
		Name: "watch", Tags: []string{"daily"},
		Before: func(_ context.Context, c strategy.Call) error {
			calls = append(calls, call{c.Strategy(), c.Tag(), c.N})
			return nil
		},
	})
	opts := Options{Strategies: r, Tags: map[string]TagConfig{"daily": {Code: "{yyyy}{MM}{dd}-{seq:4}", Zone: "UTC"}}}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		mustNext(t, s, "daily")
		line, err := s.Line(t.Context(), "daily")
		if err != nil {
			t.Fatal(err)
		}
		mustNext(t, s, line)
		if _, err := s.NextCodes(t.Context(), "daily", 3); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Allocate(t.Context(), line, 4, ""); err != nil {
			t.Fatal(err)
		}
		want := []call{{"segment", "daily", 1}, {"segment", "daily", 1}, {"segment", "daily", 3}, {"segment", "daily", 4}}
		if !slices.Equal(calls, want) {
			t.Errorf("got %v", calls)
		}
	})
}

func newScramble(t *testing.T, key string) strategy.Plugin {
	t.Helper()
	c, err := strategy.NewScrambler([]byte(key), 6)
	if err != nil {
		t.Fatal(err)
	}
	return c.Plugin("coupons", "flakes")
}

// TestReplacedIsFrozen has a tag whose numbers are replaced refuse to be issued from
// in any other way, through restarts and on other nodes.
func TestReplacedIsFrozen(t *testing.T) {
	const a, b = "a-key-of-16-bytes", "b-key-of-16-bytes"
	store := memstore.New()
	nodes := map[string]*Service{
		"same":    open(t, store, Options{Strategies: newStrategies(t, newScramble(t, a))}),
		"again":   open(t, store, Options{Strategies: newStrategies(t, newScramble(t, a))}),
		"another": open(t, store, Options{Strategies: newStrategies(t, newScramble(t, b))}),
		"without": open(t, store, Options{}),
		"both":    open(t, store, Options{Strategies: newStrategies(t, newScramble(t, a), func() strategy.Plugin { p := newScramble(t, b); p.Name = "other"; return p }())}),
	}
	seen := map[hapax.ID]bool{}
	for range 200 {
		for _, node := range []string{"same", "again"} {
			id := mustNext(t, nodes[node], "coupons")
			if seen[id] {
				t.Fatalf("%d came twice", id)
			}
			seen[id] = true
		}
	}
	if id, ok := nodes["same"].Last("coupons"); ok {
		t.Errorf("the last number is told as %d, which was not shown", id)
	}
	for _, node := range []string{"another", "without", "both"} {
		if _, err := nodes[node].Next(t.Context(), "coupons"); !errors.Is(err, strategy.ErrPluginMismatch) {
			t.Errorf("%s: %v", node, err)
		}
	}
	for node, s := range nodes {
		if _, err := s.Allocate(t.Context(), "coupons", 1, ""); !errors.Is(err, strategy.ErrRejected) {
			t.Errorf("%s: a lease: %v", node, err)
		}
	}
	if _, err := nodes["same"].Reserve(t.Context(), "coupons", 5); !errors.Is(err, strategy.ErrRejected) {
		t.Errorf("in a row: %v", err)
	}

	// A tag that was created without the plugin never gets it, nor does a snowflake tag.
	for _, def := range []hapax.Tag{{Name: "coupons"}, {Name: "flakes", Kind: hapax.KindSnowflake}} {
		store := memstore.New()
		without := open(t, store, Options{})
		if _, err := without.CreateTag(t.Context(), def, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		with := open(t, store, Options{Strategies: newStrategies(t, newScramble(t, a))})
		if _, err := with.Next(t.Context(), def.Name); !errors.Is(err, strategy.ErrPluginMismatch) {
			t.Errorf("%s: %v", def.Name, err)
		}
		if _, err := without.DeleteTag(t.Context(), def.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := with.CreateTag(t.Context(), def, hapax.CreateExplicit); !errors.Is(err, strategy.ErrPluginMismatch) {
			t.Errorf("%s, revived: %v", def.Name, err)
		}
	}
}

// TestReplacedWhileIdle switches the plugin off while nothing of its tag is open: the
// tag is refused until it is on again.
func TestReplacedWhileIdle(t *testing.T) {
	r := newStrategies(t, newScramble(t, "a-key-of-16-bytes"))
	bubble(t, Options{Strategies: r, TagIdle: time.Minute}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		mustNext(t, s, "coupons")
		if err := r.Switch("scramble", false); err == nil {
			t.Error("it was switched off while its tag was open")
		}
		time.Sleep(10 * time.Minute)
		if err := r.Switch("scramble", false); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context(), "coupons"); !errors.Is(err, strategy.ErrPluginMismatch) {
			t.Errorf("switched off: %v", err)
		}
		time.Sleep(2 * refusalLife)
		if err := r.Switch("scramble", true); err != nil {
			t.Fatal(err)
		}
		mustNext(t, s, "coupons")
	})
}

// TestHooksOnceThoughTheLineIsReopened closes the line under a call.
func TestHooksOnceThoughTheLineIsReopened(t *testing.T) {
	var asked, refused atomic.Int64
	var s *Service
	r := newStrategies(t, strategy.Plugin{Name: "reopen", Before: func(context.Context, strategy.Call) error {
		asked.Add(1)
		s.reopen("orders")
		return nil
	}})
	s = open(t, memstore.New(), Options{Strategies: r})
	if err := r.OnReject("segment", func(context.Context, strategy.Refusal) { refused.Add(1) }); err != nil {
		t.Fatal(err)
	}
	for n := int64(1); n <= 20; n++ {
		mustNext(t, s, "orders")
		if asked.Load() != n || refused.Load() != 0 {
			t.Fatalf("after %d calls the hook was called %d times, and the handler %d", n, asked.Load(), refused.Load())
		}
	}
}

// TestWorkersOfPlugins refuses to lease workers whose numbers would go round a plugin.
func TestWorkersOfPlugins(t *testing.T) {
	veto := func(context.Context, strategy.Call) error { return errors.New("no") }
	for name, c := range map[string]struct {
		plugin  strategy.Plugin
		refused bool
	}{
		"every tag":          {strategy.Plugin{Before: veto}, true},
		"a tag of the pool":  {strategy.Plugin{Before: veto, Tags: []string{"orders", "events"}}, true},
		"the strategy":       {strategy.Plugin{Before: veto, Strategies: []string{"snowflake"}}, true},
		"another strategy":   {strategy.Plugin{Before: veto, Strategies: []string{"segment"}}, false},
		"another tag":        {strategy.Plugin{Before: veto, Tags: []string{"orders"}}, false},
		"off":                {strategy.Plugin{Before: veto, Off: true}, false},
		"one that only sees": {strategy.Plugin{After: func(context.Context, strategy.Call, strategy.Numbers) error { return nil }}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.plugin.Name = "p"
			s := open(t, memstore.New(), Options{Strategies: newStrategies(t, c.plugin)})
			if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "events", Kind: hapax.KindSnowflake}, hapax.CreateExplicit); err != nil {
				t.Fatal(err)
			}
			_, err := s.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: hapax.DefaultPool, Holder: "h", Term: hapax.Term{Now: time.Now(), Length: time.Second}})
			if errors.Is(err, strategy.ErrRejected) != c.refused || err != nil && !c.refused {
				t.Errorf("got %v, want refused: %v", err, c.refused)
			}
		})
	}
}

// TestSetPlugin changes plugins while the service runs.
func TestSetPlugin(t *testing.T) {
	r := newStrategies(t, strategy.Plugin{Name: "no", Off: true, Before: func(context.Context, strategy.Call) error { return errors.New("no") }})
	var log strings.Builder
	s := open(t, memstore.New(), Options{Strategies: r, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mustNext(t, s, "orders")
	st, err := s.SetPlugin(t.Context(), "no", new(true), new(7))
	if err != nil || !st.On || st.Order != 7 || !slices.Equal(st.Hooks, []string{"Before"}) {
		t.Errorf("got %+v, %v", st, err)
	}
	if _, err := s.Next(t.Context(), "orders"); !errors.Is(err, strategy.ErrRejected) {
		t.Errorf("switched on: %v", err)
	}
	if all := s.Plugins(); len(all) != 1 || all[0].Vetoes != 1 {
		t.Errorf("the plugins are %+v", all)
	}
	for what, err := range map[string]error{
		"unknown": func() error { _, err := s.SetPlugin(t.Context(), "x", new(true), nil); return err }(),
		"nothing": func() error { _, err := s.SetPlugin(t.Context(), "no", nil, nil); return err }(),
	} {
		if !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.SetPlugin(t.Context(), "no", new(false), nil); err != nil {
		t.Fatal(err)
	}
	mustNext(t, s, "orders")
	if !strings.Contains(log.String(), `msg="set plugin"`) || !strings.Contains(log.String(), "audit.plugin=no audit.on=true audit.order=7") {
		t.Errorf("the audit log says\n%s", log.String())
	}
}

func TestUsage(t *testing.T) {
	quota, err := strategy.Quota("limit", strategy.ByCaller, 10, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	broken := strategy.Plugin{Name: "broken", Usage: func() []strategy.Usage { panic("oh") }}
	twice := strategy.Plugin{Name: "twice", Usage: func() []strategy.Usage { return make([]strategy.Usage, 2) }}
	opts := Options{Strategies: newStrategies(t, quota, strategy.NewRate(time.Minute).Plugin(), broken, twice)}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		ctx := auth.NewContext(t.Context(), nil, "192.0.2.7:4711")
		for _, tag := range []string{"orders", "other"} {
			if _, err := s.NextN(ctx, tag, make([]hapax.ID, 3)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.NextN(ctx, "orders", make([]hapax.ID, 5)); !errors.Is(err, strategy.ErrRejected) {
			t.Errorf("beyond the quota: %v", err)
		}
		got := s.Usage("orders")
		if want := (api.Usage{Plugin: "rate", Tag: "orders", Caller: "192.0.2.7", Window: api.Window(time.Minute), Current: 3}); len(got) != 1 || got[0] != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		for _, u := range []api.Usage{
			{Plugin: "limit", Caller: "192.0.2.7", Window: api.Window(time.Minute), Current: 6, Limit: 10},
			{Plugin: "rate", Tag: "other", Caller: "192.0.2.7", Window: api.Window(time.Minute), Current: 3},
		} {
			if !slices.Contains(s.Usage(""), u) {
				t.Errorf("%+v is not in %+v", u, s.Usage(""))
			}
		}
		if got := s.usage("", 1); len(got) != 1 || got[0].Plugin != "limit" {
			t.Errorf("the largest is %+v", got)
		}
		values, _ := gather(t, s)
		for name, want := range map[string]float64{
			"hapax_plugin_numbers{caller=192.0.2.7,plugin=rate,tag=orders,window=1m}":          3,
			"hapax_plugin_numbers_previous{caller=192.0.2.7,plugin=rate,tag=orders,window=1m}": 0,
			"hapax_plugin_numbers{caller=192.0.2.7,plugin=limit,window=1m}":                    6,
			"hapax_plugin_limit{plugin=limit,window=1m}":                                       10,
			"hapax_plugin_vetoes_total{plugin=limit}":                                          1,
			"hapax_plugin_failures_total{plugin=rate}":                                         0,
		} {
			if got, ok := values[name]; got != want || !ok {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}
