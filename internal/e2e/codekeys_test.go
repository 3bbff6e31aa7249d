package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/boltstore"
)

// TestKeyFileWithLineBreak has a server issue codes with the key of a file as editors
// write it, and programs read them with the same file's bytes: with all of them they are
// refused, without the line break they get the server's numbers.
func TestKeyFileWithLineBreak(t *testing.T) {
	t.Parallel()
	const key, spec = "correct horse battery", "{id:8:crockford32:feistel=k1}{check:gf}"
	for _, end := range []string{"\n", "\r\n"} {
		dir := t.TempDir()
		write(t, dir, "key", key+end)
		write(t, dir, "hapax.yaml", "code_keys: {k1: file:"+filepath.Join(dir, "key")+"}\ntags:\n  coupons: {code: \""+spec+"\"}\n")
		s := serve(t, dir, nil, "--resp", "", "--config", "hapax.yaml")
		codes := strings.Fields(ok(t, dir, "next", "coupons", "--code", "-n", "3", "--server", s.url))

		options := func(key string) codec.Options {
			return codec.Options{Tag: "coupons", Keys: map[string][]byte{"k1": []byte(key)}}
		}
		if _, err := codec.Parse(spec, options(key+end)); err == nil {
			t.Errorf("package codec takes a key that ends in %q", end)
		}
		c, err := codec.Parse(spec, options(key))
		if err != nil {
			t.Fatal(err)
		}
		for i, code := range codes {
			if id, err := c.Decode(code); id != hapax.ID(i+1) || err != nil {
				t.Errorf("package codec reads %s as %d, %v; want %d", code, id, err, i+1)
			}
		}
		examples, err := filepath.Abs("../../examples/codes")
		if err != nil {
			t.Fatal(err)
		}
		for name, program := range map[string]struct{ run, whole, cut string }{
			"python3": {
				"import sys; sys.path.insert(0, %q); sys.dont_write_bytecode = True\nfrom hapax_codes import Code\nkey = open('key', 'rb').read()%s\ncode = Code(%q, 'coupons', {'k1': key})\nfor text in %q.split(): print(code.decode(text)[0])",
				"", ".rstrip(b'\\r\\n')",
			},
			"node": {
				"const { readFileSync } = await import('node:fs'); const { Code } = await import(%q + '/hapax-codes.js');\nconst key = readFileSync('key', 'latin1')%s;\nconst code = new Code(%q, 'coupons', { k1: Buffer.from(key, 'latin1') });\nfor (const text of %q.split(' ')) console.log(String(code.decode(text).number))",
				"", ".replace(/[\\r\\n]+$/, '')",
			},
		} {
			flags := map[string][]string{"python3": {"-c"}, "node": {"--input-type=module", "-e"}}[name]
			if _, err := exec.LookPath(name); err != nil {
				testservers.Missing(t, name+" is not installed")
			}
			decode := func(reading string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, append(flags, fmt.Sprintf(program.run, examples, reading, spec, strings.Join(codes, " ")))...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := decode(program.whole); err == nil || !strings.Contains(out, "without the line break at the end of its file") {
				t.Errorf("%s, with a key that ends in %q: %v %s", name, end, err, out)
			}
			if out, err := decode(program.cut); err != nil || out != "1\n2\n3\n" {
				t.Errorf("%s, with the key alone: %v %s", name, err, out)
			}
		}
	}
}

// TestCheckOfNewAndOldSpecs has a plain {check} of a new tag be stored as {check:gf} where
// that serves, and one that is stored mean what it meant when codes were made by it.
func TestCheckOfNewAndOldSpecs(t *testing.T) {
	t.Parallel()
	const plain = "{id:6:16}{check}"
	dir := t.TempDir()
	store, err := boltstore.Open(t.Context(), filepath.Join(dir, "old.db"), boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	old, err := hapax.Tag{Name: "old", Extra: `{"code":1,"spec":"` + plain + `"}`}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.CreateTag(t.Context(), old, hapax.CreateFirstUse); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "hapax.yaml", "tags:\n  old: {code: \""+plain+"\"}\n  fresh: {code: \""+plain+"\"}\n")
	s := serve(t, dir, nil, "--resp", "", "--config", "hapax.yaml", "--store", "bolt:old.db")
	remote := func(args ...string) string { t.Helper(); return ok(t, dir, append(args, "--server", s.url)...) }

	code := func(tag string) string { t.Helper(); return strings.TrimSpace(remote("next", tag, "--code")) }
	reading := func(spec string, id hapax.ID) string {
		t.Helper()
		c, err := codec.Parse(spec, codec.Options{})
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.Append(nil, id)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if a, b := reading("{id:6:16}{check:iso7064}", 1), reading("{id:6:16}{check:gf}", 1); a == b {
		t.Fatalf("both checks of 1 are %s", a)
	}
	if got, want := code("old"), reading("{id:6:16}{check:iso7064}", 1); got != want {
		t.Errorf("the old tag gives %s, want %s", got, want)
	}
	if got, want := code("fresh"), reading("{id:6:16}{check:gf}", 1); got != want {
		t.Errorf("the new tag gives %s, want %s", got, want)
	}
	if got := remote("tags", "show", "fresh"); !strings.Contains(got, "{id:6:16}{check:gf}") {
		t.Errorf("the new tag is stored as %s", got)
	}
	if strings.Contains(s.logged(), "the store defines a tag otherwise") {
		t.Errorf("the configuration says what is stored: %s", s.logged())
	}
	// Given again, and after the tag was deleted, the same text means the same.
	for _, tag := range []string{"old", "fresh"} {
		remote("tags", "set", tag, "--code", plain)
		remote("tags", "delete", tag)
		remote("tags", "create", tag, "--code", plain)
	}
	for tag, spec := range map[string]string{"old": "{id:6:16}{check:iso7064}", "fresh": "{id:6:16}{check:gf}"} {
		text := code(tag)
		c, err := codec.Parse(spec, codec.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Decode(text); err != nil {
			t.Errorf("revived, %s gives %s: %v", tag, text, err)
		}
	}
}
