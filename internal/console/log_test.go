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

// What is logged over and over is one entry that counts, so that there is room for others;
// what somebody did is told each time.
func TestLogRepeats(t *testing.T) {
	kept := NewLog(slog.DiscardHandler)
	log := slog.New(kept)
	log.Error("the first")
	for i := range 2 * maxKept {
		log.Warn("again", "tag", "orders")
		log.Warn("and again", "tag", "orders", "n", i%2)
		log.WithGroup("audit").Info("an action")
	}
	all := kept.last(maxKept)
	times := map[string]int{}
	for _, e := range all {
		times[e.Text+" "+e.About] += max(e.Times, 1)
	}
	if times["again tag=orders"] != 2*maxKept || times["and again tag=orders n=0"] != maxKept || times["an action "] != maxKept-3 {
		t.Errorf("of %d entries, they were logged %v times", len(all), times)
	}
	log.Warn("the last one", "tag", "orders")
	if e := kept.last(1)[0]; e.Text != "the last one" || e.Times != 0 {
		t.Errorf("the last entry is %+v", e)
	}
	s := newStand(t, nil, func(o *Options) { o.Log = kept })
	_, _, text := s.get(t, Prefix+"log?level=warn")
	wants(t, "the log", text, `again <span class="dim">600 times</span>`)
}
