package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

func TestVariableTemplates(t *testing.T) {
	for _, tt := range []struct{ template, want string }{
		{"W={worker}", "W=100"},
		{"DC={worker/32}", "DC=3"},
		{"M={worker%32}", "M=4"},
		{"N={worker/8%4+1}", "N=1"},
		{"N={worker-1}", "N=99"},
		{"OPTS=-Dnode={worker} -Dmore={worker}", "OPTS=-Dnode=100 -Dmore=100"},
		{"J={{\"id\":{worker}}", `J={"id":100}`},
		{"EMPTY=={worker}", "EMPTY==100"},
	} {
		v, err := parseVariable(tt.template)
		if got := v.of(100); err != nil || got != tt.want {
			t.Errorf("%s became %q (%v), want %q", tt.template, got, err, tt.want)
		}
	}
	for _, bad := range []string{
		"", "W", "={worker}", "W=", "W=5", "W={worker", "W={Worker}", "W={worker/}", "W={worker/0}", "W={worker%0}", "W={worker*2}",
		"W={worker/32", "A B={worker}", "W={worker//2}", "W={worker/-2}", "W={worker/99999999999}", "W={}",
	} {
		if _, err := parseVariable(bad); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%q was taken: %v", bad, err)
		}
	}
}

// A worker ID whose values another one has too is told of.
func TestAlikeWorkers(t *testing.T) {
	for _, tt := range []struct {
		templates string
		ids       hapax.WorkerRange
		worker    int64
		want      string // empty: nothing
	}{
		{"W={worker}", hapax.WorkerRange{Hi: 1024}, 37, ""},
		{"W={worker%32}", hapax.WorkerRange{Hi: 1024}, 37, "37 and 5 give the same W:"},
		{"W={worker%32}", hapax.WorkerRange{Hi: 1024}, 5, "5 and 37 give the same W:"},
		{"W={worker%32}", hapax.WorkerRange{Hi: 32}, 5, ""},
		{"W={worker%32}", hapax.WorkerRange{Lo: 32, Hi: 64}, 37, ""},
		{"W={worker%32} DC={worker/32}", hapax.WorkerRange{Hi: 1 << 22}, 1<<22 - 1, ""},
		{"W={worker%32} DC={worker/32%32}", hapax.WorkerRange{Hi: 4096}, 37, "37 and 1061 give the same W, DC:"},
		{"W={worker%32}", hapax.WorkerRange{Hi: 1 << 40}, 1 << 39, " and 0 give the same W:"},
		{"", hapax.WorkerRange{Hi: 1024}, 37, ""},
	} {
		var vars []variable
		for text := range strings.FieldsSeq(tt.templates) {
			v, err := parseVariable(text)
			if err != nil {
				t.Fatal(err)
			}
			vars = append(vars, v)
		}
		var told string
		warnAlike(vars, tt.ids, tt.worker, func(text string) { told += text })
		if !strings.Contains(told, tt.want) || (told == "") != (tt.want == "") {
			t.Errorf("%q of %v, worker ID %d: %q, want %q", tt.templates, tt.ids, tt.worker, told, tt.want)
		}
	}
	for _, g := range generators {
		warnAlike(g.variables(), hapax.WorkerRange{Lo: g.least, Hi: g.most + 1}, g.most, func(text string) { t.Errorf("%s: %s", g.name, text) })
	}
}

// Every known generator has a range, templates that can be read, and a place in order.
func TestKnownGenerators(t *testing.T) {
	last := ""
	for _, g := range generators {
		if g.name <= last || g.least < 0 || g.most <= g.least || g.ahead <= 0 || g.knob == "" {
			t.Errorf("%+v after %q", g, last)
		}
		last = g.name
		for _, v := range g.variables() {
			if text := v.of(g.most); strings.Contains(text, "{") {
				t.Errorf("%s: %s", g.name, text)
			}
		}
	}
}

func TestParseWorkers(t *testing.T) {
	for text, want := range map[string]hapax.WorkerRange{"0-31": {Lo: 0, Hi: 32}, "7": {Lo: 7, Hi: 8}, " 1 - 1023 ": {Lo: 1, Hi: 1024}} {
		if got, err := parseWorkers(text); err != nil || got != want {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"-1", "5-4", "a", "1-b", "1-2-3", "-", "9223372036854775807"} {
		if got, err := parseWorkers(bad); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%q is %v: %v", bad, got, err)
		}
	}
}

// What names a holder fits, whatever the host and the command are called.
func TestHolder(t *testing.T) {
	text := holder("exec", strings.Repeat("näme ", 50), "/usr/bin/"+strings.Repeat("x", 300))
	if err := hapax.ValidateName("holder", text); err != nil {
		t.Errorf("%q: %v", text, err)
	}
	if text == holder("exec", strings.Repeat("näme ", 50), "/usr/bin/"+strings.Repeat("x", 300)) {
		t.Errorf("two holders are called %q", text)
	}
}
