package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
)

// Limits of the HTTP listeners that have no setting.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 30 * time.Second // beyond what a request may wait
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10

	// For HTTP/2. What a connection may have on the way is what each listener
	// may keep for it.
	maxStreams     = 128
	maxStreamBytes = 64 << 10
	maxConnBytes   = 256 << 10
	maxFrameBytes  = 16 << 10         // for which a connection keeps a buffer, whoever sends it
	pingAfter      = 30 * time.Second // of silence
	pingTimeout    = 15 * time.Second // for the answer
)

// newWeb returns the server of an HTTP listener.
func (s *server) newWeb(ctx context.Context, l net.Listener, policy *auth.Policy) *http.Server {
	hosts := s.isOwnHost
	if policy.HasTokens() { // which no browser sends by itself
		hosts = nil
	}
	routes := rpcapi.New(s.service, rpcapi.Options{Policy: policy, Stopping: ctx.Done(), Logger: s.log, Fleet: s.fleet})
	if l == s.listeners.http {
		maps.Copy(routes, s.mounts.routes())
	}
	maps.Copy(routes, s.adminRoutes(l))
	web := &http.Server{
		Handler: s.telemetry.traced(httpapi.New(s.service, httpapi.Options{
			LoopbackOnly: isLoopback(l),
			Hosts:        hosts,
			Policy:       policy,
			Logger:       s.log,
			Routes:       routes,
			Known:        s.knownToConsole(l),
			Gatherer:     s.gatherer(),
		})),
		Protocols: protocols(),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerStream: maxStreamBytes, MaxReceiveBufferPerConnection: maxConnBytes, MaxReadFrameSize: maxFrameBytes,
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: writeTimeout,
		},
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      s.config.MaxWait + writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       withAddress,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	switch {
	case policy.HasTokens():
		count := new(connections)
		web.ConnContext, web.ConnState = count.context, count.changed
	case s.certs != nil:
		web.ConnState = func(nc net.Conn, state http.ConnState) {
			if state == http.StateActive { // after the handshake, in which it showed what it must
				gate.PassOf(nc).Vouch()
			}
		}
	}
	return web
}

// front returns the options of the front before an HTTP server.
func (c Config) front(log *slog.Logger, conn func(net.Conn) *auth.Conn) httpapi.FrontOptions {
	return httpapi.FrontOptions{Idle: idleTimeout, Write: c.MaxWait + writeTimeout, Conn: conn, Logger: log}
}

// gated returns an HTTP listener that bounds connections.
func (s *server) gated(l net.Listener, policy *auth.Policy) net.Listener {
	strangers := policy.HasTokens() || s.certs != nil
	g := gate.New(s.config.HTTPConnections)
	s.gates = append(s.gates, g)
	return gate.Listen(l, g, strangers, func() {
		s.crowded()
		s.service.Refused(httpapi.API, api.ErrLimitExceeded.Code())
	})
}

// crowded reports a connection that was refused.
func (s *server) crowded() {
	s.config.crowded()
	s.service.Happened(health.AlarmConnections, "connections are refused: there are as many as the settings, or the limit on open files, allow")
}

// isOwnHost reports whether a Host is a name of this server: an address, which no
// page of another origin can have, this host's name, one in the certificate, or one
// that the setting hosts lists.
func (s *server) isOwnHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	if name == "" || strings.EqualFold(name, "localhost") {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	if own, err := os.Hostname(); err == nil && strings.EqualFold(name, own) {
		return true
	}
	for listed := range strings.SplitSeq(s.config.Hosts, ",") {
		if listed = strings.TrimSpace(listed); listed == "*" || strings.EqualFold(name, listed) {
			return true
		}
	}
	return s.certs != nil && s.certs.names(name)
}

// protocols are what the HTTP listener speaks; gRPC needs HTTP/2, also without
// TLS.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// serveWeb serves until the server is shut down.
func serveWeb(web *http.Server, l net.Listener) error {
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// connections tells the policy which requests come over the same connection, and
// when one ends.
type connections struct {
	open sync.Map // net.Conn to *auth.Conn
}

func (s *connections) context(ctx context.Context, c net.Conn) context.Context {
	conn := newConn(c)
	s.open.Store(c, conn)
	return auth.NewConnContext(withAddress(ctx, c), conn)
}

// newConn returns what counts for the tokens that are used on a connection.
func newConn(c net.Conn) *auth.Conn {
	pass := gate.PassOf(c)
	return &auth.Conn{Known: pass.Vouch, Began: pass.Began}
}

// withConn is withAddress for a listener of a foreign system.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return auth.NewConnContext(withAddress(ctx, c), newConn(c))
}

// withAddress returns the context of a connection, which says where it comes from.
func withAddress(ctx context.Context, c net.Conn) context.Context {
	return auth.NewContext(ctx, nil, c.RemoteAddr().String())
}

func (s *connections) changed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	if conn, ok := s.open.LoadAndDelete(c); ok {
		conn.(*auth.Conn).Close()
	}
}
