package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
)

// A diagnosis is a line of hapax doctor.
type diagnosis struct{ Harm, Part, Detail, Do, See string }

func doctor(t *testing.T, dir string, args ...string) (all []diagnosis, r result) {
	t.Helper()
	r = run(t, dir, append([]string{"doctor", "--json"}, args...)...)
	for line := range strings.Lines(r.out) {
		var d diagnosis
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, d)
	}
	harms := []string{"danger", "soon", "weak", "ok"}
	if !slices.IsSortedFunc(all, func(a, b diagnosis) int { return slices.Index(harms, a.Harm) - slices.Index(harms, b.Harm) }) {
		t.Errorf("not in the order of harm: %+v", all)
	}
	return all, r
}

// Doctor finds nothing wrong where nothing is, before a server runs, and beside it, and
// says what is wrong where something is, the worst first.
func TestDoctor(t *testing.T) {
	t.Parallel()
	server := testservers.SharedPostgres(t)
	rig := newStateRig(t, server)
	dir := rig.dir
	find := func(all []diagnosis, harm, part, detail string) {
		t.Helper()
		if !slices.ContainsFunc(all, func(d diagnosis) bool {
			return d.Harm == harm && strings.HasPrefix(d.Part, part) && strings.Contains(d.Detail, detail)
		}) {
			t.Errorf("no %s of %s with %q in %+v", harm, part, detail, all)
		}
	}
	flags := []string{"--store", rig.store, "--data", "a"}
	all, r := doctor(t, dir, flags...)
	if r.code != 0 {
		t.Errorf("before the first start: %+v", r)
	}
	find(all, "ok", "server", "none runs here")
	s := rig.node("a", "http: 127.0.0.1:0\n")
	takeSoon(t, s, "orders", 1)
	all, r = doctor(t, dir, append(flags, "--http", "127.0.0.1:0")...)
	if r.code != 0 {
		t.Errorf("beside a server: %+v", r)
	}
	find(all, "ok", "server", "it is serving")
	find(all, "ok", "clock", "of the store's")
	find(all, "ok", "disk", "to write durably")
	find(all, "ok", "version", "go1")

	rig.proxy.Cut()
	s.await(`"alarm":"store_lost"`)
	all, r = doctor(t, dir, append(flags, "--http", "127.0.0.1:0")...)
	if r.code != 1 || all[0].Harm != "danger" {
		t.Errorf("without the store: %+v", r)
	}
	find(all, "danger", "store", "")
	find(all, "danger", "server", "store_unavailable")

	a := newAuthority(t)
	a.sign("server", false)
	all, r = doctor(t, dir, "--store", "memory:", "--data", "none", "--http", "127.0.0.1:0", "--tls-cert", a.file("server.pem"), "--tls-key", a.file("server.key"))
	if r.code != 1 {
		t.Errorf("a store in memory: %+v", r)
	}
	find(all, "danger", "store", "forgets everything")
	find(all, "soon", "certificate", "ends at")
	if r := run(t, dir, "doctor", "--max-wait", "soon"); r.code != 2 {
		t.Errorf("a bad configuration: %+v", r)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", ".doctor-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("a data directory was made")
	}
}

// hapax status tells the node's budget, and with --fleet the least of all nodes, and who
// did not answer.
func TestFleetBudget(t *testing.T) {
	t.Parallel()
	rig := newStateRig(t, testservers.SharedPostgres(t))
	a := rig.node("a", "pools: {default: {grant: 5m, max_grant: 5m}}\n")
	b := rig.node("b", "pools: {default: {grant: 20s, max_grant: 20s}}\n")
	takeSoon(t, a, "snowflake", 1)
	takeSoon(t, b, "snowflake", 1)
	type budgets struct {
		Budget *struct{ Seconds float64 } `json:"outage_budget"`
		Fleet  *struct {
			Budget     *struct{ Seconds float64 } `json:"outage_budget"`
			Node       string
			Answered   int
			Unanswered []string
		}
	}
	ask := func() (st budgets) {
		t.Helper()
		if err := json.Unmarshal([]byte(ok(t, rig.dir, "status", "--server", a.url, "--json", "--fleet")), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	st := ask()
	if st.Budget == nil || st.Budget.Seconds < 60 || st.Fleet == nil || st.Fleet.Budget == nil || st.Fleet.Budget.Seconds > 20 || st.Fleet.Answered != 2 || !strings.Contains(st.Fleet.Node, ":") {
		t.Errorf("got %+v", st)
	}
}
