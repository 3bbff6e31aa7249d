package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

func build(t *testing.T, dir, name, of string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Dir = of
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// Each generator's numbers hold the worker ID that its recipe gave it.
func TestGenerators(t *testing.T) {
	dir := t.TempDir()
	hapax, generators := build(t, dir, "hapax", "../../cmd/hapax"), build(t, dir, "generators", ".")
	server := exec.CommandContext(t.Context(), hapax, "serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--log-format", "json")
	server.Dir = dir
	log, err := server.StderrPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill() // it may have ended with the test's context
		_ = server.Wait()
	})
	var line struct{ Msg, HTTP string }
	for lines := bufio.NewScanner(log); line.Msg != "serving" && lines.Scan(); {
		_ = json.Unmarshal(lines.Bytes(), &line) // others have other fields
	}
	for worker, name := range map[int]string{5: "bwmarrin", 17: "yitter", 900: "sonyflake"} {
		exec := exec.CommandContext(t.Context(), hapax, "worker", "exec", "--server", line.HTTP, "--for", name, "--workers", fmt.Sprint(worker), "--", generators, name)
		out, err := exec.CombinedOutput()
		var id int64
		var got int
		if _, scan := fmt.Sscan(string(out), &id, &got); err != nil || scan != nil || got != worker || id <= 0 {
			t.Errorf("%s with worker ID %d: %v: %s", name, worker, err, out)
		}
	}
}
