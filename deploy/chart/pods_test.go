package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// scratch is a directory for the binary.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "hapax-chart-"); err == nil {
			defer os.RemoveAll(scratch)
			err = os.Chmod(scratch, 0o755) // the pods' user runs what is in it
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// binary builds the command, once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "hapax")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/hapax")
	cmd.Dir, cmd.Env = filepath.Join(top, ".."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// A workload is what the chart renders, and starts pods as the cluster would: processes
// with the container's arguments and environment, over the volume that is mounted at the
// data directory.
type workload struct {
	t        *testing.T
	pod      corev1.PodSpec
	settings string
	seen     map[int64]bool
	highest  int64
}

func newWorkload(t *testing.T, values map[string]any) *workload {
	t.Helper()
	rendered, err := render(top, values)
	if err != nil {
		t.Fatal(err)
	}
	var settings corev1.ConfigMap
	var set appsv1.StatefulSet
	var deployment appsv1.Deployment
	for file, into := range map[string]any{"configmap.yaml": &settings, "statefulset.yaml": &set, "deployment.yaml": &deployment} {
		if err := yaml.UnmarshalStrict([]byte(rendered[file]), into); err != nil {
			t.Fatal(err)
		}
	}
	w := &workload{t: t, pod: set.Spec.Template.Spec, seen: map[int64]bool{}}
	if len(w.pod.Containers) == 0 {
		w.pod = deployment.Spec.Template.Spec
	}
	w.settings = filepath.Join(w.volume(), "hapax.yaml")
	if err := os.WriteFile(w.settings, []byte(settings.Data["hapax.yaml"]), 0o644); err != nil {
		t.Fatal(err)
	}
	return w
}

// volume makes an empty directory that the pods' user may write.
func (w *workload) volume() string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "volume")
	err := os.Mkdir(dir, 0o755)
	for p := filepath.Dir(dir); p != "/tmp" && p != "/" && err == nil; p = filepath.Dir(p) {
		err = os.Chmod(p, 0o755)
	}
	if err == nil && os.Geteuid() == 0 {
		err = os.Chown(dir, int(*w.pod.SecurityContext.RunAsUser), int(*w.pod.SecurityContext.FSGroup))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return dir
}

// A running pod.
type running struct {
	w    *workload
	cmd  *exec.Cmd
	url  string
	logs bytes.Buffer // once done is closed
	done chan struct{}
}

// command returns what runs in a pod, at an address.
func (w *workload) command(volume, address string, args ...string) *exec.Cmd {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	main := w.pod.Containers[0]
	if args == nil {
		for _, arg := range main.Args {
			args = append(args, strings.ReplaceAll(arg, "/etc/hapax/hapax.yaml", w.settings))
		}
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = volume
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		w.t.Fatal(err)
	}
	local := strings.NewReplacer("$(POD_IP)", host, ":8080", ":"+port)
	for _, e := range main.Env {
		if e.ValueFrom == nil {
			cmd.Env = append(cmd.Env, e.Name+"="+local.Replace(e.Value))
		}
	}
	cmd.Env = append(cmd.Env, "HAPAX_DATA="+volume, "HAPAX_HTTP="+address, "HAPAX_RESP="+host+":0", "HAPAX_LAME_DUCK=0s")
	if os.Geteuid() == 0 {
		s := w.pod.SecurityContext
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(*s.RunAsUser), Gid: uint32(*s.RunAsGroup)}, Pdeathsig: syscall.SIGKILL}
	}
	return cmd
}

// start runs a pod.
func (w *workload) start(volume string) *running {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		w.t.Fatal(err)
	}
	p := &running{w: w, cmd: w.command(volume, address), url: "http://" + address, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.logs, &p.logs
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its state
		close(p.done)
	}()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	})
	return p
}

// ready waits as the readiness probe does, and reports whether it came true; a pod that
// ended is not ready.
func (p *running) ready() bool {
	p.w.t.Helper()
	probe := p.w.pod.Containers[0].ReadinessProbe.HTTPGet.Path
	for deadline := time.Now().Add(patience.Long); time.Now().Before(deadline); {
		if res, err := http.Get(p.url + probe); err == nil {
			_ = res.Body.Close() // only the status counts
			if res.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-p.done:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	p.w.t.Fatal("a pod does not get ready")
	return false
}

// take has a ready pod issue numbers, none of which was issued before.
func (p *running) take(count int) {
	p.w.t.Helper()
	if !p.ready() {
		p.w.t.Fatalf("a pod ended: %s", p.logs.String())
	}
	res, err := http.Post(fmt.Sprintf("%s/v1/tags/orders/ids?count=%d", p.url, count), "", nil)
	if err != nil {
		p.w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.w.t.Fatal(err)
	}
	var got struct{ IDs []string }
	if err := json.Unmarshal(body, &got); err != nil || len(got.IDs) != count {
		p.w.t.Fatalf("%s: %s", res.Status, body)
	}
	for _, text := range got.IDs {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || p.w.seen[n] {
			p.w.t.Fatalf("%s was issued before, %v", text, err)
		}
		p.w.seen[n], p.w.highest = true, max(p.w.highest, n)
	}
}

// terminate stops a pod in good order, within the time that it is given.
func (p *running) terminate() {
	p.w.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.w.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(time.Duration(*p.w.pod.TerminationGracePeriodSeconds) * time.Second):
		p.w.t.Fatal("it does not end within the grace period")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.w.t.Errorf("exit code %d: %s", code, p.logs.String())
	}
}

// crash ends a pod as the loss of its machine does.
func (p *running) crash() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// copyVolume copies a volume to a new one, as a restore by files does.
func (w *workload) copyVolume(from string) string {
	w.t.Helper()
	to := w.volume()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			err = os.MkdirAll(target, 0o700)
		} else {
			var data []byte
			if data, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(target, data, 0o600)
			}
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(target, int(*w.pod.SecurityContext.RunAsUser), int(*w.pod.SecurityContext.FSGroup))
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return to
}

// The pod of the embedded store goes on where it was when it is rescheduled, with its
// volume. On a snapshot of the volume that was restored it refuses to start, until an
// operator adopts it.
func TestEmbeddedPod(t *testing.T) {
	w := newWorkload(t, variants[0].values)
	volume := w.volume()
	first := w.start(volume)
	first.take(100)
	first.crash()
	rescheduled := w.start(volume)
	before := w.highest
	rescheduled.take(100)
	if w.highest <= before {
		t.Errorf("%d comes after %d", w.highest, before)
	}
	rescheduled.terminate()
	snapshot := w.copyVolume(volume)
	later := w.start(volume)
	later.take(700)
	later.terminate()

	restored := w.copyVolume(snapshot)
	p := w.start(restored)
	if p.ready() {
		t.Fatal("it starts on a volume that was set back")
	}
	if !strings.Contains(p.logs.String(), "hapax adopt") {
		t.Errorf("it does not say what to do: %s", p.logs.String())
	}
	if out, err := w.command(restored, "127.0.0.1:0", "adopt", "--data", restored, "--margin", "1000", "--yes").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before = w.highest
	adopted := w.start(restored)
	adopted.take(100)
	if w.highest <= before {
		t.Errorf("%d comes after %d", w.highest, before)
	}
	adopted.terminate()
}

// The pods of a shared store keep nothing: they are rescheduled, scaled down to nothing
// and up again with empty disks, and no number comes twice.
func TestSharedPods(t *testing.T) {
	store := testservers.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	w := newWorkload(t, map[string]any{"store": map[string]any{"url": store.URL}})
	var pods []*running
	scale := func(to int) {
		for len(pods) > to {
			pods[0].terminate()
			pods = pods[1:]
		}
		for len(pods) < to {
			pods = append(pods, w.start(w.volume()))
		}
		for _, p := range pods {
			p.take(1200)
		}
	}
	scale(3)
	scale(1)
	pods[0].crash() // its disk is gone, too
	pods = nil
	scale(2)
	scale(0)
	scale(3)
	scale(0)
}
