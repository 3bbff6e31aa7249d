package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// blocks returns the snippets of a document in a language, in their order.
func blocks(t *testing.T, path, language string) (found []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		found = append(found, block[1])
	}
	return found
}

// shellSession runs snippets one after the other, as somebody types them into one
// shell, and returns what they print.
func shellSession(t *testing.T, dir string, env []string, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience.Long) // go compiles
	defer cancel()
	cmd := command(ctx, dir, env)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-e", "-c", script}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s%s", err, script, out, errs.String())
	}
	return string(out)
}

// promised returns the lines of output that a snippet shows in comments.
func promised(snippet string) (lines []string) {
	for line := range strings.Lines(snippet) {
		if text, ok := strings.CutPrefix(line, "# "); ok {
			lines = append(lines, strings.TrimSpace(text))
		}
	}
	return lines
}

// printsInOrder checks that lines come in this order, perhaps with others between. One
// that ends with … goes on differently each time.
func printsInOrder(t *testing.T, out string, lines []string) {
	t.Helper()
	rest := "\n" + out
	for _, line := range lines {
		end := "\n"
		if begin, open := strings.CutSuffix(line, "…"); open {
			line, end = begin, ""
		}
		_, after, ok := strings.Cut(rest, "\n"+line+end)
		if !ok {
			t.Fatalf("%q is not printed where it is promised:\n%s", line, out)
		}
		rest = "\n" + after
	}
}

// The commands of the page work in a fresh directory, and print what it says.
func TestConceptsPage(t *testing.T) {
	t.Parallel()
	script := strings.Join(blocks(t, "docs/concepts.md", "sh"), "\n")
	path := "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")
	printsInOrder(t, shellSession(t, t.TempDir(), []string{path}, script), promised(script))
	for _, spec := range blocks(t, "docs/concepts.md", "text") {
		ok(t, t.TempDir(), "layouts", strings.TrimSpace(spec))
	}
}

// The example of the configuration page is one that a server starts with.
func TestConfigurationPage(t *testing.T) {
	t.Parallel()
	for _, example := range blocks(t, "docs/configuration.md", "yaml") {
		file := filepath.Join(t.TempDir(), "hapax.yaml")
		if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
			t.Fatal(err)
		}
		ok(t, t.TempDir(), "serve", "--print-config", "--config", file)
	}
}

// The tour can be walked in a fresh directory, and shows what it says.
func TestTour(t *testing.T) {
	t.Parallel()
	testservers.Require(t, []string{"curl"})
	dir := t.TempDir()
	s := serve(t, dir, []string{"HAPAX_DATA=" + filepath.Join(dir, "hapax-data")})
	script := strings.Join(blocks(t, "docs/tour.md", "sh"), "\n")
	local := strings.NewReplacer("localhost:8080", strings.TrimPrefix(s.addresses().HTTP, "http://"))
	env := []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "HAPAX_SERVER=" + s.addresses().HTTP}
	printsInOrder(t, shellSession(t, dir, env, local.Replace(script)), promised(script))
}

// The README's way to the first numbers works from end to end.
func TestReadme(t *testing.T) {
	t.Parallel()
	shell, golang := blocks(t, "README.md", "sh"), append(blocks(t, "README.md", "go"), blocks(t, "docs/choosing.md", "go")...)
	if len(shell) != 6 || len(golang) != 3 {
		t.Fatalf("there are %d snippets for the shell and %d of Go; this test knows 6 and 3", len(shell), len(golang))
	}
	testservers.Require(t, []string{"curl"})
	testservers.Require(t, []string{"redis-cli"})
	clone, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := serve(t, dir, nil) // shell[0] with free ports
	if strings.TrimSpace(shell[0]) != "go run ./cmd/hapax serve" {
		t.Errorf("the server is started by %q", shell[0])
	}
	a := s.addresses()
	local := strings.NewReplacer(
		"http://127.0.0.1:8080", a.HTTP, "localhost:8080", strings.TrimPrefix(a.HTTP, "http://"), "6380", port(t, a.RESP),
		"go run ./cmd/hapax", binary, "/path/to/clone", clone, "ids.db", filepath.Join(dir, "ids.db"),
	)
	t.Run("server", func(t *testing.T) {
		out := shellSession(t, dir, nil, local.Replace(shell[1]))
		printsInOrder(t, out, append(promised(shell[1]), "4"))
	})
	program := func(snippet, imports string) string {
		return "package main\n\nimport (\n\"context\"\n\"fmt\"\n\"github.com/hapax-id/hapax\"\n" + imports + ")\n\nfunc main() {\nctx := context.Background()\n" +
			local.Replace(snippet) + "\nfmt.Println(id, err)\n}\n"
	}
	t.Run("program", func(t *testing.T) {
		app := t.TempDir()
		text := program(golang[0], "\"github.com/hapax-id/hapax/store/boltstore\"\n")
		if err := os.WriteFile(filepath.Join(app, "main.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		script := "go mod init example.com/app 2>&1\n" + local.Replace(shell[2]) + "go run .\n"
		printsInOrder(t, shellSession(t, app, nil, script), []string{"1 <nil>"})
	})
	t.Run("shared store", func(t *testing.T) { // it needs a server to run, and must compile
		file := filepath.Join(t.TempDir(), "main.go")
		text := program(golang[1]+"\nid := store.Status()\n", "\"github.com/hapax-id/hapax/store/driver\"\n\"github.com/hapax-id/hapax/store/sqlstore\"\n\"github.com/hapax-id/hapax/store/sqlstore/postgresstore\"\n\"github.com/hapax-id/hapax/store/witness\"\n")
		text = strings.Replace(text, "\"github.com/hapax-id/hapax\"\n", "", 1)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "go", "list", "-export", file).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("example", func(t *testing.T) {
		shellSession(t, clone, nil, shell[3])
	})
	t.Run("leasing", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte(program(golang[2], "\"github.com/hapax-id/hapax/client\"\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), " <nil>\n") {
			t.Errorf("%v: %s", err, out)
		}
	})
	for _, target := range []string{"bench", "test"} { // shell[4] and shell[5]
		if out, err := exec.CommandContext(t.Context(), "make", "-n", "-C", clone, target).CombinedOutput(); err != nil {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
	}
}
