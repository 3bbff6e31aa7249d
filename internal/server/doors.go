package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/witness"
)

// A door is where clients of a foreign system come in.
type door struct {
	mount.Door

	answer   mount.Answer
	listener net.Listener // nil: the main listener, or none
	web      *http.Server // nil: another protocol, or not yet
	opts     httpapi.FrontOptions
	front    *httpapi.Front
	served   bool
	serving  sync.WaitGroup
}

func (d *door) listen(ctx context.Context, c Config) error {
	if d.Address == "" {
		return nil
	}
	networks, err := mount.Networks(allowOf(d.Door), d.Allow)
	if err != nil {
		return err
	}
	l, err := listen(ctx, c, endpointOf(d.Door))
	if err == nil {
		d.listener = &allowing{l, networks}
	}
	return err
}

// build makes the server, and bounds its connections as those of the others.
func (d *door) build(c Config, own *service.Service, a mount.Answer, log *slog.Logger) {
	if d.answer = a; d.listener == nil {
		if a.Handler != nil {
			d.answer.Handler = httpapi.Counted(own, d.Name, a.Routes, a.Handler)
		}
		return
	}
	places := c.HTTPConnections
	if d.Places > 0 {
		places = min(places, d.Places)
	}
	d.listener = gated(d.listener, places, c, own, d.Name)
	if h := a.Handler; h != nil {
		routes := a.Routes
		if len(a.Issuing) > 0 {
			h, routes = answering(a, h), append(slices.Clone(routes), "/healthz", "/readyz")
		}
		d.web = newForeignWeb(c, known(a.Tokens, guardLoopback(d.listener, httpapi.Counted(own, d.Name, routes, h))), log)
		d.opts = c.front(log, newConn)
		d.opts.Paths = a.Routes
	}
}

func (d *door) serve(failed chan<- error) {
	switch {
	case d.listener == nil:
		return
	case d.web != nil:
		d.front = httpapi.NewForeignFront(d.listener, d.web.Handler, d.opts)
		d.serving.Go(func() { failed <- serveWeb(d.web, d.front) })
	default:
		d.serving.Go(func() { failed <- d.answer.Serve(d.listener) })
	}
	d.served = true
}

func (d *door) stop(drain context.Context) error {
	if !d.served {
		return nil
	}
	var err, frontErr error
	if d.web == nil {
		err = d.answer.Stop(drain)
	} else {
		// Beside the next: the front waits for the http.Server to close it.
		d.serving.Go(func() { frontErr = d.front.Shutdown(drain) })
		if err = d.web.Shutdown(drain); err != nil {
			_ = d.web.Close() // its connections have nothing to report
		}
	}
	d.serving.Wait()
	return errors.Join(err, frontErr)
}

// close closes a listener that is not served.
func (d *door) close() error {
	if d.listener == nil || d.served {
		return nil
	}
	return d.listener.Close()
}

// endpointOf is the address of a door, as it is configured.
func endpointOf(d mount.Door) endpoint {
	return endpoint{d.Setting, d.Address, d.Example, true, &foreignEndpoint{d.Open}}
}

// gated bounds the connections of a foreign system's listener as those of the
// others.
func gated(l net.Listener, places int, c Config, own *service.Service, name string) net.Listener {
	own.Counting(name)
	return gate.Listen(l, gate.New(places), true, func() {
		c.crowded()
		own.Refused(name, api.ErrLimitExceeded.Code())
	})
}

// newForeignWeb returns the server of an address of a foreign system.
func newForeignWeb(c Config, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, WriteTimeout: c.MaxWait + writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ConnContext: withConn, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// known notes each request with its connection, and without tokens vouches for it: nobody
// has to show anything then, but a whole request.
func known(tokens bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := auth.ConnFromContext(r.Context())
		conn.Begin()
		if !tokens {
			conn.Vouch()
		}
		h.ServeHTTP(w, r)
	})
}

// answering answers /healthz and /readyz, and has h answer the rest.
func answering(a mount.Answer, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			_, _ = io.WriteString(w, "ok\n") // an error means that the client has disconnected
		case "/readyz":
			tellReadiness(w, r, a)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// tellReadiness reports whether what answers at an address can issue: each of its services,
// or the one behind the mode that the request names.
func tellReadiness(w http.ResponseWriter, r *http.Request, a mount.Answer) {
	issuing, modes := a.Issuing, a.Modes
	if mode := r.URL.Query().Get("mode"); mode != "" {
		svc := modes[mode]
		if svc == nil {
			http.Error(w, "there is no mode "+strconv.Quote(mode)+" here that is on", http.StatusNotFound)
			return
		}
		issuing, modes = []*service.Service{svc}, nil
	}
	all := struct {
		health.Readiness
		Modes map[string]health.Readiness `json:"modes,omitempty"`
	}{Readiness: health.Readiness{Ready: true, State: string(witness.Serving), Store: "ok"}}
	for _, svc := range issuing {
		all.Readiness = all.And(svc.Readiness(r.Context()))
	}
	for name, svc := range modes {
		if all.Modes == nil {
			all.Modes = map[string]health.Readiness{}
		}
		mode := svc.Readiness(r.Context()).Bare()
		all.Modes[name] = mode
		all.Degraded = all.Degraded || mode.Degraded || !mode.Ready
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !all.Ready {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(all) // an error means that the client has disconnected
}

// guardLoopback refuses, on loopback, what a web page made a browser send.
func guardLoopback(l net.Listener, h http.Handler) http.Handler {
	if !isLoopback(l) {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpapi.IsLocal(r) {
			http.Error(w, "this address answers programs on this machine alone", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// allowing lets in the clients of some networks, and those on this machine.
type allowing struct {
	net.Listener
	networks []netip.Prefix
}

func (l *allowing) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.allows(conn.RemoteAddr()) {
			return conn, err
		}
		_ = conn.Close() // there is nobody to tell
	}
}

func (l *allowing) allows(at net.Addr) bool {
	addr, err := netip.ParseAddrPort(at.String())
	ip := addr.Addr().Unmap()
	return err == nil && (ip.IsLoopback() || len(l.networks) == 0 || slices.ContainsFunc(l.networks, func(p netip.Prefix) bool { return p.Contains(ip) }))
}
