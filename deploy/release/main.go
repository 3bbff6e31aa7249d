// Command release makes everything that a release of hapax consists of: static
// binaries, archives, packages, an image for containers, what they are made of, the client
// for Java, and checksums. The same commit makes the same bytes, on any machine with the
// same Go and JDK.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	top := flag.String("top", "..", "directory of the repository")
	out := flag.String("o", "../dist", "directory to write to; made when missing")
	only := flag.String("only", "", "build for one platform only, such as linux/amd64, or \"java\": the client's jar")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *top, *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// A platform is what a binary is built for.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// A release is what all artefacts have in common.
type release struct {
	top, out string
	version  string
	revision string    // the commit; empty outside a checkout
	at       time.Time // of the commit: the time of every file
	pages    []file    // manual pages
	shells   []file    // completions
}

func run(ctx context.Context, top, out, only string) error {
	r, err := prepare(ctx, top, out)
	if err != nil {
		return err
	}
	return r.make(ctx, only)
}

// make writes all artefacts, or those of one platform.
func (r *release) make(ctx context.Context, only string) error {
	if only == jarOnly {
		jar, err := r.jar(ctx)
		if err != nil {
			return err
		}
		return r.sums([]string{jar})
	}
	chosen := platforms
	if only != "" {
		chosen = slices.DeleteFunc(slices.Clone(platforms), func(p platform) bool { return p.String() != only })
		if len(chosen) == 0 {
			return fmt.Errorf("invalid -only %q: want %s, or one of %v", only, jarOnly, platforms)
		}
	}
	var made []string
	if only == "" { // first: a missing compiler is told before minutes of work
		jar, err := r.jar(ctx)
		if err != nil {
			return err
		}
		made = append(made, jar)
	}
	binaries := map[platform]string{}
	for _, p := range chosen {
		binary, err := r.build(ctx, p)
		if err != nil {
			return err
		}
		binaries[p] = binary
		names, err := r.bundle(p, binary)
		if err != nil {
			return err
		}
		made = append(made, names...)
	}
	image, err := r.image(binaries)
	if err != nil {
		return err
	}
	return r.sums(append(made, image))
}

// prepare reads what the tree says about itself.
func prepare(ctx context.Context, top, out string) (*release, error) {
	version, err := os.ReadFile(filepath.Join(top, "VERSION"))
	if err != nil {
		return nil, err
	}
	r := &release{top: top, out: out, version: strings.TrimSpace(string(version)), at: time.Unix(0, 0).UTC()}
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("invalid SOURCE_DATE_EPOCH %q: want seconds since 1970", text)
		}
		r.at = time.Unix(seconds, 0).UTC()
	} else if text, err := exec.CommandContext(ctx, "git", "-C", top, "log", "-1", "--format=%H %ct").Output(); err == nil { //nolint:gosec // the tree is ours
		revision, at, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		seconds, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return nil, err
		}
		r.revision, r.at = revision, time.Unix(seconds, 0).UTC()
	}
	if r.pages, err = manual(r.version, r.at); err != nil {
		return nil, err
	}
	if r.shells, err = completions(); err != nil {
		return nil, err
	}
	return r, os.MkdirAll(out, 0o755) //nolint:gosec // a release is for everybody
}

// build makes a binary and returns its path.
func (r *release) build(ctx context.Context, p platform) (string, error) {
	top, err := filepath.Abs(r.top)
	if err != nil {
		return "", err
	}
	out, err := filepath.Abs(filepath.Join(r.out, "bin", p.os+"-"+p.arch, executable(p)))
	if err != nil {
		return "", err
	}
	return out, compile(ctx, top, out, p)
}

// compile builds the command so that the path of the tree, the machine and its C
// compiler leave no trace.
func compile(ctx context.Context, top, out string, p platform, linker ...string) error {
	flags := append([]string{"-s", "-w", "-buildid="}, linker...)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=auto", "-trimpath", "-ldflags", strings.Join(flags, " "), "-o", out, "./cmd/hapax") //nolint:gosec // the flags are ours
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off", "GOEXPERIMENT=")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build for %s: %w", p, err)
	}
	return nil
}

func executable(p platform) string {
	if p.os == "windows" {
		return "hapax.exe"
	}
	return "hapax"
}

// bundle makes what is made of one binary, and returns the names of the files.
func (r *release) bundle(p platform, binary string) ([]string, error) {
	bill, err := r.bill(p, binary)
	if err != nil {
		return nil, err
	}
	archive, err := r.archive(p, binary)
	if err != nil || p.os != "linux" {
		return []string{archive, bill}, err
	}
	packages, err := r.packages(p, binary)
	return append(packages, archive, bill), err
}

// name returns the name of an artefact of a platform.
func (r *release) name(p platform, extension string) string {
	return fmt.Sprintf("hapax-%s-%s-%s%s", r.version, p.os, p.arch, extension)
}

// create writes a file of the release.
func (r *release) create(name string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// sums writes the checksums in the form that sha256sum --check reads.
func (r *release) sums(names []string) error {
	slices.Sort(names)
	return r.create("SHA256SUMS", func(w io.Writer) error {
		for _, name := range names {
			sum, err := digest(filepath.Join(r.out, name))
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s  %s\n", sum, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// digest returns the SHA-256 of a file in hexadecimal digits.
func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
