package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// The numbers of a uid-generator deployment from 2019 until its time bits ran out.
var uidInUse = []string{"--min", "3289184013515161600", "--max", "9223372036854775807"}

func TestPlan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	type planned struct {
		Layout   string
		Disjoint *bool
		Values   struct{ Min, Max string }
		Lacks    []string
	}
	plan := func(code int, args ...string) (p planned, r result) {
		t.Helper()
		r = run(t, dir, append([]string{"plan", "--json"}, args...)...)
		if r.code != code {
			t.Fatalf("plan %q: exit code %d, want %d: %s", args, r.code, code, r.err)
		}
		if r.out != "" {
			if err := json.Unmarshal([]byte(r.out), &p); err != nil {
				t.Fatal(err)
			}
		}
		return p, r
	}
	if p, _ := plan(0); p.Disjoint != nil || !strings.HasPrefix(p.Layout, "time:") {
		t.Errorf("without wishes: %+v", p)
	}
	found, _ := plan(0, append([]string{"--rate", "100000", "--nodes", "100", "--starts", "1000"}, uidInUse...)...)
	if found.Disjoint == nil || !*found.Disjoint {
		t.Errorf("beside uid-generator: %+v", found)
	}
	again, _ := plan(0, append([]string{"--layout", found.Layout}, uidInUse...)...)
	if !*again.Disjoint || again.Values.Max != found.Values.Max {
		t.Errorf("checked again: %+v, found was %+v", again, found)
	}
	text := ok(t, dir, append([]string{"plan", "--layout", found.Layout}, uidInUse...)...)
	if !strings.Contains(text, "\ndisjoint\tyes: "+found.Values.Max+" < 3289184013515161600\n") {
		t.Errorf("the proof is missing:\n%s", text)
	}
	text = ok(t, dir, "plan", "--layout", "leaf", "--nodes", "24") // 1,000 more worker IDs, each taken for 330 s
	for _, want := range []string{"\nstarts a day\t261818, if each follows a crash\n", "\nif each start uses one up\tthey last 1024 starts\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	copied, r := plan(1, append([]string{"--layout", "time:30,worker:22,sequence:11,unit=1s,epoch=2021-01-19T16:00:00Z"}, uidInUse...)...)
	if *copied.Disjoint || !strings.Contains(r.err, "among those in use, from 20") {
		t.Errorf("the layout that is widely copied: %+v, %s", copied, r.err)
	}
	if p, r := plan(1, "--layout", "js-safe-53", "--nodes", "9"); len(p.Lacks) != 1 || !strings.Contains(r.err, "9 worker IDs are needed") {
		t.Errorf("too many nodes: %+v, %s", p, r.err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--min", "1"}, "--min and --max belong together"},
		{[]string{"--min", "2", "--max", "1"}, "invalid min 2: want up to max, which is 1"},
		{[]string{"--min", "x", "--max", "1"}, "x"},
		{[]string{"--rate", "-1"}, "invalid rate -1"},
		{[]string{"--nodes", "-1"}, "invalid nodes -1"},
		{[]string{"--years", "NaN"}, "invalid years NaN"},
		{[]string{"--layout", "nonsense"}, "layout"},
		{[]string{"--min", "0", "--max", "9223372036854775807"}, "no room"},
		{[]string{"--js-safe", "--nodes", "1000", "--rate", "1e9"}, "want 53 bits"},
	} {
		if _, r := plan(2, c.args...); !strings.Contains(r.err, c.want) || r.out != "" {
			t.Errorf("plan %q: %s%s", c.args, r.out, r.err)
		}
	}
	if _, r := plan(1, "--layout", "uidgenerator-28-22-13"); !strings.Contains(r.err, "2024-11-20T13:24:16Z") {
		t.Errorf("the old layout: %s", r.err)
	}
}
