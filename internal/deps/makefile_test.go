package deps

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The packages that the Makefile names are there: go test fails for one that is not.
func TestMakefileNamesPackages(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("\\\n"), nil) // a list may go on in the next line
	lists := regexp.MustCompile(`(?m)^(?:RACE|BY_SYSTEM|PACKAGES) = (.*)$`).FindAllSubmatch(text, -1)
	if len(lists) != 3 {
		t.Fatalf("the Makefile has %d lists of packages; want 3", len(lists))
	}
	for _, list := range lists {
		for name := range strings.FieldsSeq(string(list[1])) {
			dir := filepath.Join("../..", strings.TrimSuffix(name, "/..."))
			if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) == 0 {
				t.Errorf("the Makefile names %s, which is not there: %v", name, err)
			}
		}
	}
}
