package e2e

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
)

// asks returns the status and the answer of a hold to a program; 0: there is none.
func asks(t *testing.T, method, address, holder string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+"/?holder="+holder, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	text, _ := io.ReadAll(res.Body) // what is lacking shows
	_ = res.Body.Close()
	return res.StatusCode, string(text)
}

func holds(t *testing.T, address, holder string, w *wrapper) {
	t.Helper()
	patience.Until(t, holder+" has the worker ID", func() bool {
		status, _ := asks(t, "GET", address, holder)
		return status == 200
	}, stringer(w.said))
}

// A program that was told a time by its name has the worker ID until then, also when hold is told to end
// first; once it gave the ID up, others have it at once.
func TestWorkerHoldKeepsWhatItTold(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		name, worker string
		givesUp      bool
		status       int // of the next hold
	}{
		{"a program that goes on", "70", false, 110},
		{"a program that gave it up", "71", true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			address := freeAddress(t)
			w := wrap(t, s.url, dir, nil, "hold", "--for", "cosid", "--workers", tt.worker, "--http", address)
			holds(t, address, "a", w)
			if tt.givesUp {
				if status, body := asks(t, "DELETE", address, "a"); status != 204 {
					t.Errorf("it gives the worker ID up: %d %s", status, body)
				}
			}
			w.signal(syscall.SIGTERM)
			w.end(0)
			address = freeAddress(t)
			next := wrap(t, s.url, dir, nil, "hold", "--for", "cosid", "--workers", tt.worker, "--http", address, "--wait", "10s")
			if tt.status == 0 {
				holds(t, address, "b", next)
				if status, body := asks(t, "DELETE", address, "b"); status != 204 {
					t.Errorf("it gives the worker ID up: %d %s", status, body)
				}
				next.signal(syscall.SIGTERM)
			}
			next.end(tt.status)
		})
	}
}

// The file of a hold that was killed is taken away before there is another worker ID, and the program beside
// it is told; the file of one that lives is left alone.
func TestWorkerHoldAfterAnother(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	file, lost := filepath.Join(dir, "worker"), filepath.Join(dir, "lost")
	w := wrap(t, s.url, dir, nil, "hold", "--file", file)
	text := readWithin(t, file)
	second := wrap(t, s.url, dir, nil, "hold", "--file", file, "--on-lost", "touch lost")
	second.end(125)
	if got := readWithin(t, file); got != text || !strings.Contains(second.said(), "no other worker hold") {
		t.Errorf("the file of a hold that lives became %q; the second one says %s", got, second.said())
	}
	if _, err := os.Stat(lost); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program with its worker ID is stopped: %v", err)
	}
	w.signal(syscall.SIGKILL)
	w.end(-1)
	wrap(t, "http://127.0.0.1:1", dir, nil, "hold", "--file", file, "--wait", "1s", "--on-lost", "touch lost").end(111)
	for name, want := range map[string]error{file: fs.ErrNotExist, lost: nil} {
		if _, err := os.Stat(name); !errors.Is(err, want) {
			t.Errorf("%s after the next start: %v, want %v", name, err, want)
		}
	}
	// One that ended by itself leaves nothing to be told of.
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w = wrap(t, s.url, dir, nil, "hold", "--file", file, "--on-lost", "touch lost")
		readWithin(t, file)
		w.signal(syscall.SIGTERM)
		w.end(0)
	}
	if _, err := os.Stat(lost); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program is told of a loss that was none: %v", err)
	}
}

// A file that cannot be written for a while costs nobody the worker ID.
func TestWorkerHoldWithoutRoom(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "worker")
	w := wrap(t, s.url, dir, nil, "hold", "--pool", "brief", "--grant", "12s", "--file", file)
	readWithin(t, file)
	inTheWay := filepath.Join(file+".tmp", "x") // where the next one is written first
	patience.Until(t, "it is not written just now", func() bool { return os.MkdirAll(inTheWay, 0o700) == nil })
	text := readWithin(t, file)
	patience.Until(t, "it cannot write the file", func() bool { return w.said() != "" })
	if got := readWithin(t, file); got != text {
		t.Errorf("the file became %q", got)
	}
	if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "it tells what was granted meanwhile", func() bool { return readWithin(t, file) != text }, stringer(w.said))
	w.signal(syscall.SIGTERM)
	w.end(0)
}

// After a step back of the clock, a program that has the worker ID by its name is told before hold ends.
func TestWorkerHoldTellsOfAStep(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	clock, lost := filepath.Join(dir, "clock"), filepath.Join(dir, "lost")
	if err := os.WriteFile(clock, []byte("0s"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	w := wrap(t, s.url, dir, []string{"HAPAX_TEST_CLOCK_OFFSET=@" + clock}, "hold", "--for", "cosid", "--http", address, "--on-lost", "touch lost")
	holds(t, address, "a", w)
	if err := os.WriteFile(clock, []byte("-1h"), 0o600); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the step is noticed", func() bool { _, err := os.Stat(lost); return err == nil }, stringer(w.said))
	if status, body := asks(t, "GET", address, "b"); status != 503 {
		t.Errorf("another program is told %d %s, want 503", status, body)
	}
	if status, body := asks(t, "GET", address, "a"); status != 503 {
		t.Errorf("the program is told %d %s, want 503", status, body)
	}
	w.end(115)
}
