// Command signalsdoc writes docs/runbook.md and docs/metrics.md, from the table in
// package signals, the metrics that the code describes and the alerts of
// deploy/prometheus. "go generate ./internal/signals" runs it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	_ "github.com/hapax-id/hapax/internal/server" // which describes metrics, too
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
)

// Seen from a package, where go generate runs commands.
const (
	docs  = "../../docs"
	rules = "../../deploy/prometheus/rules.yml"
)

func main() {
	pages, err := pages()
	for name, text := range pages {
		if err == nil {
			err = os.WriteFile(filepath.Join(docs, name), []byte(text), 0o600)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "signalsdoc:", err)
		os.Exit(1)
	}
}

// pages returns the documents by the names of their files.
func pages() (map[string]string, error) {
	alerts, err := readAlerts(rules)
	if err != nil {
		return nil, err
	}
	return map[string]string{"runbook.md": runbook(), "metrics.md": metrics(alerts)}, nil
}

// An alert is one of the rules.
type alert struct {
	Alert, Record, Expr string
	Annotations         map[string]string
}

// readAlerts returns the alerts of a file of rules.
func readAlerts(path string) ([]alert, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	var all []alert
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all, nil
}

const runbookHead = `# Runbook

<!-- Made by "go generate ./internal/signals" from the table in package signals. -->

What the server can tell you, what it means and what to do. Every error code, warning,
alarm and alert is here; lines of the log and alarms name their entry (` + "`see`" + `).

At three in the morning, begin with

` + "```sh" + `
hapax status     # can it issue, for how long without the store, what is wrong
hapax doctor     # what is wrong with this machine and the store, the worst first
hapax nodes      # who else is there, and who is missing
` + "```" + `

They ask the server that runs here, or the one that ` + "`--server`" + ` or the variable HAPAX_SERVER
names. Where it wants a token, HAPAX_TOKEN or ` + "`--token-file`" + ` needs one with the scope ` + "`admin`" + `,
or ` + "`read`" + `. Where a package runs the service, type ` + "`sudo hapax doctor`" + `: only then can it read
the settings.

The alerts are those of [deploy/prometheus/rules.yml](../deploy/prometheus/rules.yml); what
each metric means is in [metrics](metrics.md).
`

func runbook() string {
	var b strings.Builder
	b.WriteString(runbookHead)
	for _, s := range signals.Sections() {
		b.WriteString("\n## " + s.Title + "\n")
		for _, t := range s.Troubles {
			b.WriteString("\n" + t.Text())
		}
	}
	return b.String()
}

const metricsHead = `# Metrics

<!-- Made by "go generate ./internal/signals" from the metrics that the code describes. -->

What ` + "`/metrics`" + ` shows beside the metrics of the Go runtime and the process, whose names
begin with ` + "`go_` and `process_`" + `. Metrics of a foreign system that the server stands in for
have the label ` + "`beside`" + ` with its name. Labels are bounded: tags, pools, holders and tokens
beyond the first hundred are summed up under ` + "`_other`" + `.

Where the environment names an OpenTelemetry collector, the same metrics go there, too:
see [operating](operating.md#opentelemetry).

| metric | type | labels | meaning | alerts |
|---|---|---|---|---|
`

func metrics(alerts []alert) string {
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, m := range health.Metrics() {
		labels := "-"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		used := "-"
		if names := usedBy(m.Name, alerts); len(names) > 0 {
			used = strings.Join(names, ", ")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, labels, m.Help, used)
	}
	return b.String()
}

// nameForm is what a metric of hapax is called in an expression.
var nameForm = regexp.MustCompile(`\bhapax_[a-z_]+\b`)

// usedBy returns links to the entries of the alerts whose expression has a metric.
func usedBy(metric string, alerts []alert) []string {
	var names []string
	for _, a := range alerts {
		uses := slices.ContainsFunc(nameForm.FindAllString(a.Expr, -1), func(name string) bool { return baseName(name) == metric })
		if see := signals.SeeAlert(a.Alert); uses && see != "" {
			names = append(names, "["+a.Alert+"]("+strings.TrimPrefix(see, "docs/")+")")
		}
	}
	return names
}

// baseName returns the metric of a series of a histogram.
func baseName(series string) string {
	for _, suffix := range []string{"_sum", "_count", "_bucket"} {
		if base, ok := strings.CutSuffix(series, suffix); ok {
			return base
		}
	}
	return series
}
