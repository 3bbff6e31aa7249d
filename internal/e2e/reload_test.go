package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// SIGHUP changes the level of the log at once, and names the settings that need a
// restart; their values it does not tell.
func TestReloadedSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("max_wait: 1s\n")
	s := serve(t, dir, nil, "--config", config)
	hangUp := func(awaited string) {
		t.Helper()
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		s.await(awaited)
	}
	write("max_wait: 1234ms\nlog_level: debug\ntags: {secretive: {step: 7}}\n")
	hangUp(`"settings":"max_wait, tags"`)
	ok(t, dir, "next", "orders", "--server", s.url)
	s.await(`"level":"DEBUG"`)
	if log := s.logged(); strings.Contains(log, "1.234s") || strings.Contains(log, "secretive") {
		t.Errorf("the log tells values: %s", log)
	}
	write("max_wait: 1s\nlog_level: nothing\n")
	hangUp("the configuration cannot be used")
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
}
