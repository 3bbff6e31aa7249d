package witness_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Rules of the guard, each with the line of code that keeps it, a twin in which that is
// broken, and a world that notices. All twins are built into one program, in which the
// variable TWIN chooses.
var broken = []struct {
	rule       string
	file       string
	code, twin string
	test       string
}{
	{"every start has a row of its own, and a wait", "join.go", "err != nil || !ready {", `err != nil || !ready && !twin("wait") {`, "TestHungConnections"},
	{"a joiner needs one that serves", "join.go", "all && (serves || ", `all && (twin("serves") || serves || `, "TestNewNodeOnAWipedStore"},
	{"a changed primary does not shorten a joiner's wait", "grant.go", "!away && (m.asks || serving)", `!away && (m.asks || serving || twin("joiner"))`, "TestJoinerAtAChangedPrimary"},
	{"who was out of contact asks the others", "grant.go", "p.sent-m.contact > g.opts.wait()", `p.sent-m.contact > g.opts.wait() && !twin("away")`, "TestReturnsToARestoredStore"},
	{"a grant answered in another state is abandoned", "grant.go", "g.state != Serving || g.me.row != p.Row", `!twin("abandon") && g.state != Serving || g.me.row != p.Row`, "TestNoGrantUnderAFence"},
	{"a pair that is lower is a loss", "grant.go", "ok && got.from.Less(want)", `ok && !twin("pair") && got.from.Less(want)`, "TestEditedMark"},
	{"the token comes first in a pair", "lines.go", "return p.Token < q.Token ||", `return !twin("token") && p.Token < q.Token || twin("token") && p.Mark < q.Mark ||`, "TestHandBackWhoseAnswerIsLost"},
	{"the healer waits", "heal.go", "case !met:", `case !met && !twin("healer"):`, "TestHealerWaits"},
	{"what was said is looked at each time", "evidence.go", "said.first == string(stands)", `(twin("said") || said.first == string(stands))`, "TestCopyFromDuringTheHealing"},
	{"who was cut off since it spoke waits", "heal.go", "heard && g.now()-g.stoodAt <= g.opts.wait()", `heard && (twin("spoke") || g.now()-g.stoodAt <= g.opts.wait())`, "TestSpokeAndWasCutOff"},
	{"who returns compares marks, not pairs", "statement.go", "now.Token < p.Token || now.Mark < p.Mark", `map[bool]bool{true: now.Less(p), false: now.Token < p.Token || now.Mark < p.Mark}[twin("marks")]`, "TestReturnsWithTheLowerPair"},
	{"a witness speaks up to what it knows", "evidence.go", "spoken && grants >= n.grants", `spoken && (twin("most") || grants >= n.grants)`, "TestOlderWitness"},
	{"lines are raised above marks and tokens", "lines.go", "l.pairs[name] = l.pairs[name].above(p)", `l.pairs[name] = map[bool]Pair{false: l.pairs[name].above(p), true: l.pairs[name].max(p)}[twin("above")]`, "TestRaisesAboveMarksAndTokens"},
	{"the latest row judges alone", "join.go", "latest = max(latest, row)", `if twin("latest") && latest != "" { latest = min(latest, row) } else { latest = max(latest, row) }`, "TestOnlyTheLatestRowJudges"},
}

func TestBrokenRules(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package anew")
	}
	dir, err := os.MkdirTemp("", "twins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"twin.go": "package witness\n\nimport \"os\"\n\nfunc twin(name string) bool { return os.Getenv(\"TWIN\") == name }\n"}
	for _, b := range broken {
		if texts[b.file] == "" {
			text, err := os.ReadFile(b.file)
			if err != nil {
				t.Fatal(err)
			}
			texts[b.file] = string(text)
		}
	}
	for _, b := range broken {
		if strings.Count(texts[b.file], b.code) != 1 {
			t.Fatalf("%s: %q is %d times in %s; want it once", b.rule, b.code, strings.Count(texts[b.file], b.code), b.file)
		}
		texts[b.file] = strings.Replace(texts[b.file], b.code, b.twin, 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range texts {
		overlay.Replace[filepath.Join(here, file)] = filepath.Join(dir, file)
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(overlay)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "twins.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, b := range broken {
		t.Run(b.rule, func(t *testing.T) {
			_, name, _ := strings.Cut(b.twin, `twin("`)
			name, _, _ = strings.Cut(name, `"`)
			cmd := exec.CommandContext(t.Context(), program, "-test.run", "^"+b.test+"$")
			cmd.Env = append(os.Environ(), "TWIN="+name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("%s does not notice", b.test)
			}
			if !strings.Contains(string(out), "--- FAIL: "+b.test) {
				t.Errorf("%s does not fail, but: %.500s", b.test, out)
			}
		})
	}
}
