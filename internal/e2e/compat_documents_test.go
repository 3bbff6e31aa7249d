package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A server takes the configurations that the pages for newcomers show.
func TestComingFromPages(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"docs/coming-from-vesta.md", "docs/coming-from-uid-generator.md", "docs/coming-from-leaf.md", "docs/coming-from-tinyid.md"} {
		examples := blocks(t, page, "yaml")
		if len(examples) == 0 {
			t.Errorf("%s has no configuration", page)
		}
		for _, example := range examples {
			secret := write(t, t.TempDir(), "password", "secret\n")
			example = strings.NewReplacer("/etc/hapax/leaf.password", secret, "/etc/hapax/tinyid.passwords", secret).Replace(example)
			file := filepath.Join(t.TempDir(), "hapax.yaml")
			if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
				t.Fatal(err)
			}
			ok(t, t.TempDir(), "serve", "--print-config", "--config", file)
		}
	}
}

// The page's way on from a layout whose time is over, with its own file, leads to a
// configuration with a proof.
func TestSuccessorPage(t *testing.T) {
	t.Parallel()
	const page = "docs/coming-from-uid-generator.md"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "uid-spring.xml"), []byte(blocks(t, page, "xml")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")
	out := shellSession(t, dir, []string{path}, blocks(t, page, "sh")[0])
	if !strings.Contains(out, "# Disjoint for ever: ") {
		t.Fatalf("there is no proof:\n%s", out)
	}
	file := write(t, dir, "hapax.yaml", out)
	if r := run(t, dir, "serve", "--print-config", "--config", file); r.code != 2 || !strings.Contains(r.err, "invalid store") {
		t.Errorf("without the store that all servers share it is taken: %+v", r)
	}
	ok(t, dir, "serve", "--print-config", "--config", file, "--store", "mysql://hapax@10.0.0.3/hapax")
}
