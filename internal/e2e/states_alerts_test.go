package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/testservers"
)

// An alarmSink is where nodes send their alarms.
type alarmSink struct {
	url string

	mu     sync.Mutex // guards raised
	raised map[string]bool
}

func newAlarmSink(t *testing.T) *alarmSink {
	t.Helper()
	sink := &alarmSink{raised: map[string]bool{}}
	const path = "/alarms"
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path { // a client of a server that had this port before
			http.NotFound(w, r)
			return
		}
		var n struct{ Alarm, State, Detail, See string }
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &n)
		}
		if err != nil || r.Method != http.MethodPost || n.Detail == "" || n.See == "" || n.State != "raised" && n.State != "cleared" {
			t.Errorf("an alarm that cannot be understood: %s: %s: %v", r.Method, body, err)
		}
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if n.State == "raised" {
			sink.raised[n.Alarm] = true
		}
	}))
	t.Cleanup(web.Close)
	sink.url = web.URL + path
	return sink
}

func (s *alarmSink) heard(alarm string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raised[alarm]
}

// seriesOf returns the series of a page of metrics, by name and labels.
func seriesOf(page string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(page) {
		name, value, ok := cutLast(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] = v
		}
	}
	return all
}

func cutLast(text, sep string) (before, after string, found bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// rulesFile is what the alerts are judged by.
const rulesFile = "../../deploy/prometheus/rules.yml"

// scrapes are the metrics of nodes in their states.
type scrapes struct {
	mu    sync.Mutex // guards tests
	tests []string
}

var metricForm = regexp.MustCompile(`\b(?:hapax|process)_[a-z_]+\b`)

// add keeps the metrics of a node before and in a state, as a test of promtool: the state
// begins after 15 s, and is looked at after two minutes; if its counters grow, what they
// grew by is what they grow by in each 15 s, and it is looked at later.
func (s *scrapes) add(test stateTest, before, after map[string]float64) {
	var b strings.Builder
	fmt.Fprintf(&b, "  - name: %q\n    interval: 15s\n    input_series:\n", test.name)
	now := float64(time.Now().Unix())
	value := func(name string, of map[string]float64) string {
		v, ok := of[name]
		switch {
		case !ok:
			return "_"
		case strings.Contains(name, "_timestamp_seconds"):
			v -= now // the clock of promtool begins at 0
		}
		return strings.TrimPrefix(strconv.FormatFloat(v, 'g', -1, 64), "+")
	}
	needed := metricsOfRules()
	names := maps.Clone(after)
	maps.Copy(names, before)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		metric, labels, _ := strings.Cut(name, "{")
		if !needed[metric] || strings.HasPrefix(metric, "hapax_refill_seconds") && !slices.Contains(test.alerts, "HapaxStoreSlow") {
			continue // this machine may be slow itself
		}
		if test.heals && strings.Contains(labels, `kind="refused"`) {
			continue
		}
		labels = strings.TrimSuffix(labels, "}")
		if labels != "" {
			labels += ","
		}
		values := value(name, before) + strings.Repeat(" "+value(name, after), 40)
		switch {
		case test.gone: // what Prometheus notes of a target that does not answer
			values = value(name, before) + " stale"
		case test.grows && (strings.HasSuffix(metric, "_total") || strings.HasSuffix(metric, "_sum") || strings.HasSuffix(metric, "_count")):
			values = fmt.Sprintf("%s+%gx40", value(name, before), after[name]-before[name])
		}
		fmt.Fprintf(&b, "      - series: '%s{%sjob=\"hapax\",instance=\"node\"}'\n        values: '%s'\n", metric, labels, values)
	}
	up, at := "1x40", "2m"
	switch {
	case test.gone:
		up = "1 0x40"
	case test.grows:
		at = "8m"
	}
	fmt.Fprintf(&b, "      - series: 'up{job=\"hapax\",instance=\"node\"}'\n        values: '%s'\n", up)
	fmt.Fprintf(&b, "    promql_expr_test:\n      - expr: group by (alertname) (ALERTS{alertstate=\"firing\"})\n        eval_time: %s\n        exp_samples:", at)
	if len(test.alerts) == 0 {
		b.WriteString(" []")
	}
	for _, alert := range test.alerts {
		fmt.Fprintf(&b, "\n          - {labels: '{alertname=\"%s\"}', value: 1}", alert)
	}
	b.WriteString("\n")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tests = append(s.tests, b.String())
}

// metricsOfRules returns the names of the series that the rules look at.
var metricsOfRules = sync.OnceValue(func() map[string]bool {
	text, _ := os.ReadFile(rulesFile) // judge tells if it cannot be read
	all := map[string]bool{}
	for _, name := range metricForm.FindAllString(string(text), -1) {
		all[name] = true
	}
	return all
})

// judge has Prometheus judge by the rules whether exactly the alerts of each state fire.
func (s *scrapes) judge(t *testing.T) {
	t.Helper()
	promtool := testservers.Require(t, []string{"promtool"})
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "states.yml")
	text := "rule_files: ['" + rules + "']\nevaluation_interval: 15s\ntests:\n" + strings.Join(s.tests, "")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", rules).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := exec.Command(promtool, "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
