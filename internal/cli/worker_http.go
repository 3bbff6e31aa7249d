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
	"os"
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

	left time.Duration // until then, or longer
}

// answerWorker answers whoever asks on loopback with the worker ID that is held, until the
// returned function is called. The claim says whether a program has it.
func answerWorker(ctx context.Context, held *holding, address string, g generator, one *claim) (stop func(), err error) {
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
			until, left := held.lasts()
			return answeredWorker{held.ID(), until.UTC().Format(untilForm), until.UnixMilli(), left}, left > 0 && held.Err() == nil
		}, g, one),
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
// it was last told, or until it gives the ID up. Its last numbers can have a time that is later by
// ahead: the next program, or the same one with a new generator, has the ID from then on.
type claim struct {
	ahead time.Duration

	mu     sync.Mutex // guards the rest
	holder string     // empty: it gave no name
	until  time.Time  // from here on nobody has it; zero: nobody ever had
	isTold bool       // that it must not use the ID any more
	isOver bool       // nobody gets it any more
}

// take reports whether a program has the worker ID now, for the time that it is told. If nobody
// has it, wait is how long numbers may still lie ahead of the clock; 0: another program has it, or
// nobody is to have it any more.
func (c *claim) take(holder string, left time.Duration) (wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.isOver {
		return 0, false
	}
	if now.Before(c.until) {
		if c.holder != holder { // also by a name where a program without one was first
			return 0, false
		}
	} else if wait = c.until.Add(c.ahead).Sub(now); wait > 0 && !c.until.IsZero() {
		return wait, false
	}
	c.holder, c.until, c.isTold = holder, now.Add(left), false
	return 0, true
}

// refuse notes that a program was told not to use the worker ID any more.
func (c *claim) refuse(holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isTold = c.isTold || c.holder == holder
}

// giveUp ends the time of a program that does not use the worker ID any more.
func (c *claim) giveUp(holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.holder == holder && now.Before(c.until) {
		c.until = now
	}
}

// isTaken reports whether a program that gave a name may still use the worker ID: it gives the ID up
// when it does not.
func (c *claim) isTaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isTakenLocked()
}

func (c *claim) isTakenLocked() bool { return c.holder != "" && time.Now().Before(c.until) }

// end is isTaken once nobody gets the worker ID any more: a program that asks while it is given back, which
// may wait for a server, would be told an ID that is another's soon.
func (c *claim) end() (isTaken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isOver = true
	return c.isTakenLocked()
}

func (c *claim) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isOver
}

// awaitRefusal waits until a program that has the worker ID by its name has asked, and was told not to
// use it any more, until its time is over, or a signal comes: without an answer it goes on.
func (c *claim) awaitRefusal(signals <-chan os.Signal) {
	for c.isTaken() && !c.wasTold() {
		select {
		case <-signals:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *claim) wasTold() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isTold
}

// workerHandler answers GET / in the form that a known generator reads, or as JSON, and GET /worker
// with the bare number; 503 once the worker ID must not be used any more. A program that asks with
// ?holder=NAME has the worker ID for itself until its time is over, or DELETE /?holder=NAME. One
// that asks without a name keeps those with one from it, too.
func workerHandler(now func() (answeredWorker, bool), g generator, one *claim) http.Handler {
	answer := func(form func(answeredWorker) (kind, body string)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			name, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				name = r.Host
			}
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
			default:
				held, status := claimed(r.Context(), now, one, holder)
				switch status {
				case http.StatusServiceUnavailable:
					http.Error(w, "hapax: the worker ID must not be used any more", status)
					_ = http.NewResponseController(w).Flush() // before this process ends, which waits for it
					one.refuse(holder)
				case http.StatusConflict:
					http.Error(w, "hapax: another program has this worker ID: run worker hold once for each", status)
				default:
					kind, body := form(held)
					w.Header().Set("Content-Type", kind)
					_, _ = io.WriteString(w, body) // an error means that the client has disconnected
				}
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

// claimed claims the worker ID for a program, which waits until no number of the one before can lie
// ahead of the clock any more.
func claimed(ctx context.Context, now func() (answeredWorker, bool), one *claim, holder string) (answeredWorker, int) {
	for {
		held, ok := now() // anew after each wait
		if !ok {
			return held, http.StatusServiceUnavailable
		}
		wait, ok := one.take(holder, held.left)
		switch {
		case ok:
			return held, http.StatusOK
		case wait == 0 && one.hasEnded():
			return held, http.StatusServiceUnavailable
		case wait == 0:
			return held, http.StatusConflict
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done(): // it has gone, and must not have the ID
			return held, http.StatusConflict
		}
	}
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
