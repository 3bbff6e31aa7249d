// Package testserver is a hapax server for tests: the routes and rules of a server over a
// store in memory, with the failures that a script asks for. Equal scripts and requests give
// equal answers, but for receipts, and for numbers that hold the time.
//
// Beside the servers there is a control, whose routes are for the test:
//
//	GET  /requests?done=N   the requests for numbers, once N of them are done
//	GET  /check             how they differ from the script's requests
//	POST /do                a fault of a script, with "server", which happens at once
package testserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
)

const (
	headerTimeout = 10 * time.Second
	awaitTimeout  = 30 * time.Second // of /requests
	closeTimeout  = 10 * time.Second
)

// World is a running test server, or several.
type World struct {
	script  Script
	log     *slog.Logger
	policy  *auth.Policy
	record  *record
	nodes   []*node
	control *http.Server

	Servers []string // their URLs
	Control string   // the URL of the control

	life  context.Context // ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu     sync.Mutex // guards stores and tokens; never held while waiting
	stores map[string]*memstore.Store
	tokens map[string]auth.TokenConfig
}

// Start starts the servers of a script, the first at an address and the others at free
// ports of its host.
func Start(ctx context.Context, script Script, address string, log *slog.Logger) (*World, error) {
	if err := script.check(); err != nil {
		return nil, err
	}
	if len(script.Servers) == 0 {
		script.Servers = []Server{{}}
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil || !isLoopback(host) {
		return nil, invalid("http", address, "an address of loopback, such as 127.0.0.1:0: a test server keeps nothing and asks nobody who they are")
	}
	w := &World{script: script, log: log, record: newRecord(), stores: map[string]*memstore.Store{}, tokens: map[string]auth.TokenConfig{}}
	for name, t := range script.Tokens {
		w.tokens[name] = auth.TokenConfig{Hash: auth.HashToken(t.Token), Scopes: t.Scopes, Tags: t.Tags}
	}
	if w.policy, err = auth.NewPolicy(w.tokens); err != nil {
		return nil, err
	}
	// The servers go on until Close, whatever becomes of the context of the start.
	w.life, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	for i, s := range script.Servers {
		if i > 0 {
			address = net.JoinHostPort(host, "0")
		}
		n := &node{world: w, index: i, script: s, address: address, moving: make(chan struct{}, 1)}
		if err := n.start(ctx); err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.nodes = append(w.nodes, n)
		w.Servers = append(w.Servers, "http://"+n.address)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	w.Control = "http://" + l.Addr().String()
	w.control = &http.Server{Handler: w.controls(), ReadHeaderTimeout: headerTimeout}
	w.tasks.Go(func() { w.serve(w.control, l) })
	return w, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (w *World) serve(s *http.Server, l net.Listener) {
	if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		w.log.Error("a listener failed", "err", err)
	}
}

// Close stops everything. It is called once.
func (w *World) Close() error {
	w.stop()
	var errs []error
	for _, n := range w.nodes {
		n.moving <- struct{}{} // for good: nobody starts it any more
		errs = append(errs, n.stop())
	}
	if w.control != nil {
		errs = append(errs, w.control.Close())
	}
	w.tasks.Wait()
	return errors.Join(errs...)
}

// store returns the store of a name.
func (w *World) store(name string) *memstore.Store {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stores[name] == nil {
		w.stores[name] = memstore.New()
	}
	return w.stores[name]
}

func (w *World) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.stores, name)
}

// revoke takes a token away.
func (w *World) revoke(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	config := w.tokens[name]
	config.Hash = auth.HashToken(auth.NewToken()) // nobody has that one, and tokens are asked for as before
	w.tokens[name] = config
	return w.policy.Replace(w.tokens)
}

// A node is one of the servers.
type node struct {
	world   *World
	index   int
	script  Server
	address string

	mu      sync.Mutex // guards the fields below; never held while waiting
	seen    int        // requests for numbers
	svc     *service.Service
	handler http.Handler
	web     *http.Server

	moving chan struct{} // held while it starts or stops
}

// start opens a service over the node's store, and listens.
func (n *node) start(ctx context.Context) error {
	w := n.world
	svc, err := service.New(w.life, w.store(n.script.Store), service.Options{
		Tags: w.script.Tags, NoAutoCreate: w.script.AutoCreate != nil && !*w.script.AutoCreate, Logger: w.log,
	})
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", n.address)
	if err != nil {
		return errors.Join(err, svc.Close(ctx))
	}
	policy := w.policy
	if len(w.script.Tokens) == 0 {
		policy = nil
	}
	web := &http.Server{Handler: n, ReadHeaderTimeout: headerTimeout, ErrorLog: slog.NewLogLogger(w.log.Handler(), slog.LevelDebug)}
	n.mu.Lock()
	// With the port that was free: after a restart, clients look for it there.
	n.svc, n.web, n.address = svc, web, l.Addr().String()
	n.handler = httpapi.New(svc, httpapi.Options{LoopbackOnly: true, Policy: policy, Logger: w.log, Validity: time.Duration(w.script.ValidFor * float64(time.Second))})
	n.mu.Unlock()
	w.tasks.Go(func() { w.serve(web, l) })
	return nil
}

// stop closes the listener with all connections, and the service.
func (n *node) stop() error {
	n.mu.Lock()
	web, svc := n.web, n.svc
	n.web, n.svc = nil, nil
	n.mu.Unlock()
	if web == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(web.Close(), svc.Close(ctx))
}

// restart stops the node and, after a while, starts it again.
func (n *node) restart(pause time.Duration, wiped bool) error {
	select {
	case n.moving <- struct{}{}:
	case <-n.world.life.Done():
		return nil
	}
	defer func() { <-n.moving }()
	if err := n.stop(); err != nil {
		return err
	}
	if wiped {
		n.world.forget(n.script.Store)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		if n.world.life.Err() != nil {
			return nil
		}
		return n.start(n.world.life)
	case <-n.world.life.Done():
		return nil
	}
}

// isForNumbers reports whether a request counts: those that take or return numbers.
func isForNumbers(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/v1/tags/")
	_, verb, deeper := strings.Cut(rest, "/")
	return ok && deeper && (verb == "take" || verb == "handback" || verb == "ids" || verb == "next")
}

// ServeHTTP implements http.Handler.
func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	svc, handler := n.svc, n.handler
	n.mu.Unlock()
	if svc == nil {
		panic(http.ErrAbortHandler) // it is stopping
	}
	if !isForNumbers(r) {
		handler.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxScript))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	q := &request{Server: n.index, Path: r.Method + " " + r.URL.EscapedPath(), Store: r.Header.Get(api.StoreHeader) != "", Token: n.world.nameOf(r), Body: asJSON(body)}
	// Under one lock, so that the record has requests in the order in which faults count them.
	n.mu.Lock()
	n.seen++
	seen := n.seen
	n.world.record.begin(q)
	n.mu.Unlock()
	a := &answer{header: http.Header{}, status: http.StatusOK}
	// Also after a panic, by which a connection is closed.
	defer func() { n.world.record.end(q, a.status, asJSON(a.body)) }()
	var after []Fault
	for _, f := range n.script.Faults {
		if !f.applies(seen) {
			continue
		}
		if q.Fault = f.Do; f.Do == "delay" || f.Do == "lose" || f.Do == "misname" {
			after = append(after, f)
			continue
		}
		switch f.Do {
		case "drop":
			a.lose()
		case "fail":
			handler = failing(svc, f)
		case "answer":
			handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if id, err := svc.KnownStore(r.Context()); err == nil && strings.HasPrefix(f.Body, "{") { // so that nothing else is wrong
					w.Header().Set(api.StoreHeader, cmp.Or(f.Store, id))
				}
				w.WriteHeader(f.Status)
				_, _ = w.Write([]byte(f.Body))
			})
		case "limit":
			body = limited(body, f.Count)
		case "restart", "wipe":
			n.world.tasks.Go(func() { n.world.told(n.restart(f.pause(), f.Do == "wipe")) })
			a.lose()
		default:
			n.world.told(n.do(r.Context(), f))
		}
	}
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
	handler.ServeHTTP(a, r)
	for _, f := range after {
		switch f.Do {
		case "lose":
			a.lose()
		case "misname":
			a.header.Set(api.StoreHeader, f.Store)
			if f.Store == "" {
				a.header.Del(api.StoreHeader)
			}
		}
		timer := time.NewTimer(f.pause())
		select {
		case <-timer.C:
		case <-n.world.life.Done():
			timer.Stop()
			a.lose()
		}
	}
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // an error means that the client has disconnected
}

// nameOf returns the name of the token that a request shows.
func (w *World) nameOf(r *http.Request) string {
	for name, t := range w.script.Tokens {
		if r.Header.Get("Authorization") == "Bearer "+t.Token {
			return name
		}
	}
	if r.Header.Get("Authorization") != "" {
		return "(unknown)"
	}
	return ""
}

// told logs what a fault could not do.
func (w *World) told(err error) {
	if err != nil {
		w.log.Error("a fault of the script went wrong", "err", err)
	}
}

// do does what a fault says at once.
func (n *node) do(ctx context.Context, f Fault) error {
	n.mu.Lock()
	svc := n.svc
	n.mu.Unlock()
	switch f.Do {
	case "restart", "wipe":
		return n.restart(f.pause(), f.Do == "wipe")
	case "revoke":
		return n.world.revoke(f.Token)
	case "delete":
		_, err := svc.DeleteTag(ctx, f.Tag)
		return err
	case "take":
		_, err := svc.Take(ctx, f.Tag, f.Count, true, "")
		return err
	}
	return invalid("do", f.Do, "one of delete, restart, revoke, take, wipe: the others are for requests to come")
}

// failing answers with an error.
func failing(svc *service.Service, f Fault) http.Handler {
	h := httpapi.Failing(svc, hapax.ErrorOf(hapax.Code(f.Code)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		if f.RetryAfter > 0 {
			// An answer is kept until its end, so that a header may still be added.
			w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		}
	})
}

// limited returns a request for at most that many numbers.
func limited(body []byte, most int64) []byte {
	object, ok := asJSON(body).(map[string]any)
	if !ok {
		return body
	}
	if count, ok := object["count"].(float64); ok {
		object["count"] = min(int64(count), most)
	}
	return []byte(asText(object))
}

// asJSON returns a text as JSON if it is that; nil for none.
func asJSON(text []byte) any {
	var v any
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return string(text)
	}
	return v
}

// An answer is kept until it is known whether it is to arrive.
type answer struct {
	header http.Header
	status int
	body   []byte
	wrote  bool
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if !a.wrote {
		a.status, a.wrote = status, true
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.wrote = true
	a.body = append(a.body, p...)
	return len(p), nil
}

// lose closes the connection without an answer. What was answered stays in the record.
func (a *answer) lose() {
	a.status = 0
	panic(http.ErrAbortHandler)
}

// controls returns the routes of the control.
func (w *World) controls() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /requests", func(rw http.ResponseWriter, r *http.Request) {
		want, _ := strconv.Atoi(r.URL.Query().Get("done"))
		if err := w.await(r.Context(), want); err != nil {
			http.Error(rw, err.Error(), http.StatusConflict)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write(w.record.json())
	})
	mux.HandleFunc("GET /check", func(rw http.ResponseWriter, _ *http.Request) {
		if differ := w.record.compare(w.script.Requests, w.script.More); differ != "" {
			http.Error(rw, differ, http.StatusConflict)
			return
		}
		_, _ = io.WriteString(rw, "ok\n")
	})
	mux.HandleFunc("POST /do", func(rw http.ResponseWriter, r *http.Request) {
		var body struct {
			Fault
			Server int `json:"server"`
		}
		d := json.NewDecoder(http.MaxBytesReader(rw, r.Body, maxScript))
		d.DisallowUnknownFields()
		err := d.Decode(&body)
		if err == nil && (body.Server < 0 || body.Server >= len(w.nodes)) {
			err = invalid("server", body.Server, fmt.Sprintf("0 to %d", len(w.nodes)-1))
		}
		if err == nil {
			err = body.check("fault", w.script)
		}
		if err == nil {
			err = w.nodes[body.Server].do(r.Context(), body.Fault)
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(rw, "ok\n")
	})
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if at, err := url.Parse(w.Control); err != nil || r.Host != at.Host { // a web page that came here by another name
			http.Error(rw, "this is the control of a test server at "+w.Control, http.StatusForbidden)
			return
		}
		mux.ServeHTTP(rw, r)
	})
}

// await waits until so many requests are done.
func (w *World) await(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		n, changed := w.record.done()
		if n >= want {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d requests are done, and %d are waited for", n, want)
		case <-w.life.Done():
			return hapax.ErrClosed
		}
	}
}
