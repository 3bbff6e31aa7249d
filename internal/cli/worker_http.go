package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// workerHeaderTimeout bounds how long a program may take to ask.
const workerHeaderTimeout = 5 * time.Second

// maxHolder is how long a name may be by which a program asks, in bytes.
const maxHolder = 128

// An answered worker is what --http tells.
type answeredWorker struct {
	Worker  int64  `json:"worker"`
	Until   string `json:"until"`
	UntilMS int64  `json:"until_ms"`
}

// answerWorker answers whoever asks on loopback with the worker ID that is held, until the
// returned function is called.
func answerWorker(ctx context.Context, held *holding, address string, g generator) (stop func(), err error) {
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
			// Read first: an extension that comes between makes the time that is told too short, not too long.
			until := held.Until()
			return answeredWorker{held.ID(), until.UTC().Format("2006-01-02T15:04:05.000Z"), until.UnixMilli()}, held.Remaining() > 0 && held.Err() == nil
		}, g),
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

// isWebPage reports whether a page of another site makes a browser ask.
func isWebPage(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get("Origin") != "" || site != "" && site != "none"
}

// A claim keeps the worker ID for one of the programs that ask: until the end of the time that
// it was last told, from which on it does not use the ID any more.
type claim struct {
	mu     sync.Mutex // guards the rest
	holder string     // empty: it gave no name
	until  time.Time  // zero: nobody has it
}

// take reports whether a program may have the worker ID, for the time that it is told.
func (c *claim) take(holder string, left time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.holder != holder && now.Before(c.until) { // also by a name where a program without one was first
		return false
	}
	c.holder, c.until = holder, now.Add(left)
	return true
}

func (c *claim) giveUp(holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == holder {
		c.holder, c.until = "", time.Time{}
	}
}

// workerHandler answers GET / in the form that a known generator reads, or as JSON, and GET /worker
// with the bare number; 503 once the worker ID must not be used any more. A program that asks with
// ?holder=NAME has the worker ID for itself until its time is over, or DELETE /?holder=NAME. One
// that asks without a name keeps those with one from it, too.
func workerHandler(now func() (answeredWorker, bool), g generator) http.Handler {
	var one claim
	answer := func(form func(answeredWorker) (kind, body string)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			name, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				name = r.Host
			}
			held, ok := now()
			holder := r.URL.Query().Get("holder")
			// A worker ID out of a cache may be another's by now.
			w.Header().Set("Cache-Control", "no-store")
			switch {
			case !isLoopbackName(name) || isWebPage(r): // a page that reached loopback, perhaps under a name of its own, would keep the ID from others
				http.Error(w, "hapax: this is for programs of this host", http.StatusForbidden)
			case len(holder) > maxHolder || holder == "" && (g.isClaimed || r.Method == http.MethodDelete):
				http.Error(w, fmt.Sprintf("hapax: invalid holder of %d bytes: want /?holder=NAME, 1 to %d bytes that no other program has", len(holder), maxHolder), http.StatusBadRequest)
			// Whatever has become of the worker ID: a program that stops has nothing to wait for.
			case r.Method == http.MethodDelete:
				one.giveUp(holder)
				w.WriteHeader(http.StatusNoContent)
			case !ok:
				http.Error(w, "hapax: the worker ID must not be used any more", http.StatusServiceUnavailable)
			case !one.take(holder, time.Until(time.UnixMilli(held.UntilMS))):
				http.Error(w, "hapax: another program has this worker ID: run worker hold once for each", http.StatusConflict)
			default:
				kind, body := form(held)
				w.Header().Set("Content-Type", kind)
				_, _ = io.WriteString(w, body) // an error means that the client has disconnected
			}
		}
	}
	asText := func(body string) (string, string) { return "text/plain; charset=utf-8", body }
	root := answer(func(a answeredWorker) (string, string) {
		if g.text != nil {
			return asText(g.text(a.Worker))
		}
		body, err := json.Marshal(a)
		if err != nil {
			panic(err) // numbers and a text
		}
		return "application/json", string(body) + "\n"
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", root)
	mux.HandleFunc("DELETE /{$}", root)
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
