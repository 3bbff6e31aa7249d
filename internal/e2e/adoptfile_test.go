package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A bolt file that was copied is adopted by the command in the error, whether a node has it or none, and
// whatever its name is.
func TestAdoptFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ok(t, dir, "tags", "create", "orders", "--store", "bolt:orders.db")
	ok(t, dir, "next", "orders", "-n", "5", "--store", "bolt:orders.db")
	ok(t, dir, "next", "orders", "-n", "5", "--data", "d")
	data, err := os.ReadFile(filepath.Join(dir, "orders.db"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "copied.db"), data, 0o600)
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(filepath.Join(dir, "d")))
	}
	if err != nil {
		t.Fatal(err)
	}
	files := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	before := files()
	// A server at the default address, here one of another store, has nothing to do with a file.
	other := []string{"HAPAX_HTTP=" + strings.TrimPrefix(serve(t, t.TempDir(), nil).url, "http://")}
	for _, file := range []string{"copied.db", "copy/hapax.db"} {
		r := run(t, dir, "next", "orders", "--store", "bolt:"+file)
		_, command, found := strings.Cut(r.err, "raise every mark with: hapax ")
		command, _, _ = strings.Cut(command, ", and --data")
		if r.code != 1 || !found {
			t.Fatalf("%s: %+v", file, r)
		}
		args := append(strings.Fields(command), "--margin", "100")
		if r := runWith(t, dir, "", other, append(args, "--dry-run")...); r.code != 0 || r.out != "tag orders\t6\t106\n" {
			t.Errorf("%q, dry: %+v", args, r)
		}
		if r := runWith(t, dir, "", other, append(args, "--yes")...); r.code != 0 || r.out != "tag orders\t6\t106\n" || !strings.Contains(r.err, "is adopted") {
			t.Errorf("%q: %+v", args, r)
		}
		if r := runWith(t, dir, "", other, append(args, "--yes")...); r.code != 0 || !strings.Contains(r.err, "nothing is wrong with store ") || strings.Contains(r.err, "store ;") {
			t.Errorf("%q once more: %+v", args, r)
		}
		if got := ok(t, dir, "next", "orders", "--store", "bolt:"+file); got != "106\n" {
			t.Errorf("%s: the next number is %q", file, got)
		}
	}
	if now := files(); !slices.Equal(now, before) {
		t.Errorf("beside a file that no node has are %q now, and were %q", now, before)
	}
	original, err := os.ReadFile(filepath.Join(dir, "d", "instance"))
	if err != nil {
		t.Fatal(err)
	}
	if adopted, err := os.ReadFile(filepath.Join(dir, "copy", "instance")); err == nil && string(adopted) == string(original) {
		t.Error("the node of the copy has the original's identity")
	}
}

// Codes that were issued before an error are printed, as numbers are.
func TestCodesBeforeAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ok(t, dir, "tags", "create", "narrow", "--code", "A{id:1}", "--data", "d")
	if r := run(t, dir, "next", "narrow", "--code", "-n", "12", "--data", "d"); r.code == 0 || !strings.HasPrefix(r.out, "A1\nA2\n") || !strings.HasSuffix(r.out, "A9\n") {
		t.Errorf("twelve of nine codes: %+v", r)
	}
	ok(t, dir, "tags", "create", "narrower", "--code", "A{id:1}", "--data", "d")
	const nine = `{"ids":["1","2","3","4","5","6","7","8","9"],"codes":["A1","A2","A3","A4","A5","A6","A7","A8","A9"]}` + "\n"
	for _, want := range []string{nine, ""} {
		if r := run(t, dir, "next", "narrower", "--code", "-n", "12", "--json", "--data", "d"); r.code == 0 || r.out != want {
			t.Errorf("twelve of nine codes as JSON: %+v; want %q", r, want)
		}
	}
}
