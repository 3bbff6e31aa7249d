package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
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
	hangUp(`"setting":"log_level"`)
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
}

// A secret at a wrong place of the configuration does not reach the log when that is read
// anew: neither as a value nor as a key, neither in what YAML cannot read nor in what is
// no setting.
func TestReloadTellsNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hapax_MNQXG5DFMZTWQ2LKNNWG23TPOA"
	_, hash := newToken(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte("tokens: {app: {hash: '"+hash+"'}}\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	s := serve(t, dir, nil, "--config", config)
	for i, text := range []string{
		"SECRET: 1", "'SECRET", "store: SECRET", "store: mysql://u:SECRET@h:x/db", "store_password_file: SECRET", "http: SECRET", "max_wait: SECRET",
		"log_level: SECRET", "log_level: *SECRET", "store_password: SECRET", "code_keys: {k: SECRET}", "code_keys: {k: 'env:SECRET'}", "code_keys: {k: 'file:SECRET'}",
		"code_keys: SECRET", "code_keys: [SECRET]", "tags: {SECRET: {kind: k}}", "tags: {a: {SECRET: 1}}", "tags: {a: {step: SECRET}}", "tags: {a: {code: SECRET}}",
		"pools: {SECRET: {lease: 1ns}}", "pools: {a: {identity: SECRET}}", "plugins: {a: {run: SECRET}}", "plugins: {SECRET: {}}", "compat: {SECRET: {}}",
		"compat: {leaf: {table: 'mysql://u:SECRET@h:x/db'}}", "compat: {leaf: {password_file: SECRET}}", "compat: {leaf: {password: SECRET}}",
		"compat: {tinyid: {tokens: {orders: [SECRET]}}}", "compat: {tinyid: {databases: SECRET}}", "compat: SECRET", "tags: SECRET", "SECRET",
		"tls_cert: SECRET", "tls_key: SECRET", "advertise: SECRET", "hosts: SECRET", "heal: SECRET", "- SECRET", "? [SECRET]\n: 1", "!!SECRET a: 1", "\tSECRET: 1",
	} {
		before := strings.Count(s.logged(), `"msg":"configuration`) + strings.Count(s.logged(), `"msg":"the configuration`)
		write(strings.ReplaceAll(text, "SECRET", secret))
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		patience.Until(t, "the configuration is read", func() bool {
			return strings.Count(s.logged(), `"msg":"configuration`)+strings.Count(s.logged(), `"msg":"the configuration`) > before
		})
		if strings.Contains(s.logged(), secret) {
			t.Fatalf("%d: %q reaches the log: %s", i, text, tail(s.logged()))
		}
	}
	for name, text := range map[string]string{
		"tokens":   "tokens: {app: {hash: " + secret + "}}",
		"a token":  "tokens: {" + secret + ": {hash: x}}",
		"no hash":  "tokens: {app: " + secret + "}",
		"no token": "tokens: " + secret,
	} {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		before := strings.Count(s.logged(), `"msg":"the configuration cannot be used`)
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		patience.Until(t, "the configuration is refused", func() bool {
			return strings.Count(s.logged(), `"msg":"the configuration cannot be used`) > before
		})
		if strings.Contains(s.logged(), secret) || !strings.Contains(s.logged(), `"setting":"tokens"`) {
			t.Errorf("%s: %s", name, tail(s.logged()))
		}
		// The command that the log names says what is wrong, and no secret either.
		if r := run(t, dir, "serve", "--config", config, "--print-config"); r.code != 2 || strings.Contains(r.err, secret) {
			t.Errorf("%s: exit code %d: %s", name, r.code, r.err)
		}
	}
}
