package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPlotsAreCurrent(t *testing.T) {
	all, err := plots()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil || string(got) != want {
			t.Errorf("docs/%s is not what the program draws (%v); run: go generate ./codec", name, err)
		}
	}
}
