// Package check holds that what is under deploy for Prometheus and Grafana can be read by
// Prometheus itself. It is a module of its own, so that users of hapax need none of that.
package check

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// expressions returns those of a value read from JSON or YAML, wherever they are in it.
func expressions(v any) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			if text, ok := inner.(string); ok && key == "expr" {
				all = append(all, text)
				continue
			}
			all = append(all, expressions(inner)...)
		}
	case []any:
		for _, inner := range v {
			all = append(all, expressions(inner)...)
		}
	}
	return all
}

// variables stands in for Grafana's own texts in expressions.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$job", "hapax", "$instance", ".*")

// metrics returns the names that docs/metrics.md lists.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"up": true}
	for _, row := range regexp.MustCompile("(?m)^\\| `(hapax_[a-z_]+)` \\| (\\w+) ").FindAllStringSubmatch(string(page), -1) {
		known[row[1]] = true
		if row[2] == "histogram" {
			known[row[1]+"_sum"], known[row[1]+"_count"], known[row[1]+"_bucket"] = true, true, true
		}
	}
	return known
}

// Every expression of the dashboards and the rules is one that Prometheus' own parser
// takes, over metrics that there are.
func TestExpressions(t *testing.T) {
	known := metrics(t)
	files, err := filepath.Glob("../grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d dashboards: %v", len(files), err)
	}
	for _, path := range append(files, "../prometheus/rules.yml") {
		text, err := os.ReadFile(path)
		var whole any
		if err == nil && strings.HasSuffix(path, ".json") {
			err = json.Unmarshal(text, &whole)
		} else if err == nil {
			err = yaml.Unmarshal(text, &whole)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		found := expressions(whole)
		if len(found) < 20 {
			t.Errorf("%s has only %d expressions", path, len(found))
		}
		for _, text := range found {
			expr, err := parser.ParseExpr(variables.Replace(text))
			if err != nil {
				t.Errorf("%s: %s: %v", path, text, err)
				continue
			}
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				selector, ok := node.(*parser.VectorSelector)
				if !ok {
					return nil
				}
				for _, m := range selector.LabelMatchers {
					if m.Name == labels.MetricName && !known[m.Value] && !strings.HasPrefix(m.Value, "process_") && !strings.HasPrefix(m.Value, "hapax:") {
						t.Errorf("%s: %s: there is no metric %s", path, text, m.Value)
					}
				}
				return nil
			})
		}
	}
}
