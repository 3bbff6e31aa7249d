package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

func TestCodeKeys(t *testing.T) {
	const key = "correct horse battery staple"
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"KEY": key, "SHORT": key[:15]}[name]
		return v, ok
	}
	for name, c := range map[string]struct{ section, want string }{
		"file":     {"{k1: 'file:" + path + "'}", ""},
		"variable": {"{k1: 'env:KEY'}", ""},
		"none":     {"{k1: 'env:NONE'}", "invalid code_keys.k1 \"env:NONE\": want a variable that is set; $NONE is not"},
		"short":    {"{k1: 'env:SHORT'}", "16 to 64 bytes"},
		"no file":  {"{k1: 'file:" + dir + "/none'}", "no such file"},
		"literal":  {"{k1: '" + key + "'}", "file:PATH or env:VARIABLE"},
		"mapping":  {"{k1: {file: '" + key + "'}}", "code_keys.k1"},
		"list":     {"['" + key + "']", "code_keys"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "hapax.yaml")
			if err := os.WriteFile(file, []byte("code_keys: "+c.section+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			config, err := Load(Sources{File: file, Env: env})
			if c.want != "" {
				if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), key) {
					t.Errorf("got %v, want %s, and never the key", err, c.want)
				}
				return
			}
			if err != nil || string(config.CodeKeyBytes()["k1"]) != key {
				t.Fatalf("got %q, %v", config.CodeKeyBytes(), err)
			}
			text, err := config.AppendYAML(nil)
			if err != nil || strings.Contains(string(text), key) || !strings.Contains(string(text), "k1: ") {
				t.Errorf("printed %s, %v", text, err)
			}
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if again, err := Load(Sources{File: file, Env: env}); err != nil || string(again.CodeKeyBytes()["k1"]) != key {
				t.Errorf("what was printed reads as %q, %v", again.CodeKeyBytes(), err)
			}
		})
	}
}
