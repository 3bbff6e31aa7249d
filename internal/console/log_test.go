package console

import (
	"log/slog"
	"strings"
	"testing"
)

// The log is chosen by node and level, and leads to the tags and pools that it tells of,
// as do alarms and forecasts.
func TestLogByNodeAndLevel(t *testing.T) {
	kept := NewLog(slog.DiscardHandler)
	log := slog.New(kept)
	log.Warn("only a warning", "tag", "orders")
	log.Error("an error of a pool", "pool", "shop")
	log.Warn("alarm raised", "alarm", "workers_short", "about", "default")
	log.Warn("alarm raised", "alarm", "cannot_issue", "about", "a b")
	log.Warn("alarm raised", "alarm", "plugin_failing", "about", "a-plugin")
	log.Error("of nothing", "tag", strings.Repeat("x", 1000))
	s := newStand(t, nil, func(o *Options) { o.Log = kept })
	for path, has := range map[string][]string{
		"log": {
			"only a warning", "an error of a pool", `<a href="tag?name=orders">orders</a>`, `<a href="workers?pool=shop">shop</a>`,
			`<a href="workers?pool=default">default</a>`, `<a href="tag?name=a&#43;b">a b</a>`,
		},
		"log?level=warn":            {"only a warning", "an error of a pool"},
		"log?level=error":           {"an error of a pool"},
		"log?node=alpha":            {"only a warning"},
		"log?node=nobody":           {"Nothing of that kind", "<option selected>nobody</option>"},
		"log?level=bad":             {"only a warning"},
		"log?level=error&only=what": {"an error of a pool"},
	} {
		_, _, text := s.get(t, Prefix+path)
		wants(t, path, text, has...)
		if strings.Contains(text, `name=a-plugin"`) || strings.Contains(text, `name=xxxx`) {
			t.Errorf("%s leads to a tag that is none", path)
		}
		if strings.Contains(path, "error") && strings.Contains(text, "only a warning") || strings.Contains(path, "nobody") && strings.Contains(text, "an error of") {
			t.Errorf("%s lists too much", path)
		}
	}
}
