package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
)

func TestPagesAreCurrent(t *testing.T) {
	all, err := pages()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		if got, err := os.ReadFile(filepath.Join(docs, name)); err != nil || string(got) != want {
			t.Errorf("docs/%s is not what the code says (%v); run: go generate ./internal/signals", name, err)
		}
	}
}

// Every alert is in the runbook and links to its entry there, every entry's alert
// is among the rules, and each metric of an expression exists.
func TestRulesAndRunbook(t *testing.T) {
	all, err := readAlerts(rules)
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, m := range health.Metrics() {
		known = append(known, m.Name)
	}
	var alerts []string
	for _, a := range all {
		for _, name := range nameForm.FindAllString(a.Expr, -1) {
			if !slices.Contains(known, baseName(name)) {
				t.Errorf("%s%s: there is no metric %s", a.Alert, a.Record, name)
			}
		}
		if a.Alert == "" {
			continue
		}
		alerts = append(alerts, a.Alert)
		if see := signals.SeeAlert(a.Alert); see == "" || see != a.Annotations["runbook"] {
			t.Errorf("%s: the runbook has it at %q, and the rule says %q", a.Alert, see, a.Annotations["runbook"])
		}
	}
	for _, trouble := range signals.Troubles() {
		for _, name := range trouble.Alerts {
			if !slices.Contains(alerts, name) {
				t.Errorf("the runbook's %s has the alert %s, which is no rule", trouble.ID, name)
			}
		}
	}
}
