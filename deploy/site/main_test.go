package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
)

// The site is made of the pages as they are: no link of theirs is broken, and every
// page can be found.
func TestSite(t *testing.T) {
	out := t.TempDir()
	if err := build("../..", out); err != nil {
		t.Fatal(err)
	}
	pages := 0
	err := filepath.WalkDir(out, func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".html" {
			return err
		}
		pages++
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="([^"#?]*)[^"]*"`).FindAllStringSubmatch(string(text), -1) {
			if m[1] == "" || strings.Contains(m[1], ":") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s", file, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 25 {
		t.Errorf("there are %d pages", pages)
	}
	t.Run("search", func(t *testing.T) { searches(t, out) })
}

// searches has a browser search on a page.
func searches(t *testing.T, out string) {
	chromium := testservers.Require(t, []string{"chromium"})
	for query, want := range map[string]string{
		"fencing token":       `<a href="docs/concepts.html#`,
		"no such word as qqx": "Nothing found",
	} {
		at := "file://" + filepath.Join(out, "index.html") + "?q=" + strings.ReplaceAll(query, " ", "+")
		cmd := exec.CommandContext(t.Context(), chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
			"--user-data-dir="+t.TempDir(), "--virtual-time-budget=5000", "--dump-dom", at)
		dom, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		_, result, _ := strings.Cut(string(dom), `<section id="found"`)
		result, _, _ = strings.Cut(result, "</section>")
		if !strings.Contains(result, want) {
			t.Errorf("searching for %q shows %s", query, result)
		}
	}
}
