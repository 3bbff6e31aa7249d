package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands of the page print what stands below them.
func TestTracingPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "tracing.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```\n\n```text\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 4 {
		t.Fatalf("the page has %d commands with their output, want 4 or more", len(blocks))
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "hapax")); err != nil {
		t.Fatal(err)
	}
	for _, block := range blocks {
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", block[1])
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != strings.TrimSpace(block[2]) {
			t.Errorf("%s\n%v\n%s\nthe page says\n%s", block[1], err, out, block[2])
		}
	}
}
