package main

import (
	"os"
	"strings"
	"testing"
)

func TestPageIsCurrent(t *testing.T) {
	file, err := os.ReadFile("../../docs/packages.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := page()
	if err != nil {
		t.Fatal(err)
	}
	if string(file) != want {
		t.Error("docs/packages.md is not what the packages say; run: go generate ./internal/packagesdoc")
	}
	for line := range strings.Lines(want) {
		if strings.Contains(line, generated) && !strings.Contains(line, "`api/hapaxv1") {
			t.Errorf("a package has no comment: %s", line)
		}
	}
}
