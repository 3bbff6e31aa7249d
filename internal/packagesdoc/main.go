// Command packagesdoc writes docs/packages.md, from the comments of the packages, to
// standard output. "go generate ./internal/packagesdoc" runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

//go:generate sh -c "go run . > ../../docs/packages.md"

func main() {
	page, err := page()
	if err == nil {
		_, err = os.Stdout.WriteString(page)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packagesdoc:", err)
		os.Exit(1)
	}
}

const (
	module    = "github.com/hapax-id/hapax"
	generated = "is generated code."
	head      = `# Packages

<!-- Made by "go generate ./internal/packagesdoc" from the comments of the packages. -->

What each package is for, in the words of its own comment. Imports go one way, from the command
down to the root; [internal/deps](../internal/deps/deps_test.go) lists what each may import, and
checks it. ` + "`bench`, `deploy`, `deploy/check`, `tools`, `compat/vesta/dubbo/interop`, `internal/testservers/ferretdb`" + `
and the examples are modules of their own, so that the root requires only what users need.

| package | |
|---|---|
`
)

// page returns the whole document.
func page() (string, error) {
	out, err := exec.CommandContext(context.Background(), "go", "list", "-f", "{{.ImportPath}}\t{{with .Doc}}{{.}}{{else}}{{if not .GoFiles}}has tests alone.{{end}}{{end}}", module+"/...").Output()
	if err != nil {
		return "", fmt.Errorf("list the packages: %w", err)
	}
	var b strings.Builder
	b.WriteString(head)
	for line := range strings.Lines(string(out)) {
		path, comment, _ := strings.Cut(strings.TrimSpace(line), "\t")
		name := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
		if name == "" {
			name = "hapax"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, sentence(comment))
	}
	return b.String(), nil
}

// sentence leaves out the name that a comment begins with, and what Markdown would read.
// Only code that was generated has none.
func sentence(comment string) string {
	if comment == "" {
		return generated
	}
	for _, begin := range []string{"Package ", "Command "} {
		if rest, ok := strings.CutPrefix(comment, begin); ok {
			_, comment, _ = strings.Cut(rest, " ")
		}
	}
	return strings.NewReplacer("|", `\|`, "[", "", "]", "").Replace(strings.TrimSuffix(comment, ":"))
}
