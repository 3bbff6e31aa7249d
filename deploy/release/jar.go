package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// jdk is the compiler of the client for Java: others write the same program in other
	// bytes, and the sums would not be everybody's.
	jdk = "17"
	// jarOnly is what -only is given for the jar alone.
	jarOnly = "java"
)

// jar writes the client for Java, for programs that run on Java 8 and later.
func (r *release) jar(ctx context.Context) (string, error) {
	javac, err := compilerOfJava(ctx)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "hapax-jar-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is a temporary one
	classes, err := r.classes(ctx, javac, dir)
	if err != nil {
		return "", err
	}
	license, err := os.ReadFile(filepath.Join(r.top, "LICENSE"))
	if err != nil {
		return "", err
	}
	manifest := strings.Join([]string{
		"Manifest-Version: 1.0", "Automatic-Module-Name: id.hapax.client", "Build-Jdk-Spec: " + jdk,
		"Implementation-Title: hapax-client", "Implementation-Version: " + r.version, "", "",
	}, "\r\n")
	files := append([]file{ // readers of streams look for the manifest in the first place
		{"META-INF/MANIFEST.MF", []byte(manifest)}, {"META-INF/LICENSE", license},
	}, classes...)
	name := "hapax-client-" + r.version + ".jar"
	return name, r.create(name, func(w io.Writer) error { return r.zip(w, "", files) })
}

// classes compiles the sources, from their own directory, so that its path leaves no trace.
func (r *release) classes(ctx context.Context, javac, dir string) ([]file, error) {
	src := filepath.Join(r.top, "clients", "java", "src")
	sources, err := below(src, ".java")
	if err != nil {
		return nil, err
	}
	args := []string{"--release", "8", "-encoding", "UTF-8", "-proc:none", "-g:source,lines", "-Xlint:-options", "-d", dir}
	cmd := exec.CommandContext(ctx, javac, append(args, sources...)...) //nolint:gosec // the compiler that was looked for
	cmd.Dir = src
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("compile the client for Java: %w", err)
	}
	names, err := below(dir, ".class")
	var files []file
	for _, name := range names {
		data, err2 := os.ReadFile(filepath.Join(dir, name))
		err = errors.Join(err, err2)
		files = append(files, file{filepath.ToSlash(name), data})
	}
	return sorted(files), err
}

// below returns the files of a kind in a directory and those in it, in the order of their
// names, which is also the compiler's.
func below(dir, extension string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != extension {
			return err
		}
		name, err := filepath.Rel(dir, path)
		names = append(names, name)
		return err
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no %s in %s", extension, dir)
	}
	return names, err
}

// compilerOfJava finds the one compiler that makes everybody's bytes.
func compilerOfJava(ctx context.Context) (string, error) {
	candidates, err := filepath.Glob("/usr/lib/jvm/*/bin/javac")
	if err != nil {
		return "", err
	}
	if path, err := exec.LookPath("javac"); err == nil {
		candidates = slices.Insert(candidates, 0, path)
	}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = slices.Insert(candidates, 0, filepath.Join(home, "bin", "javac"))
	}
	return ofTheJDK(ctx, candidates)
}

func ofTheJDK(ctx context.Context, candidates []string) (string, error) {
	var seen []string
	for _, path := range candidates {
		out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput() //nolint:gosec // it is a compiler by its name
		version := strings.TrimSpace(strings.TrimPrefix(string(out), "javac "))
		if err != nil {
			version = err.Error()
		}
		if version == jdk || strings.HasPrefix(version, jdk+".") {
			return path, nil
		}
		seen = append(seen, fmt.Sprintf("%s (%s)", path, version))
	}
	found := "none is there"
	if len(seen) > 0 {
		found = "there is " + strings.Join(seen, ", ")
	}
	return "", fmt.Errorf("the client for Java takes the compiler of JDK %s, and %s: install one (Debian: openjdk-%[1]s-jdk-headless) or set JAVA_HOME to one; -only linux/amd64 makes a platform's files without it", jdk, found)
}
