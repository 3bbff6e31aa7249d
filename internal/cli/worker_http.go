package cli

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// workerHeaderTimeout bounds how long a program may take to ask.
const workerHeaderTimeout = 5 * time.Second

// An answered worker is what --http tells.
type answeredWorker struct {
	Worker  int64  `json:"worker"`
	Until   string `json:"until"`
	UntilMS int64  `json:"until_ms"`
}

// answerWorker answers whoever asks on loopback with the worker ID that is held, until the
// returned function is called.
func answerWorker(ctx context.Context, held *holding, address string, text func(id int64) string) (stop func(), err error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || !isLoopbackName(host) {
		return nil, &hapax.ValueError{Field: "--http", Value: address, Allowed: "an address of loopback, such as 127.0.0.1:8090: a worker ID is for programs of this host", Err: hapax.ErrInvalidArgument}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	web := &http.Server{
		Handler: workerHandler(func() (answeredWorker, bool) {
			until := held.Until()
			return answeredWorker{held.ID(), until.UTC().Format("2006-01-02T15:04:05.000Z"), until.UnixMilli()}, held.Remaining() > 0 && held.Err() == nil
		}, text),
		ReadHeaderTimeout: workerHeaderTimeout, ReadTimeout: workerHeaderTimeout, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(l) // ends with Close
	}()
	return func() {
		_ = web.Close()
		<-done
	}, nil
}

func isLoopbackName(host string) bool {
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// workerHandler answers GET / in the form that a preset reads, or as JSON, and GET /worker
// with the bare number; 503 once the worker ID must not be used any more.
func workerHandler(now func() (answeredWorker, bool), text func(id int64) string) http.Handler {
	answer := func(form func(answeredWorker) (kind, body string)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			name, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				name = r.Host
			}
			held, ok := now()
			w.Header().Set("Cache-Control", "no-store")
			switch {
			case !isLoopbackName(name): // a web page that reached loopback under a name of its own
				http.Error(w, "hapax: this is for programs of this host", http.StatusForbidden)
			case !ok:
				http.Error(w, "hapax: the worker ID must not be used any more", http.StatusServiceUnavailable)
			default:
				kind, body := form(held)
				w.Header().Set("Content-Type", kind)
				_, _ = io.WriteString(w, body) // an error means that the client has disconnected
			}
		}
	}
	asText := func(body string) (string, string) { return "text/plain; charset=utf-8", body }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", answer(func(a answeredWorker) (string, string) {
		if text != nil {
			return asText(text(a.Worker))
		}
		body, err := json.Marshal(a)
		if err != nil {
			panic(err) // numbers and a text
		}
		return "application/json", string(body) + "\n"
	}))
	mux.HandleFunc("GET /worker", answer(func(a answeredWorker) (string, string) { return asText(strconv.FormatInt(a.Worker, 10)) }))
	return mux
}

// zitadelText returns a text of which ZITADEL makes this machine ID: it takes the lower 16 bits
// of an FNV hash of a webhook's answer, so that numbers told plainly would collide.
func zitadelText(id int64) string {
	for n := 0; ; n++ {
		text := strconv.Itoa(n)
		h := fnv.New32()
		_, _ = io.WriteString(h, text) // it never fails
		if int64(uint16(h.Sum32())) == id {
			return text
		}
	}
}
