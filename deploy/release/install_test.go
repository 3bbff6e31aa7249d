package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// The unit is one that systemd takes, and it leaves the service little to do harm with.
func TestUnit(t *testing.T) {
	analyze := testservers.Require(t, []string{"systemd-analyze"})
	text, err := os.ReadFile(made.packaged("hapax.service"))
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "hapax.service")
	if err := os.WriteFile(unit, bytes.ReplaceAll(text, []byte("/usr/bin/hapax"), []byte(binary(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := output(t, ".", analyze, "verify", "--man=no", unit); strings.Contains(out, "hapax.service") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	output(t, ".", analyze, "security", "--offline=true", "--threshold=20", unit) // 2.0
}

// A machine is a small one in a directory: what the packages' scripts call, and
// nothing else.
type machine struct {
	t   *testing.T
	dir string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	if os.Geteuid() != 0 {
		testservers.Missing(t, "packages are installed below another root, which takes root's rights")
	}
	m := machine{t, t.TempDir()}
	if err := os.Chmod(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for p := m.dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) { // the service's user passes through
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tool := range []string{"sh", "getent", "useradd", "install", "chgrp", "chmod"} {
		m.copyTool(testservers.Require(t, []string{tool}))
	}
	for _, dir := range []string{"dev", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"var/lib/dpkg/status": "", "dev/null": "", "etc/passwd": "root:x:0:0:root:/:/bin/sh\n", "etc/group": "root:x:0:\n", "etc/shadow": "root:*:1::::::\n", "etc/gshadow": "root:*::\n",
	} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// copyTool copies a program with the libraries that it is linked to.
func (m machine) copyTool(path string) {
	m.t.Helper()
	place := func(from, to string) {
		data, err := os.ReadFile(from)
		if err == nil {
			to = filepath.Join(m.dir, to)
			if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
				err = os.WriteFile(to, data, 0o755)
			}
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
	place(path, filepath.Join("bin", filepath.Base(path)))
	for word := range strings.FieldsSeq(output(m.t, ".", "ldd", path)) {
		if strings.HasPrefix(word, "/") {
			place(word, word)
		}
	}
}

func (m machine) read(path string) string {
	m.t.Helper()
	data, err := os.ReadFile(filepath.Join(m.dir, path))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(data)
}

func (m machine) has(path string) bool {
	_, err := os.Lstat(filepath.Join(m.dir, path))
	return err == nil
}

// account returns the IDs of the service's user, as the machine has them.
func (m machine) account() *syscall.Credential {
	m.t.Helper()
	for line := range strings.Lines(m.read("etc/passwd")) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if fields[0] != "hapax" {
			continue
		}
		uid, err := strconv.Atoi(fields[2])
		gid, err2 := strconv.Atoi(fields[3])
		if err != nil || err2 != nil || uid == 0 {
			m.t.Fatalf("the user is %q", line)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	m.t.Fatal("there is no user hapax")
	return nil
}

// A service is a server that runs on a machine as its supervisor would run it.
type service struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	logs bytes.Buffer
	done chan struct{}
}

// run starts a program below a root and waits until it serves.
func (m machine) run(who *syscall.Credential, env []string, command ...string) *service {
	m.t.Helper()
	s := &service{t: m.t, cmd: exec.Command(command[0], command[1:]...), done: make(chan struct{})}
	s.cmd.Dir = "/"
	s.cmd.Env = append(slices.Clone(env), "HAPAX_HTTP=127.0.0.1:0", "HAPAX_RESP=127.0.0.1:0", "HAPAX_LOG_FORMAT=json", "HAPAX_LAME_DUCK=0s")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.dir, Credential: who, Pdeathsig: syscall.SIGKILL}
	stderr, err := s.cmd.StderrPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	serving := make(chan string, 1)
	go func() {
		defer close(s.done)
		for lines := bufio.NewScanner(io.TeeReader(stderr, &s.logs)); lines.Scan(); {
			var line struct{ Msg, HTTP string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				serving <- line.HTTP
			}
		}
	}()
	m.t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill() // it may have ended
			<-s.done
			_ = s.cmd.Wait()
		}
	})
	ctx, cancel := context.WithTimeout(m.t.Context(), patience.Long)
	defer cancel()
	select {
	case s.url = <-serving:
	case <-s.done:
	case <-ctx.Done():
	}
	if s.url == "" {
		<-s.done
		m.t.Fatalf("it does not serve: %s", s.logs.String())
	}
	if !strings.HasPrefix(s.url, "http") {
		s.url = "http://" + s.url
	}
	return s
}

// next takes a number.
func (s *service) next() int64 {
	s.t.Helper()
	res, err := http.Post(s.url+"/v1/tags/orders/ids", "", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var got struct{ IDs []string }
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || len(got.IDs) != 1 {
		s.t.Fatalf("%s: %v, %v", res.Status, got, err)
	}
	n, err := strconv.ParseInt(got.IDs[0], 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// stop ends the server in good order.
func (s *service) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	<-s.done
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("%v: %s", err, s.logs.String())
	}
}

// The packages install a service that runs as a user of its own, are upgraded without
// a step back, and leave the data when they are removed.
func TestPackages(t *testing.T) {
	before := *made
	before.version, before.out = "0.0.9", t.TempDir()
	old := filepath.Join(before.out, "hapax")
	if err := compile(t.Context(), "../..", old, host, "-X", "github.com/hapax-id/hapax.stamped=0.0.9"); err != nil {
		t.Fatal(err)
	}
	type manager struct{ install, remove []string }
	for format, pm := range map[string]manager{
		"deb": {[]string{"dpkg", "--force-not-root", "--root=ROOT", "-i"}, []string{"dpkg", "--root=ROOT", "--purge"}},
		"rpm": {[]string{"rpm", "--root", "ROOT", "--nosignature", "-U"}, []string{"rpm", "--root", "ROOT", "-e"}},
	} {
		t.Run(format, func(t *testing.T) {
			tool := testservers.Require(t, pm.install[:1])
			m := newMachine(t)
			do := func(args []string, last string) string {
				args = strings.Split(strings.ReplaceAll(strings.Join(args[1:], "\x00"), "ROOT", m.dir), "\x00")
				return output(t, ".", tool, append(args, last)...)
			}
			oldPackage, err := before.pack(format, host, old)
			if err != nil {
				t.Fatal(err)
			}
			do(pm.install, filepath.Join(before.out, oldPackage))
			serve := unitCommand(t, m)
			s := m.run(m.account(), nil, serve...)
			first := s.next()
			if got := s.product(); got != "hapax/0.0.9" {
				t.Errorf("%s runs, want 0.0.9", got)
			}
			s.stop()
			settings := m.read("etc/hapax/hapax.yaml") + "max_count: 7\n"
			if err := os.WriteFile(filepath.Join(m.dir, "etc/hapax/hapax.yaml"), []byte(settings), 0o640); err != nil {
				t.Fatal(err)
			}

			again := *made
			again.out = t.TempDir()
			newPackage, err := again.pack(format, host, binary(t))
			if err != nil {
				t.Fatal(err)
			}
			same(t, made.out, again.out, newPackage)
			do(pm.install, filepath.Join(made.out, newPackage))
			if got := m.read("etc/hapax/hapax.yaml"); got != settings {
				t.Errorf("the upgrade changed the settings to %s", got)
			}
			s = m.run(m.account(), nil, serve...)
			if got := s.product(); got != "hapax/"+made.version {
				t.Errorf("%s runs, want %s", got, made.version)
			}
			second := s.next()
			if second <= first {
				t.Errorf("%d comes after %d", second, first)
			}
			s.stop()

			if said := do(pm.remove, "hapax"); !strings.Contains(said, "/var/lib/hapax and the user hapax stay") {
				t.Errorf("the removal does not say what stays: %s", said)
			}
			if m.has("usr/bin/hapax") || !m.has("var/lib/hapax/hapax.db") {
				t.Errorf("after the removal, the binary is there: %t, and the data: %t", m.has("usr/bin/hapax"), m.has("var/lib/hapax/hapax.db"))
			}
			do(pm.install, filepath.Join(made.out, newPackage))
			s = m.run(m.account(), nil, serve...)
			if third := s.next(); third <= second {
				t.Errorf("%d comes after %d, which was issued before the removal", third, second)
			}
			s.stop()
		})
	}
}

// product returns which version answers.
func (s *service) product() string {
	s.t.Helper()
	res, err := http.Get(s.url + "/healthz")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	return res.Header.Get("Server")
}

// unitCommand returns what the installed unit starts, and checks that it has the user
// that the package made.
func unitCommand(t *testing.T, m machine) []string {
	t.Helper()
	unit := m.read("usr/lib/systemd/system/hapax.service")
	if !strings.Contains(unit, "\nUser=hapax\n") || !strings.Contains(unit, "\nStateDirectory=hapax\n") {
		t.Errorf("the unit does not run as hapax over its directory: %s", unit)
	}
	_, rest, _ := strings.Cut(unit, "\nExecStart=")
	line, _, _ := strings.Cut(rest, "\n")
	if line == "" {
		t.Fatalf("the unit starts nothing: %s", unit)
	}
	return strings.Fields(line)
}

// The image, unpacked as a container's runtime does, runs without root and tells its
// health.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		testservers.Missing(t, "an image is run below another root, which takes root's rights")
	}
	f, err := os.Open(filepath.Join(made.out, "hapax-"+made.version+"-oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked := t.TempDir()
	untar(t, f, unpacked)
	index, err := layout.ImageIndexFromPath(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Platform.Architecture != host.arch {
		t.Fatalf("the index is %+v, %v", manifest, err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	m := machine{t, t.TempDir()}
	for p := m.dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	unpackLayers(t, img, m.dir)
	uid, gid, _ := strings.Cut(config.Config.User, ":")
	if _, err := user.LookupId(uid); err == nil || uid != gid || uid == "0" {
		t.Errorf("the image runs as %q", config.Config.User)
	}
	who := &syscall.Credential{Uid: imageUser, Gid: imageUser}
	s := m.run(who, append(config.Config.Env, "HAPAX_HTTP=127.0.0.1:0"), append(config.Config.Entrypoint, config.Config.Cmd...)...)
	if n := s.next(); n != 1 {
		t.Errorf("the first number is %d", n)
	}
	if code, out := m.health(who, config); code != 0 {
		t.Errorf("the health command says %d while it serves: %s", code, out)
	}
	s.stop()
	if code, out := m.health(who, config); code != 1 {
		t.Errorf("the health command says %d when nothing serves: %s", code, out)
	}
	// As it comes, the image listens to everybody, and so asks for tokens.
	cmd := exec.CommandContext(t.Context(), "/hapax", "serve")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", config.Config.Env, &syscall.SysProcAttr{Chroot: m.dir, Credential: who}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--allow-unauthenticated lift") {
		t.Errorf("without tokens it starts: %v: %s", err, out)
	}
}

func unpackLayers(t *testing.T, img v1.Image, dir string) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		names := untar(t, r, dir)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if len(names) != 8 {
			t.Errorf("the layer has %q, want the binary, the account and the directories", names)
		}
	}
}

// health runs the image's health command.
func (m machine) health(who *syscall.Credential, config *v1.ConfigFile) (int, string) {
	test := config.Config.Healthcheck.Test
	cmd := exec.CommandContext(m.t.Context(), test[1], test[2:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", config.Config.Env, &syscall.SysProcAttr{Chroot: m.dir, Credential: who}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return -1, fmt.Sprint(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
