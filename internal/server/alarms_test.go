package server

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service/health"
)

// An alarm goes to the command and to the URL, again where that fails, and nothing
// secret goes with it or into the log.
func TestAlarmsAreDelivered(t *testing.T) {
	const secret = "QWERTYUIOP"
	t.Setenv("HAPAX_STORE_PASSWORD", secret)
	dir := t.TempDir()
	script, out := filepath.Join(dir, "tell"), filepath.Join(dir, "out")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nenv > "+out+".env\ncat > "+out+".tmp && mv "+out+".tmp "+out+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int64
	bodies := make(chan string, 10)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if tries.Add(1) < 3 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		bodies <- string(body)
	}))
	defer web.Close()
	var log lockedBuffer
	n, err := newNotifier(Config{AlarmCommand: script, AlarmURL: web.URL + "/" + secret}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	n.node, n.pause = "here", time.Millisecond
	n.notify(api.Alarm{Name: health.AlarmStoreLost, Detail: "it is away", See: "docs/runbook.md#store-lost"}, true)
	check := func(what, text string) {
		t.Helper()
		var got notice
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Name != health.AlarmStoreLost || got.State != "raised" || got.Node != "here" || got.Detail != "it is away" || got.See == "" {
			t.Errorf("%s got %s: %v", what, text, err)
		}
	}
	select {
	case body := <-bodies:
		check("the URL", body)
	case <-time.After(patience.Long):
		t.Fatal("the URL was not told")
	}
	body, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	check("the command", string(body))
	env, err := os.ReadFile(out + ".env")
	if err != nil || !strings.Contains(string(env), "HAPAX_ALARM=store_lost\n") || strings.Contains(string(env), secret) {
		t.Errorf("the command's environment is %s: %v", env, err)
	}
	web.Close()
	n.notify(api.Alarm{Name: health.AlarmStoreLost}, false)
	patience.Until(t, "the log says that it could not be delivered", func() bool {
		return strings.Contains(log.String(), "an alarm could not be delivered")
	})
	n.close()
	if text := log.String(); strings.Contains(text, secret) {
		t.Errorf("the log is %s", text)
	}
}

// A receiver that hangs, refuses, redirects or answers with more and more holds up nobody
// but those who wait behind it: what raises alarms goes on, what waits is bounded, and
// where the alarm went stays where the operator sent it.
func TestBadReceivers(t *testing.T) {
	const secret = "QWERTYUIOP"
	var strayed atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strayed.Add(1) }))
	defer elsewhere.Close()
	var over chan struct{} // closed when what hangs may end
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		says   string // of the log
	}{
		"hangs":   {func(http.ResponseWriter, *http.Request) { <-over }, "deadline exceeded"},
		"refuses": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "the answer is 403"},
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, "the answer is 307"},
		"moved": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusMovedPermanently)
		}, "the answer is 301"},
		"drips": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_ = http.NewResponseController(w).Flush()
			<-over
		}, "the answer is 500"},
	} {
		t.Run(name, func(t *testing.T) {
			web := httptest.NewServer(c.answer)
			over = make(chan struct{})
			defer web.Close()
			defer close(over)
			var log lockedBuffer
			n, err := newNotifier(Config{AlarmURL: web.URL + "/" + secret}, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			n.pause, n.timeout = time.Millisecond, 100*time.Millisecond
			const all = 1000
			for range all {
				n.notify(api.Alarm{Name: health.AlarmCannot}, true) // returns at once
			}
			if lost := strings.Count(log.String(), "alarms wait already"); lost < all-maxNotices-all/10 && name == "hangs" {
				t.Errorf("%d of %d alarms do not wait", lost, all)
			}
			patience.Until(t, "the log says why", func() bool { return strings.Contains(log.String(), c.says) })
			n.close() // whatever is on its way
			if text := log.String(); strings.Contains(text, secret) {
				t.Errorf("the log is %.500s", text)
			}
		})
	}
	if n := strayed.Load(); n > 0 {
		t.Errorf("%d alarms went where a redirect sent them", n)
	}
}

// A command that hangs is ended, with its children.
func TestHangingCommand(t *testing.T) {
	dir := t.TempDir()
	script, child := filepath.Join(dir, "tell"), filepath.Join(dir, "child")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 1000 &\necho $! >"+child+"\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	n, err := newNotifier(Config{AlarmCommand: script}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	n.pause, n.timeout = time.Millisecond, time.Second
	n.notify(api.Alarm{Name: health.AlarmCannot}, true)
	patience.Until(t, "the log says that it could not be delivered", func() bool { return strings.Contains(log.String(), "signal: killed") })
	n.close()
	pid, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "what it started has ended", func() bool {
		line, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
		return err != nil || len(line) == 0 // which nobody has waited for
	})
}

// A certificate raises its alarm from so long before its end on, and a bad one at once.
func TestCertificateAlarms(t *testing.T) {
	ends := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &sights{certs: &certificates{}, within: 24 * time.Hour}
	w.certs.current.Store(&tlsConfigs{expires: ends})
	check := func(now time.Time, want ...string) {
		t.Helper()
		var got []string
		for _, c := range w.conditions(now) {
			got = append(got, c.Alarm)
		}
		if !slices.Equal(got, want) {
			t.Errorf("at %v: %v, not %v", now, got, want)
		}
	}
	check(ends.Add(-25 * time.Hour))
	check(ends.Add(-23*time.Hour), health.AlarmCertificate)
	check(ends.Add(time.Hour), health.AlarmCertificate)
	w.certs.bad.Store(new("no key"))
	check(ends.Add(-25*time.Hour), health.AlarmCertificateBad)
	w.configRead("a key is misspelt")
	check(ends.Add(-25*time.Hour), health.AlarmCertificateBad, health.AlarmConfig)
}

// A lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// A URL that is none is refused, and not repeated.
func TestAlarmURL(t *testing.T) {
	for _, url := range []string{"ftp://h/QWERTY", "QWERTY", "http://", "http://h:x/QWERTY"} {
		if err := checkAlarmURL(Config{AlarmURL: url}); err == nil || strings.Contains(err.Error(), "QWERTY") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if err := checkAlarmURL(Config{AlarmURL: "https://h/x"}); err != nil {
		t.Error(err)
	}
}
