package testserver

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/api"
)

func start(t *testing.T, s Script) *World {
	t.Helper()
	w, err := Start(t.Context(), s, "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// send makes a request, on a connection of its own, and returns the answer's status, 0 if
// there is none, and its body.
func send(t *testing.T, method, url, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(r)
	if err != nil {
		return 0, nil, ""
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}

// The servers answer the requests of each transcript as it has them: whoever plays the
// client meets what the transcript was made of.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("../../clients/transcripts/*.json")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d transcripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			script, err := ParseScript(f)
			if err != nil {
				t.Fatal(err)
			}
			if script.Why == "" || script.Name+".json" != filepath.Base(file) || len(script.Requests) == 0 && script.Name != "04-names" {
				t.Errorf("it has the name %q, says why: %q, and has %d requests", script.Name, script.Why, len(script.Requests))
			}
			if strings.Contains(string(script.Steps), `"do": "server"`) || strings.Contains(string(script.Steps), `"do": "fork"`) || strings.Contains(string(script.Steps), `"do": "sleep"`) {
				return // more happens than requests
			}
			w := start(t, script)
			receipts, store := map[string]string{}, ""
			for i, raw := range script.Requests {
				var q request
				if err := json.Unmarshal(raw, &q); err != nil {
					t.Fatal(err)
				}
				method, path, _ := strings.Cut(q.Path, " ")
				body := asText(q.Body)
				for name, secret := range receipts {
					body = strings.ReplaceAll(body, fmt.Sprintf("%q", name), fmt.Sprintf("%q", secret))
				}
				var headers []string
				if q.Token != "" {
					headers = append(headers, "Authorization", "Bearer "+script.Tokens[q.Token].Token)
				}
				if q.Store {
					headers = append(headers, api.StoreHeader, store)
				}
				status, header, text := send(t, method, w.Servers[q.Server]+path, body, headers...)
				if status != q.Status && q.Fault != "restart" {
					t.Errorf("request %d: status %d, want %d", i+1, status, q.Status)
				}
				if answer, ok := asJSON([]byte(text)).(map[string]any); ok {
					if hasNumbers := answer["first"] != nil || answer["ids"] != nil; hasNumbers && store == "" {
						store = header.Get(api.StoreHeader)
					}
					if secret, ok := answer["receipt"].(string); ok {
						receipts[fmt.Sprintf("R%d", len(receipts)+1)] = secret
					}
				}
			}
			if status, _, text := send(t, "GET", w.Control+"/check", ""); status != http.StatusOK {
				t.Error(text)
			}
		})
	}
}

// A check tells what came and was not to come, what did not come, and what differs.
func TestCheckTells(t *testing.T) {
	t.Parallel()
	took := json.RawMessage(`{"path":"POST /v1/tags/orders/take","body":{"count":2},"answer":{"count":2,"first":"1","delta":"1","valid_for":3600,"receipt":"R1","returnable":2}}`)
	for name, c := range map[string]struct {
		want []json.RawMessage
		more bool
		says string
	}{
		"as it is":  {[]json.RawMessage{took}, false, "ok"},
		"one more":  {nil, false, "request 1: {"},
		"more":      {nil, true, "ok"},
		"one less":  {[]json.RawMessage{took, took}, false, "request 2: none came"},
		"one less ": {[]json.RawMessage{took, took}, true, "request 2: none came"},
		"another":   {[]json.RawMessage{json.RawMessage(`{"body":{"count":3}}`)}, false, "they differ in body"},
	} {
		w := start(t, Script{Requests: c.want, More: c.more})
		send(t, "POST", w.Servers[0]+"/v1/tags/orders/take", `{"count":2}`)
		if _, _, text := send(t, "GET", w.Control+"/check", ""); !strings.HasPrefix(text, c.says) && !strings.Contains(text, c.says) {
			t.Errorf("%s: it says %q", name, text)
		}
	}
}

// What is done at once; what is not to be done says what is.
func TestControl(t *testing.T) {
	t.Parallel()
	const token = "hapax_ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	w := start(t, Script{Tokens: map[string]Token{"app": {Token: token, Scopes: []string{"issue", "lease"}}}, Servers: []Server{{}, {}}})
	take := func(server int) (int, string) {
		status, _, text := send(t, "POST", w.Servers[server]+"/v1/tags/orders/take", `{"count":2}`, "Authorization", "Bearer "+token)
		return status, text
	}
	do := func(body string) (int, string) {
		status, _, text := send(t, "POST", w.Control+"/do", body)
		return status, text
	}
	if status, text := take(0); status != 200 || !strings.Contains(text, `"first":"1"`) {
		t.Fatalf("%d %s", status, text)
	}
	for _, c := range []struct {
		body   string
		status int
		says   string
		after  int
	}{
		{`{"do":"take","tag":"orders","count":5}`, 200, "ok", 200},
		{`{"do":"restart","ms":1}`, 200, "ok", 200},
		{`{"do":"restart"}`, 400, "want 1 to 600000", 200},
		{`{"do":"lose"}`, 400, "one of delete, restart, revoke, take, wipe", 200},
		{`{"do":"loose"}`, 400, "answer, delay, delete", 200},
		{`{"do":"take","tag":"orders"}`, 400, "fault.count", 200},
		{`{"do":"revoke","token":"web"}`, 400, "one of the script's tokens", 200},
		{`{"do":"delete","tag":"orders","server":2}`, 400, "0 to 1", 200},
		{`{"do":"delete","tag":"orders","server":1}`, 200, "ok", 410},
		{`{"do":"revoke","token":"app"}`, 200, "ok", 401},
	} {
		status, text := do(c.body)
		after, _ := take(0)
		if status != c.status || !strings.Contains(text, c.says) || after != c.after {
			t.Errorf("%s: %d %q, then %d; want %d %q, then %d", c.body, status, text, after, c.status, c.says, c.after)
		}
	}
	for _, path := range []string{"/requests?done=1", "/check"} {
		if status, _, _ := send(t, "GET", w.Control+path, "", "Host", "evil.example"); status == 0 {
			t.Errorf("%s was not answered", path)
		}
	}
}

func TestScriptsAreChecked(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		`{}`:                 "",
		`{"servers":[{}]} x`: "more after the object",
		`[]`:                 "no JSON object",
		`{"fault":[]}`:       "unknown field",
		`{"valid_for":-1}`:   "0 to 1000000",
		`{"servers":[{"faults":[{"do":"lose"}]}]}`:                                           "servers[0].faults[0].at",
		`{"servers":[{"faults":[{"at":1,"do":"delay"}]}]}`:                                   "servers[0].faults[0].ms",
		`{"servers":[{"faults":[{"at":1,"do":"delay","ms":600001}]}]}`:                       "1 to 600000",
		`{"servers":[{"faults":[{"at":1,"do":"fail","code":"no"}]}]}`:                        "such as store_unavailable",
		`{"servers":[{"faults":[{"at":1,"times":-2,"do":"lose"}]}]}`:                         "times",
		`{"servers":[{"faults":[{"at":1,"do":"limit"}]}]}`:                                   "count",
		`{"servers":[{"faults":[{"at":1,"do":"answer"}]}]}`:                                  "200 to 599",
		`{"servers":[{},{},{},{},{},{},{},{},{},{},{}]}`:                                     "up to 10",
		`{"why":"` + strings.Repeat("x", maxScript) + `"}`:                                   "up to 1048576 bytes",
		`{"servers":[{"faults":[{"at":1,"do":"fail","code":"fenced","retry_after":3601}]}]}`: "0 to 3600",
	} {
		_, err := ParseScript(strings.NewReader(text))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%.80s: %v, want %q", text, err, says)
		}
	}
	for _, address := range []string{"0.0.0.0:0", ":0", "example.com:80", "x"} {
		if w, err := Start(t.Context(), Script{}, address, slog.New(slog.DiscardHandler)); err == nil {
			_ = w.Close()
			t.Errorf("it listens at %q", address)
		}
	}
}
