package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// Limits of the HTTP listeners that have no setting.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 30 * time.Second // beyond what a request may wait
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// newWeb returns the server of an HTTP listener.
func (s *server) newWeb(ctx context.Context, l net.Listener, policy *auth.Policy) *http.Server {
	routes := rpcapi.New(s.service, rpcapi.Options{Policy: policy, Stopping: ctx.Done(), Logger: s.log})
	if l == s.listeners.http {
		maps.Copy(routes, s.vesta.routes)
	}
	web := &http.Server{
		Handler: httpapi.New(s.service, httpapi.Options{
			LoopbackOnly: isLoopback(l),
			Policy:       policy,
			Logger:       s.log,
			Routes:       routes,
		}),
		Protocols:         protocols(),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      s.config.MaxWait + writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if s.certs != nil {
		web.TLSConfig = s.certs.web()
	}
	if policy.HasTokens() {
		count := new(connections)
		web.ConnContext, web.ConnState = count.context, count.changed
	}
	return web
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
	var err error
	if web.TLSConfig != nil {
		err = web.ServeTLS(l, "", "")
	} else {
		err = web.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// connections tells the policy which requests come over the same connection, and
// when one ends.
type connections struct {
	open sync.Map // net.Conn to *auth.Conn
}

func (s *connections) context(ctx context.Context, c net.Conn) context.Context {
	conn := new(auth.Conn)
	s.open.Store(c, conn)
	return auth.NewConnContext(ctx, conn)
}

func (s *connections) changed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	if conn, ok := s.open.LoadAndDelete(c); ok {
		conn.(*auth.Conn).Close()
	}
}
