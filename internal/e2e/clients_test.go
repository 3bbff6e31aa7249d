package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// The page about the test server: what it prints, its script, and what happens then.
func TestTestserverPage(t *testing.T) {
	t.Parallel()
	script := blocks(t, "docs/testing.md", "json")[0]
	file := write(t, t.TempDir(), "script.json", script)
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "testserver", "--http", "127.0.0.1:0", "--script", file, "--until-eof")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := map[string][]string{}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		what, url, _ := strings.Cut(lines.Text(), " ")
		said[what] = append(said[what], url)
	}
	if len(said["server"]) != 2 || len(said["control"]) != 1 {
		t.Fatalf("it says %q", said)
	}
	var got []string
	for range 5 {
		r, err := http.NewRequestWithContext(ctx, "POST", said["server"][0]+"/v1/tags/orders/take", strings.NewReader(`{"count":10}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer hapax_ABCDEFGHIJKLMNOPQRSTUVWXYZ")
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			got = append(got, "lost")
			continue
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		var answer struct{ First, Code string }
		if err != nil || json.Unmarshal(body, &answer) != nil {
			t.Fatal(err, string(body))
		}
		got = append(got, answer.First+answer.Code)
	}
	if want := "5000 lost store_unavailable store_unavailable 5020"; strings.Join(got, " ") != want {
		t.Errorf("it answers %q, want %q", got, want)
	}
	_ = in.Close()
	rest, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil || len(bytes.TrimSpace(rest)) > 0 {
		t.Errorf("at the end of its standard input: %v, %q", err, rest)
	}
}

// What AGENTS.md and llms.txt type works as they say, and they say the same.
func TestAgentsPage(t *testing.T) {
	t.Parallel()
	python := testservers.Require(t, []string{"python3"})
	s := serve(t, t.TempDir(), nil)
	local := strings.NewReplacer("http://127.0.0.1:8080", s.url)
	commands := blocks(t, "AGENTS.md", "sh")[0]
	_, curl, ok := strings.Cut(commands, "\n")
	if !ok || !strings.HasPrefix(curl, "curl ") {
		t.Fatalf("the commands are %q", commands)
	}
	if got := shellSession(t, t.TempDir(), nil, local.Replace(curl)); strings.TrimSpace(got) != "1" {
		t.Errorf("curl prints %q", got)
	}
	home, err := filepath.Abs("../../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", local.Replace(blocks(t, "AGENTS.md", "python")[0]))
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+home)
	out, err := cmd.CombinedOutput()
	var numbers []int64
	for text := range strings.FieldsSeq(strings.NewReplacer("[", "", "]", "", ",", "").Replace(string(out))) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatalf("it prints %q", out)
		}
		numbers = append(numbers, n)
	}
	if err != nil || len(numbers) != 4 || numbers[0] < 2 || numbers[3] != numbers[0]+3 {
		t.Errorf("%v: it prints %q", err, out)
	}
	// What stands within sentences.
	text, err := os.ReadFile("../../AGENTS.md")
	if err != nil {
		t.Fatal(err)
	}
	inline := func(begins string) string {
		_, rest, ok := strings.Cut(string(text), "`"+begins)
		code, _, closed := strings.Cut(rest, "`")
		if !ok || !closed {
			t.Fatalf("AGENTS.md has no `%s…`", begins)
		}
		return local.Replace(begins + code)
	}
	clients := filepath.Dir(home)
	for program, arg := range map[string][2]string{
		"php": {"-r", `require "` + clients + `/php/src/autoload.php"; echo ` + inline(`(new Hapax\`) + ";"},
		"node": {"-e", strings.Replace(inline("const { Client }"), `"hapax"`, strconv.Quote(clients+"/typescript"), 1) +
			`; const client = new Client("` + s.url + `"); (async () => console.log(String(` + inline("await client.") + `)))();`},
	} {
		out, err := exec.CommandContext(t.Context(), testservers.Require(t, []string{program}), arg[0], arg[1]).CombinedOutput()
		if n, bad := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64); err != nil || bad != nil || n < 2 {
			t.Errorf("%s prints %q: %v", program, out, err)
		}
	}
	body := func(file, from string) string {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(strings.NewReplacer("](docs/", "](", " of the sources", "").Replace(string(text)), from)
		if !ok {
			t.Fatalf("%s has no %q", file, from)
		}
		return rest
	}
	for _, file := range []string{"llms.txt", "docs/llms.txt"} {
		if body(file, "hapax issues") != body("AGENTS.md", "hapax issues") {
			t.Errorf("%s and AGENTS.md differ", file)
		}
	}
}

// clientThroughCrashes takes numbers in eight processes or threads of a program, some of which fork amid it, while
// each of two servers over one store is killed and comes again.
func clientThroughCrashes(t *testing.T, count int, program ...string) {
	t.Helper()
	store := testservers.Redis(t)
	var nodes [2]*serving
	dirs, at := [2]string{t.TempDir(), t.TempDir()}, [2]string{freeAddress(t), freeAddress(t)}
	start := func(i int) {
		nodes[i] = serve(t, dirs[i], []string{"HAPAX_MAX_WAIT=1m"}, "--store", store.URL, "--http", at[i])
		eventuallyTake(t, nodes[i], "other", 1)
	}
	start(0)
	start(1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience.Long)
	defer cancel()
	cmd := exec.CommandContext(ctx, program[0], append(program[1:], strconv.Itoa(count), nodes[0].url, nodes[1].url)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen, double, fallen := map[string]bool{}, 0, 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if seen[lines.Text()] {
			double++
		}
		seen[lines.Text()] = true
		if len(seen)%(count/4) != 0 || fallen == 3 {
			continue
		}
		if fallen > 0 {
			start(1 - fallen%2) // so that one always lives
		}
		nodes[fallen%2].kill()
		fallen++
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.Bytes()[max(0, errs.Len()-4000):])
	}
	t.Logf("%d numbers, %d of them twice, through %d crashes", len(seen), double, fallen)
	if double > 0 || len(seen) != count+2 || fallen != 3 {
		t.Errorf("%d numbers, %d of them twice, through %d crashes; want %d", len(seen), double, fallen, count+2)
	}
}

func TestPythonClientInterop(t *testing.T) {
	patience.Interop(t, "Python")
	t.Parallel()
	clientThroughCrashes(t, 40_000, testservers.Require(t, []string{"python3"}), "../../clients/python/tests/soak.py")
}

func TestPythonClientSoak(t *testing.T) {
	patience.Soak(t, "a million numbers through crashes")
	clientThroughCrashes(t, soakNumbers(t), testservers.Require(t, []string{"python3"}), "../../clients/python/tests/soak.py")
}

func TestTypeScriptClientSoak(t *testing.T) {
	patience.Soak(t, "a million numbers through crashes")
	clientThroughCrashes(t, soakNumbers(t), testservers.Require(t, []string{"node"}), "../../clients/typescript/tests/soak.cjs")
}

func TestPHPClientSoak(t *testing.T) {
	patience.Soak(t, "a million numbers through crashes")
	clientThroughCrashes(t, soakNumbers(t), testservers.Require(t, []string{"php"}), "../../clients/php/tests/soak.php")
}

func TestRustClientSoak(t *testing.T) {
	patience.Soak(t, "a million numbers through crashes")
	cargo := testservers.Require(t, []string{"cargo"})
	build := exec.CommandContext(t.Context(), cargo, "build", "-q", "--release", "--locked", "--no-default-features", "--example", "soak")
	build.Dir = "../../clients/rust"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	clientThroughCrashes(t, soakNumbers(t), "../../clients/rust/target/release/examples/soak")
}

// soakNumbers is how many numbers a soak of a client takes: a million, or $HAPAX_TEST_SOAK_NUMBERS.
func soakNumbers(t *testing.T) int {
	t.Helper()
	text := os.Getenv("HAPAX_TEST_SOAK_NUMBERS")
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1000 || n%1000 != 0 {
		t.Fatalf("invalid HAPAX_TEST_SOAK_NUMBERS %q: want thousands", text)
	}
	return n
}
