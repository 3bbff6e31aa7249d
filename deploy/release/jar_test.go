package main

import (
	"archive/zip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
)

// jarOf makes the jar from a tree.
func jarOf(t *testing.T, top string) (dir, name string) {
	t.Helper()
	r := *made
	r.top, r.out = top, t.TempDir()
	if err := r.make(t.Context(), jarOnly); err != nil {
		t.Fatal(err)
	}
	output(t, r.out, "sha256sum", "--check", "SHA256SUMS")
	return r.out, "hapax-client-" + r.version + ".jar"
}

// The jar is one for Java 8 and later, with a version and a licence, and programs run on it.
func TestJar(t *testing.T) {
	java := testservers.Require(t, []string{"java"})
	dir, name := jarOf(t, "../..")
	z, err := zip.OpenReader(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if z.File[0].Name != "META-INF/MANIFEST.MF" || z.File[1].Name != "META-INF/LICENSE" {
		t.Errorf("the jar begins with %s and %s", z.File[0].Name, z.File[1].Name)
	}
	classes := 0
	for _, f := range z.File {
		from, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(from)
		if err != nil || from.Close() != nil {
			t.Fatal(f.Name, err)
		}
		if !f.Modified.Equal(made.at) {
			t.Errorf("%s is of %v, want the commit's %v", f.Name, f.Modified, made.at)
		}
		if f.Name == "META-INF/MANIFEST.MF" && !strings.Contains(string(data), "\r\nImplementation-Version: "+made.version+"\r\n") {
			t.Errorf("the manifest is %q", data)
		}
		if !strings.HasSuffix(f.Name, ".class") {
			continue
		}
		classes++
		if v := int(data[6])<<8 | int(data[7]); v != 52 {
			t.Errorf("%s is a class of version %d, want 52, which is Java 8", f.Name, v)
		}
	}
	if classes < 8 {
		t.Errorf("%d classes", classes)
	}
	source := filepath.Join(t.TempDir(), "Probe.java")
	if err := os.WriteFile(source, []byte(`import id.hapax.client.HapaxClient;
import id.hapax.client.HapaxException;

public class Probe {
    public static void main(String[] args) {
        HapaxClient ids = HapaxClient.builder("http://127.0.0.1:1").build();
        ids.close();
        try {
            ids.next("orders");
        } catch (HapaxException e) {
            System.out.println(e.reason());
        }
    }
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := output(t, ".", java, "-cp", filepath.Join(dir, name), source); strings.TrimSpace(out) != "CLOSED" {
		t.Errorf("a program on the jar prints %q, want CLOSED", out)
	}
}

// Two clones in other directories make the same jar.
func TestJarIsReproducible(t *testing.T) {
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "a-longer-one", "tree")
	output(t, ".", "git", "clone", "-q", "--shared", top, clone)
	first, name := jarOf(t, "../..")
	second, _ := jarOf(t, clone)
	same(t, first, second, name)
}

// Where the compiler is missing, or only others are there, the release says what to do.
func TestJarWithoutItsCompiler(t *testing.T) {
	dir := t.TempDir()
	compiler := func(name, version string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho javac "+version+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	newer, right := compiler("newer", "170.0.1"), compiler("right", jdk+".0.2")
	for _, candidates := range [][]string{nil, {newer}, {filepath.Join(dir, "none"), newer}} {
		path, err := ofTheJDK(t.Context(), candidates)
		if err == nil {
			t.Fatalf("of %q, %s was chosen", candidates, path)
		}
		for _, want := range append(candidates, "JDK "+jdk, "JAVA_HOME", "-only") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("of %q: %v: want %q in it", candidates, err, want)
			}
		}
	}
	if path, err := ofTheJDK(t.Context(), []string{newer, right}); path != right {
		t.Errorf("chosen is %q, %v, want %s", path, err, right)
	}
}
