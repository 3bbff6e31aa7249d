package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pluginsPage = "docs/strategies-and-plugins.md"

// The program of the page compiles, the configuration is one that a server takes, and
// the commands work on it.
func TestPluginsPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	main := filepath.Join(dir, "main.go")
	for _, block := range blocks(t, pluginsPage, "go") {
		if strings.HasPrefix(block, "package main") {
			write(t, dir, "main.go", block)
		}
	}
	path := "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")
	shellSession(t, filepath.Join("..", ".."), []string{path, "HOME=" + os.Getenv("HOME"), "GOFLAGS=" + os.Getenv("GOFLAGS")}, "go list -export "+main)

	key := filepath.Join(dir, "k1.key")
	write(t, dir, "k1.key", strings.Repeat("k", 32))
	config := strings.ReplaceAll(blocks(t, pluginsPage, "yaml")[0], "/etc/hapax/k1.key", key)
	write(t, dir, "hapax.yaml", config)
	p := serve(t, dir, nil, "--resp", "127.0.0.1:0", "--config", "hapax.yaml")
	server := "HAPAX_SERVER=" + p.url
	out := shellSession(t, dir, []string{path, server}, "hapax next orders >numbers\n"+blocks(t, pluginsPage, "sh")[1])
	for _, want := range []string{
		"callers\t-1\ton\tBefore\tall\tall", "counts\t0\ton\tAfter\tall\tall", "hide\t0\ton\tReplace\tall\tcoupons",
		"counts\t0\toff\tAfter", "daily\t-5\ton\tBefore\tall\torders", "orders\tsegment\t", "daily\t-\t24h\t1\t0\t100000",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if id := ok(t, dir, "next", "coupons", "--server", p.url); len(strings.TrimSpace(id)) > 8 {
		t.Errorf("scrambled to 8 digits is %s", id)
	}
}
