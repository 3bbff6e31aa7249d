package httpapi

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/memstore"
)

// The two benchmarks stand side by side: what a number route costs beyond a
// handler that writes a counter. Both run over loopback with parallel clients
// that keep their connections.

func BenchmarkBare(b *testing.B) {
	var n atomic.Int64
	benchmark(b, "/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(strconv.AppendInt(nil, n.Add(1), 10))
	}))
}

func BenchmarkNext(b *testing.B) {
	benchmark(b, "/v1/tags/orders/next", benchHandler(b))
}

// The same without a network: what the handlers themselves cost.

func BenchmarkBareHandler(b *testing.B) {
	var n atomic.Int64
	benchmarkHandler(b, "/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(strconv.AppendInt(nil, n.Add(1), 10))
	}))
}

func BenchmarkNextHandler(b *testing.B) {
	benchmarkHandler(b, "/v1/tags/orders/next", benchHandler(b))
}

func benchHandler(b *testing.B) http.Handler {
	logger := slog.New(slog.DiscardHandler)
	svc, err := service.New(b.Context(), memstore.New(), service.Options{
		Logger: logger,
		Tags:   map[string]service.TagConfig{"orders": {Step: 1 << 30, MaxStep: 1 << 30}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = svc.Close(context.Background()) })
	return New(svc, Options{Logger: logger, LoopbackOnly: true})
}

func benchmark(b *testing.B, path string, h http.Handler) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(l) }()
	b.Cleanup(func() { _ = srv.Close(); <-served })
	request := []byte("GET " + path + " HTTP/1.1\r\nHost: " + l.Addr().String() + "\r\n\r\n")
	b.SetParallelism(25)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		buf := make([]byte, 1024)
		for pb.Next() {
			if _, err := c.Write(request); err != nil {
				b.Error(err)
				return
			}
			n, err := c.Read(buf)
			if err != nil || string(buf[:15]) != "HTTP/1.1 200 OK" {
				b.Errorf("%q, %v", buf[:n], err)
				return
			}
		}
	})
}

func benchmarkHandler(b *testing.B, path string, h http.Handler) {
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://127.0.0.1:8080"+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	w := &discard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(w, r)
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header       { return d.header }
func (*discard) Write(p []byte) (int, error) { return len(p), nil }
func (*discard) WriteHeader(int)             {}
