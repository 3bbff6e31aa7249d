package rpcapi

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/memstore"
)

var quiet = slog.New(slog.DiscardHandler)

// FuzzRequests sends any bytes to any procedure. Nothing may panic, nothing may
// be the server's fault, and no answer may grow beyond what was asked for.
func FuzzRequests(f *testing.F) {
	svc, err := service.New(f.Context(), memstore.New(), service.Options{Logger: quiet, MaxWait: 50 * time.Millisecond, MaxCount: 100, MaxTags: 100})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = svc.Close(context.Background()) })
	mux := http.NewServeMux()
	for pattern, h := range New(svc, Options{Logger: quiet}) {
		mux.Handle(pattern, h)
	}
	all := methods(f)
	procedures := slices.Sorted(maps.Keys(all))
	for i, procedure := range procedures {
		m := all[procedure]
		f.Add(uint8(i), false, mustMarshal(f, proto.Marshal, m))
		fill(m.ProtoReflect())
		f.Add(uint8(i), false, mustMarshal(f, proto.Marshal, m))
		f.Add(uint8(i), true, mustMarshal(f, protojson.Marshal, m))
	}
	next := uint8(slices.Index(procedures, "/hapax.v1.IssueService/Next"))
	for _, count := range []int32{-1, 0, 1, 100, 101, 1 << 30} {
		f.Add(next, false, mustMarshal(f, proto.Marshal, proto.Message(&hapaxv1.NextRequest{Tag: "t\x00é", Count: count})))
	}
	f.Add(next, true, []byte(`{"tag":"`+string(bytes.Repeat([]byte("["), 1000))+`"}`))
	f.Add(next, true, bytes.Repeat([]byte(`{"tag":`), 10_000))
	f.Fuzz(func(t *testing.T, which uint8, asJSON bool, body []byte) {
		procedure := procedures[int(which)%len(procedures)]
		if procedure == "/hapax.v1.IssueService/NextStream" {
			return // it may stream without end, as asked
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, procedure, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/proto")
		if asJSON {
			r.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s: %d %s", procedure, w.Code, w.Body)
		}
		if w.Body.Len() > 1<<20 {
			t.Errorf("%s: an answer of %d bytes", procedure, w.Body.Len())
		}
		if w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: the answer may be cached", procedure)
		}
	})
}

func mustMarshal(f *testing.F, marshal func(proto.Message) ([]byte, error), m proto.Message) []byte {
	f.Helper()
	b, err := marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return b
}
