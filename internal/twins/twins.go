// Package twins breaks a package's rules one by one, and sees that a test notices each.
package twins

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A Twin is a rule of the package under test, the file and the code that keep it, a variant in which
// it is broken where twin(NAME) holds, and the test that notices.
type Twin [5]string

// Run builds the tests of the package in the working directory once, with all twins in it, and runs
// the test of each twin with that one chosen, by the environment variable TWIN.
func Run(t *testing.T, name string, all []Twin) {
	if testing.Short() {
		t.Skip("builds the package anew")
	}
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"twin.go": "package " + name + "\n\nimport \"os\"\n\nfunc twin(name string) bool { return os.Getenv(\"TWIN\") == name }\n"}
	for _, one := range all {
		rule, file, code, variant := one[0], one[1], one[2], one[3]
		if texts[file] == "" {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[file] = string(text)
		}
		if n := strings.Count(texts[file], code); n != 1 {
			t.Fatalf("%s: %q is %d times in %s; want it once", rule, code, n, file)
		}
		texts[file] = strings.Replace(texts[file], code, variant, 1)
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
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".").CombinedOutput(); err != nil { //nolint:gosec // a test's own directory
		t.Fatalf("%v\n%s", err, out)
	}
	for _, one := range all {
		rule, variant, test := one[0], one[3], one[4]
		t.Run(rule, func(t *testing.T) {
			_, name, _ := strings.Cut(variant, `twin("`)
			name, _, _ = strings.Cut(name, `"`)
			cmd := exec.CommandContext(t.Context(), program, "-test.failfast", "-test.run", "^"+test+"$") //nolint:gosec // the tests of this package; one complaint is enough
			cmd.Env = append(os.Environ(), "TWIN="+name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("%s does not notice", test)
			}
			if !strings.Contains(string(out), "--- FAIL: "+test) {
				t.Errorf("%s does not fail, but: %.500s", test, out)
			}
		})
	}
}
