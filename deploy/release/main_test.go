package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
)

var host = platform{"linux", runtime.GOARCH}

// made is a release for this machine, which all tests look at.
var made *release

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "hapax-release-")
		if err == nil {
			defer os.RemoveAll(dir)
			made, err = prepare(context.Background(), "../..", dir)
		}
		if err == nil {
			err = made.make(context.Background(), host.String())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// binary returns the path of the binary in the release.
func binary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(made.out, "bin", host.os+"-"+host.arch, "hapax"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// output runs a program to its end and returns what it prints.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// The sums are those of the files, and every file has one.
func TestSums(t *testing.T) {
	checked := output(t, made.out, "sha256sum", "--check", "SHA256SUMS")
	entries, err := os.ReadDir(made.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "SHA256SUMS" && !e.IsDir() && !strings.Contains(checked, e.Name()+": OK") {
			t.Errorf("%s has no sum:\n%s", e.Name(), checked)
		}
	}
	if n := strings.Count(checked, ": OK"); n != 5 {
		t.Errorf("%d files have a sum, want an archive, two packages, a bill and an image:\n%s", n, checked)
	}
}

// The bill of materials is what "go version -m" says.
func TestBill(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(made.out, made.name(host, ".cdx.json")))
	if err != nil {
		t.Fatal(err)
	}
	var b bom
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range b.Components {
		got[c.Name] = c.Version
		for _, p := range c.Properties {
			got[c.Name] += " " + p.Value
		}
	}
	want := map[string]string{}
	for i, line := range strings.Split(output(t, ".", "go", "version", "-m", binary(t)), "\n") {
		fields := strings.Fields(line)
		switch {
		case i == 0:
			want["std"] = fields[len(fields)-1]
		case len(fields) == 4 && fields[0] == "dep":
			want[fields[1]] = fields[2] + " " + fields[3]
		case len(fields) > 0 && fields[0] == "=>":
			t.Fatalf("the binary is made of something that stands in for a module: %s", line)
		}
	}
	if len(want) < 20 || !maps.Equal(got, want) {
		t.Errorf("the bill has %v\nthe binary %v", got, want)
	}
	if b.Metadata.Component.Version != made.version {
		t.Errorf("the bill is of version %q, want %q", b.Metadata.Component.Version, made.version)
	}
}

// A second run over the same binary makes the same bytes.
func TestArtefactsAreReproducible(t *testing.T) {
	again := *made
	again.out = t.TempDir()
	names, err := again.bundle(host, binary(t))
	if err != nil {
		t.Fatal(err)
	}
	image, err := again.image(map[platform]string{host: binary(t)})
	if err != nil {
		t.Fatal(err)
	}
	same(t, made.out, again.out, append(names, image)...)
}

func same(t *testing.T, a, b string, names ...string) {
	t.Helper()
	for _, name := range names {
		first, err := digest(filepath.Join(a, name))
		second, err2 := digest(filepath.Join(b, name))
		if err := errors.Join(err, err2); err != nil {
			t.Error(err)
		} else if first != second {
			t.Errorf("%s: the first run made %s, the second one %s", name, first, second)
		}
	}
}

// Two clones of a commit, in other directories and with nothing compiled before, make
// the same binary.
func TestBinaryIsReproducible(t *testing.T) {
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i, name := range []string{"a", "a-longer-one"} {
		clone := filepath.Join(dir, name, "tree")
		output(t, ".", "git", "clone", "-q", "--shared", top, clone)
		if i == 1 {
			t.Setenv("GOCACHE", filepath.Join(dir, "cache"))
		}
		if err := compile(t.Context(), clone, filepath.Join(dir, name, "hapax"), host); err != nil {
			t.Fatal(err)
		}
	}
	same(t, filepath.Join(dir, "a"), filepath.Join(dir, "a-longer-one"), "hapax")
}

// The archive unpacks to a binary of this version, without a linker of its own, and
// with manual pages.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	archive, err := filepath.Abs(filepath.Join(made.out, made.name(host, ".tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	output(t, dir, "tar", "-xzf", archive)
	top := filepath.Join(dir, made.name(host, ""))
	if got := output(t, top, "./hapax", "version"); !strings.HasPrefix(got, "hapax "+made.version+"\t") {
		t.Errorf("hapax version prints %q", got)
	}
	out, err := exec.CommandContext(t.Context(), "ldd", filepath.Join(top, "hapax")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not a dynamic executable") {
		t.Errorf("the binary is not static: %v: %s", err, out)
	}
	output(t, top, "bash", "-n", "completions/bash-completion/completions/hapax")
	t.Run("serves", func(t *testing.T) {
		if os.Geteuid() != 0 {
			testservers.Missing(t, "the binary is run below another root, where nothing else is, which takes root's rights")
		}
		s := machine{t, top}.run(nil, nil, "/hapax", "serve")
		if n := s.next(); n != 1 {
			t.Errorf("the first number is %d", n)
		}
		s.stop()
	})
	testservers.Require(t, []string{"man"})
	for _, page := range made.pages {
		command := strings.ReplaceAll(strings.TrimSuffix(page.name, ".1.gz"), "-", " ")
		text := output(t, top, "env", "MANWIDTH=200", "man", "--warnings", "-P", "cat", "-l", "man/man1/"+page.name)
		if !strings.Contains(strings.ReplaceAll(text, "-", " "), command) || strings.Contains(text, "warning:") {
			t.Errorf("%s does not show %q:\n%s", page.name, command, text)
		}
	}
	if len(made.pages) < 40 {
		t.Errorf("there are %d manual pages; the command has more subcommands", len(made.pages))
	}
}

// untar unpacks an archive and returns the names in it.
func untar(t *testing.T, from io.Reader, dir string) (names []string) {
	t.Helper()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if err == io.EOF {
			return names
		} else if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600))
			}
		}
		err = errors.Join(err, os.Chmod(path, h.FileInfo().Mode()), os.Lchown(path, h.Uid, h.Gid))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

// The page on installing names the files that there are.
func TestInstallPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(made.top, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(made.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		general := strings.NewReplacer(made.version, "VERSION", "arm64", "amd64", "aarch64", "x86_64").Replace(e.Name())
		if !e.IsDir() && !strings.Contains(string(page), "`"+general+"`") {
			t.Errorf("docs/install.md does not name %s", general)
		}
	}
}
