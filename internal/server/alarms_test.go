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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
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
	n.notify(service.Alarm{Name: service.AlarmStoreLost, Detail: "it is away", See: "docs/runbook.md#store-lost"}, true)
	check := func(what, text string) {
		t.Helper()
		var got notice
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Name != service.AlarmStoreLost || got.State != "raised" || got.Node != "here" || got.Detail != "it is away" || got.See == "" {
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
	n.notify(service.Alarm{Name: service.AlarmStoreLost}, false)
	patience.Until(t, "the log says that it could not be delivered", func() bool {
		return strings.Contains(log.String(), "an alarm could not be delivered")
	})
	n.close()
	if text := log.String(); strings.Contains(text, secret) {
		t.Errorf("the log is %s", text)
	}
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
