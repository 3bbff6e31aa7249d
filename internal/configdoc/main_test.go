package main

import (
	"bytes"
	"os"
	"testing"
)

func TestReferenceIsCurrent(t *testing.T) {
	file, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, reference()) {
		t.Error("docs/configuration.md is not what the settings say; run: go generate ./server")
	}
}
