package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
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
