package rpcapi

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
)

// A broken frame, and a call that leaves no time, are the client's errors, in calls of
// one message and in streams.
func TestBrokenFrames(t *testing.T) {
	f := fortify(t, memstore.New(), service.Options{}, map[string]auth.TokenConfig{"app": {}})
	f.next("orders")
	message := "\x0a\x06orders\x10\x01"
	whole := "\x00\x00\x00\x00\x0a" + message
	const invalid, deadline, exhausted, unimplemented = "3", "4", "8", "12"
	for name, tt := range map[string]struct{ body, header, status string }{
		"a whole one":               {whole, "", "0"},
		"half a head":               {"\x00\x00", "", invalid},
		"less than promised":        {"\x00\x00\x00\x00\x64" + message, "", invalid},
		"a head behind the message": {whole + "\x00", "", invalid},
		"other flags":               {"\x40\x00\x00\x00\x0a" + message, "", invalid},
		"all flags":                 {"\xff\x00\x00\x00\x05a: b\n", "", invalid},
		"compressed, unsaid":        {"\x01\x00\x00\x00\x0a" + message, "", invalid},
		"compressed, not really":    {"\x01\x00\x00\x00\x0a" + message, "Grpc-Encoding: gzip", invalid},
		"no message":                {"\x00\x00\x00\x00\x02\xff\xff", "", invalid},
		"too long":                  {"\x00\x40\x00\x00\x00" + message, "", exhausted},
		"nothing":                   {"", "", unimplemented},
		"no time":                   {whole, "Grpc-Timeout: 0S", deadline},
		"a nanosecond":              {whole, "Grpc-Timeout: 1n", deadline},
		"no number of a time":       {whole, "Grpc-Timeout: x", invalid},
	} {
		for _, procedure := range []string{hapaxv1connect.IssueServiceNextProcedure, hapaxv1connect.IssueServiceNextStreamProcedure} {
			r := httptest.NewRequest(http.MethodPost, procedure, strings.NewReader(tt.body))
			r.Header.Set("Content-Type", "application/grpc-web+proto")
			r.Header.Set("Authorization", "Bearer "+f.tokens["app"])
			if key, value, ok := strings.Cut(tt.header, ": "); ok {
				r.Header.Set(key, value)
			}
			w := httptest.NewRecorder()
			f.mux.ServeHTTP(w, r)
			got := w.Header().Get("Grpc-Status")
			if _, after, ok := strings.Cut(strings.ToLower(w.Body.String()), "grpc-status: "); ok {
				got, _, _ = strings.Cut(after, "\r")
			}
			if got != tt.status {
				t.Errorf("%s to %s: status %q, %v %q, want %s", name, procedure, got, w.Header(), w.Body, tt.status)
			}
		}
	}
}

// However a body is cut, whole frames pass as they are and others do not.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var body []byte
		for range rapid.IntRange(0, 3).Draw(t, "frames") {
			message := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "message")
			body = append(append(body, 0, 0, 0, byte(len(message)>>8), byte(len(message))), message...)
		}
		var from io.Reader = bytes.NewReader(body)
		if rapid.Bool().Draw(t, "byte by byte") {
			from = iotest.OneByteReader(from)
		}
		if rapid.Bool().Draw(t, "the end with the data") {
			from = iotest.DataErrReader(from)
		}
		var told counted
		got, err := io.ReadAll(&frames{ReadCloser: io.NopCloser(from), counter: &told, plain: true})
		if err != nil || !bytes.Equal(got, body) || len(told) != 0 {
			t.Fatalf("%q was read as %q, error %v", body, got, err)
		}
		if len(body) == 0 {
			return
		}
		cut := body[:rapid.IntRange(1, len(body)).Draw(t, "cut")]
		whole := true
		for rest := cut; len(rest) > 0; {
			if len(rest) < 5 || len(rest) < 5+int(rest[3])<<8+int(rest[4]) {
				whole = false
				break
			}
			rest = rest[5+int(rest[3])<<8+int(rest[4]):]
		}
		_, err = io.ReadAll(&frames{ReadCloser: io.NopCloser(bytes.NewReader(cut)), counter: &told, plain: true})
		if whole != (err == nil) || whole != (len(told) == 0) {
			t.Fatalf("%q: error %v, %d told", cut, err, len(told))
		}
	})
}
