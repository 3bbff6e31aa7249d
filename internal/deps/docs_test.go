package deps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackageTable: the architecture page names every package of the module.
func TestPackageTable(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "## Packages")
	if !found {
		t.Fatal("the page has no section on packages")
	}
	for _, p := range list(t) {
		of, ours := name(p.ImportPath)
		if ours && of != "root" && !strings.Contains(table, "`"+of+"`") {
			t.Errorf("docs/architecture.md has no row for %s", of)
		}
	}
}
