package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

const testKey = "code_keys: {k1: env:KEY}\n"

func loadPlugins(t *testing.T, text string, setup Setup) (*strategy.Registry, error) {
	t.Helper()
	c, err := Load(Sources{File: writeFile(t, testKey+text), Env: env(map[string]string{"KEY": strings.Repeat("k", 16)})})
	if err != nil {
		return nil, err
	}
	c.Setup = setup
	return c.Strategies(slog.New(slog.DiscardHandler), NewLateStore())
}

func TestConfiguredPlugins(t *testing.T) {
	r, err := loadPlugins(t, `
plugins:
  limit: {kind: quota, limit: 5, per: 1m, by: caller, order: 3}
  rate: {kind: rate, strategies: [segment, mine], off: true}
  who: {kind: history, sync: true, age: 2h, size: 1048576}
  hide: {kind: scramble, tags: coupons, key: k1, digits: 6, order: -1}
  brought: {order: 7, off: true}
`, func(r *strategy.Registry, _ driver.Store) error {
		return errors.Join(
			r.Register("mine", strategy.Func(func(context.Context, hapax.Tag) (hapax.Issuer, error) { return nil, errors.New("none") })),
			r.Use(strategy.Plugin{Name: "brought"}))
	})
	if err != nil {
		t.Fatal(err)
	}
	type plugin struct {
		name       string
		order      int
		off        bool
		tags       string
		strategies string
	}
	var got []plugin
	for _, p := range r.Plugins() {
		got = append(got, plugin{p.Name, p.Order, p.Off, strings.Join(p.Tags, ","), strings.Join(p.Strategies, ",")})
	}
	want := []plugin{{"hide", -1, false, "coupons", ""}, {"rate", 0, true, "", "segment,mine"}, {"limit", 3, false, "", ""}, {"brought", 7, true, "", ""}, {"who", historyOrder, false, "", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if frozen := r.Frozen("segment", "coupons"); len(frozen) != 1 || !strings.HasPrefix(frozen[0], "scramble:6:") {
		t.Errorf("frozen is %q", frozen)
	}
}

func TestWrongPlugins(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no kind":              {"x: {order: 1}", "missing plugins.x.kind: want one of history, quota, rate, scramble, because the program has registered no plugin of this name"},
		"unknown kind":         {"x: {kind: foo}", `invalid plugins.x.kind "foo": want one of history, quota, rate, scramble`},
		"another kind's key":   {"x: {kind: rate, limit: 5}", "plugins.x.limit"},
		"a key without a kind": {"brought: {limit: 5}", "plugins.brought.limit"},
		"tags without a kind":  {"brought: {tags: a}", "plugins.brought.tags"},
		"a beginning":          {"x: {kind: quota, limit: 1, per: 1m, tags: [coup*]}", `invalid plugins.x.tags "coup*": want whole names of tags`},
		"no limit":             {"x: {kind: quota, per: 1m}", "invalid plugins.x.limit 0: want 1 or more"},
		"no window":            {"x: {kind: quota, limit: 1}", "invalid plugins.x.per 0s: want 1s or more"},
		"by whom":              {"x: {kind: quota, limit: 1, per: 1m, by: node}", `invalid plugins.x.by "node": want tag, caller`},
		"short windows":        {"x: {kind: rate, windows: [1ms]}", "plugins.x.windows"},
		"a window twice":       {"x: {kind: rate, windows: [60s, 1m]}", "plugins.x.windows"},
		"too many windows":     {"x: {kind: rate, windows: [1s, 2s, 3s, 4s, 5s, 6s, 7s, 8s, 9s]}", "plugins.x.windows"},
		"unknown strategy":     {"x: {kind: rate, strategies: mine}", `invalid plugins.x.strategies "mine": want one of segment, snowflake`},
		"order":                {"x: {kind: rate, order: 1000000001}", "plugins.x.order"},
		"a tag without a name": {"x: {kind: rate, tags: ['']}", "plugins.x.tags"},
		"no key":               {"x: {kind: scramble, tags: a, digits: 6}", "missing plugins.x.key: want the ID of a key under code_keys (k1)"},
		"unknown key":          {"x: {kind: scramble, tags: a, key: k2, digits: 6}", `invalid plugins.x.key "k2": want the ID of a key under code_keys (k1)`},
		"no digits":            {"x: {kind: scramble, tags: a, key: k1}", "invalid plugins.x.digits 0: want 2 to 19"},
		"scrambles everything": {"x: {kind: scramble, key: k1, digits: 6}", "missing plugins.x.tags"},
		"scrambles Vesta":      {"x: {kind: scramble, key: k1, digits: 6, tags: [a, vesta]}\ncompat: {vesta: {}}", "plugins.x.tags"},
		"a young history":      {"x: {kind: history, age: 59m}", "invalid plugins.x.age 59m0s: want 1h to 87600h"},
		"a history too large":  {"x: {kind: history, size: 1048577}", "invalid plugins.x.size 1048577: want 1 to 1048576"},
		"a negative history":   {"x: {kind: history, size: -1}", "invalid plugins.x.size -1: want 1 to 1048576"},
		"two histories":        {"x: {kind: history}\n  y: {kind: history}", `invalid plugins.y.kind "history": want one plugin of this kind`},
		"taken":                {"brought: {kind: rate}", "plugins.brought"},
		"misspelt":             {"x: {knd: rate}", "did you mean plugins.x.kind?"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadPlugins(t, "plugins:\n  "+c.text, func(r *strategy.Registry, _ driver.Store) error { return r.Use(strategy.Plugin{Name: "brought"}) })
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestLateStore(t *testing.T) {
	s := NewLateStore()
	if _, err := s.Tag(t.Context(), "a"); !errors.Is(err, hapax.ErrClosed) {
		t.Errorf("before it is open: %v", err)
	}
}
