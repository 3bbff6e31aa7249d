package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/httpapi"
	"github.com/hapax-id/hapax/api/respapi"
	"github.com/hapax-id/hapax/api/rpcapi"
	"github.com/hapax-id/hapax/service"
)

// Limits of the HTTP listener that have no setting.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 30 * time.Second // beyond what a request may wait
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
	sealTimeout       = 5 * time.Second // for what Close has to tell the store
)

// Run serves until the context ends, then lets requests in flight finish, seals
// and returns nil. It logs to the given writer.
//
// What keeps it from starting comes as one error: a *hapax.ValueError for a
// setting, and what OpenNode returns.
func Run(ctx context.Context, c Config, logTo io.Writer) error {
	s, err := start(ctx, c, newLogger(c, logTo))
	if err != nil {
		if ctx.Err() != nil {
			err = nil // told to stop before it served
		}
		return err
	}
	return s.run(ctx)
}

// A server is what Run keeps while it serves.
type server struct {
	config    Config
	log       *slog.Logger
	node      *Node
	service   *service.Service
	listeners listeners
}

// start opens everything. The listeners come first: an address that cannot be
// used leaves no data directory behind.
func start(ctx context.Context, c Config, log *slog.Logger) (*server, error) {
	opts, err := serviceOptions(c, log)
	if err != nil {
		return nil, err
	}
	if err := opts.CheckIdentities(ctx); err != nil {
		return nil, err
	}
	ls, err := listenAll(ctx, c)
	if err != nil {
		return nil, err
	}
	node, err := OpenNode(ctx, c, log)
	if err != nil {
		return nil, errors.Join(err, ls.close())
	}
	opts.Holder, opts.Witness = node.Instance, node.Witness
	if node.Witness == nil {
		log.Warn("the store forgets everything when the server stops: its numbers will repeat", "store", c.Store)
	}
	svc, err := service.New(ctx, node.Store, opts)
	if err != nil {
		return nil, errors.Join(err, ls.close(), node.Close())
	}
	return &server{config: c, log: log, node: node, service: svc, listeners: ls}, nil
}

func serviceOptions(c Config, log *slog.Logger) (service.Options, error) {
	clock, err := testClock()
	if err != nil {
		return service.Options{}, err
	}
	opts := service.Options{
		Tags: c.Tags, Pools: c.Pools, NoAutoCreate: !c.AutoCreate,
		MaxTags: c.MaxTags, MaxCount: c.MaxCount, MaxWait: c.MaxWait, Refresh: c.Refresh, StoreTimeout: c.StoreTimeout,
		Logger: log, Clock: clock,
	}
	return opts, opts.Validate()
}

// listeners are what clients connect to.
type listeners struct {
	http net.Listener
	resp net.Listener // nil: the Redis protocol is not spoken
}

// listenAll opens the listeners that the configuration asks for, if it allows
// their addresses.
func listenAll(ctx context.Context, c Config) (ls listeners, err error) {
	if ls.http, err = listen(ctx, c, "http", c.HTTP, "127.0.0.1:8080"); err != nil || c.RESP == "" {
		return ls, err
	}
	if ls.resp, err = listen(ctx, c, "resp", c.RESP, "127.0.0.1:6380"); err != nil {
		return ls, errors.Join(err, ls.http.Close())
	}
	return ls, nil
}

func (ls listeners) close() error {
	err := ls.http.Close()
	if ls.resp != nil {
		err = errors.Join(err, ls.resp.Close())
	}
	return err
}

// listen opens the listener of a setting; example is an address for its errors.
func listen(ctx context.Context, c Config, setting, address, example string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("the address %s is in use by another process; stop it, or choose another address with --%s", address, setting)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("the address %s may not be listened on by this user; choose another one with --%s", address, setting)
	case err != nil:
		return nil, &hapax.ValueError{Field: setting, Value: address, Allowed: "an address of this machine as HOST:PORT, such as " + example, Err: hapax.ErrInvalidArgument}
	}
	if !isLoopback(listener) && !c.AllowUnauthenticated {
		return nil, errors.Join(&hapax.ValueError{
			Field: setting, Value: address,
			Allowed: "an address on loopback, such as " + example + ", because nobody is asked for credentials; --allow-unauthenticated lifts this",
			Err:     hapax.ErrInvalidArgument,
		}, listener.Close())
	}
	return listener, nil
}

func isLoopback(l net.Listener) bool {
	addr, ok := l.Addr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
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

// run serves until the context ends or a listener fails, and stops
// everything.
func (s *server) run(ctx context.Context) error {
	handler := httpapi.New(s.service, httpapi.Options{
		LoopbackOnly: isLoopback(s.listeners.http),
		Logger:       s.log,
		Routes:       rpcapi.New(s.service, rpcapi.Options{Stopping: ctx.Done(), Logger: s.log}),
	})
	web := &http.Server{
		Handler:           handler,
		Protocols:         protocols(),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      s.config.MaxWait + writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	redis := respapi.New(s.service, respapi.Options{
		MaxConnections: s.config.RESPConnections, IdleTimeout: s.config.RESPIdle, Logger: s.log,
	})
	failed := make(chan error, 2)
	var serving sync.WaitGroup
	serving.Go(func() { failed <- web.Serve(s.listeners.http) })
	if s.listeners.resp != nil {
		serving.Go(func() { failed <- redis.Serve(s.listeners.resp) })
	}

	url := "http://" + s.listeners.http.Addr().String()
	err := s.node.announce(url)
	if err == nil {
		s.logStart(url)
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	err = errors.Join(err, s.stop(web, redis))
	serving.Wait()
	return err
}

func (s *server) logStart(url string) {
	data, err := filepath.Abs(s.config.Data)
	if err != nil {
		data = s.config.Data
	}
	store := s.config.Store
	if path := boltPath(store, data); path != "" {
		store = "bolt:" + path
	}
	redis := ""
	if s.listeners.resp != nil {
		redis = s.listeners.resp.Addr().String()
	}
	s.log.Info("serving", "http", url, "resp", redis, "store", redact(store), "data", data, "instance", s.node.Instance)
}

// stop takes no new requests, waits for those in flight, and seals.
func (s *server) stop(web *http.Server, redis *respapi.Server) error {
	began := time.Now()
	s.log.Info("stopping", "drain", s.config.Drain.String())
	drain, cancel := context.WithTimeout(context.Background(), s.config.Drain)
	defer cancel()
	var draining sync.WaitGroup
	var webErr, redisErr error
	draining.Go(func() { webErr = web.Shutdown(drain) })
	draining.Go(func() { redisErr = redis.Shutdown(drain) })
	draining.Wait()
	if webErr != nil || redisErr != nil {
		s.log.Warn("requests in flight were cut off", "after", s.config.Drain.String())
		_ = web.Close() // Shutdown has closed the listener; connections have nothing to report
	}
	seal, cancel := context.WithTimeout(context.Background(), sealTimeout)
	defer cancel()
	err := errors.Join(s.service.Close(seal), s.node.withdraw(), s.node.Close())
	if err == nil {
		s.log.Info("stopped", "took", time.Since(began).String())
	}
	return err
}
