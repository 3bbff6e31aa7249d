package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/api/respapi"
	"github.com/hapax-id/hapax/internal/console"
	"github.com/hapax-id/hapax/internal/fleet"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
)

// strangersGrace is how long a stop waits for clients that have shown nothing.
const strangersGrace = 500 * time.Millisecond

// stuckGrace is how long a stop waits, after the drain, for calls that were cut off: those
// in a hook or a strategy that does not heed its context never end.
const stuckGrace = 2 * time.Second

// sealTimeout bounds what Close has to tell the store: with a hundred thousand tags, on a
// busy machine, that is much. A store that is away ends it sooner.
const sealTimeout = 30 * time.Second

// manyWrong is how many wrong tokens of an address in a minute are an alarm.
const manyWrong = 10

// Run serves until the context ends, then lets requests in flight finish, seals
// and returns nil. It logs to the given writer. Once leaving is closed it reports
// that it is not ready, and serves on; a nil channel is never closed.
//
// On SIGHUP it calls reload, unless that is nil, and takes over the tokens and the
// log level of the result; and it reads the certificates anew.
//
// What keeps it from starting comes as one error: a *hapax.ValueError for a
// setting, and what OpenNode returns.
func Run(ctx context.Context, leaving <-chan struct{}, c Config, reload func() (Config, error), logTo io.Writer) error {
	tuneCollector()
	level := new(slog.LevelVar)
	level.Set(levelOf(c))
	remembered := console.NewLog(newHeaded(newLogger(c, logTo, level).Handler()))
	log := slog.New(remembered)
	failWhenTooLong()
	s, err := start(ctx, c, log)
	if err != nil {
		if ctx.Err() != nil {
			err = nil // told to stop before it served
		}
		return err
	}
	if unknown := unknownVariables(os.Environ()); len(unknown) > 0 {
		log.Warn("there are no such settings; the variables are ignored", "variables", strings.Join(unknown, ", "))
	}
	s.reload, s.level = reload, level
	s.openFleet()
	s.openConsole(remembered)
	return s.run(ctx, leaving)
}

// A server is what Run keeps while it serves.
type server struct {
	config    Config
	log       *slog.Logger
	node      *Node
	service   *service.Service
	listeners listeners
	mounts    *mounts
	certs     *certificates          // nil: no TLS
	sights    *sights                // what raises alarms beside the service
	notifier  *notifier              // may be nil
	telemetry *telemetry             // may be nil
	fleet     *fleet.Fleet           // asks other nodes, and answers them
	console   *console.Console       // nil: it is off
	fleetKey  []byte                 // nil: none
	reload    func() (Config, error) // may be nil
	level     *slog.LevelVar         // of the log

	policy *auth.Policy // may be nil
	public *auth.Policy // for the listeners that do not administer
	fronts []*httpapi.Front
	gates  []*gate.Gate // of the HTTP listeners

	left bool // calls that never end were left behind by stop
}

// start opens everything. The listeners come first: an address that cannot be
// used leaves no data directory behind.
func start(ctx context.Context, c Config, log *slog.Logger) (*server, error) {
	if err := checkTelemetry(); err != nil {
		return nil, err
	}
	store := NewLateStore()
	opts, mounts, err := serviceOptions(c, log, store)
	if err != nil {
		return nil, err
	}
	c.strategies = opts.Strategies
	if err := opts.CheckIdentities(ctx); err != nil {
		return nil, err
	}
	policy, err := auth.NewPolicy(c.Tokens)
	if err != nil {
		return nil, err
	}
	var svc *service.Service // for those that tell it their findings
	policy.ReportWrong(func(w auth.WrongToken) {
		if w.Wrong >= manyWrong {
			svc.Happened(health.AlarmWrongTokens, fmt.Sprintf("%d wrong tokens in a minute from %s", w.Wrong, w.From))
		}
		log.Warn("a wrong token was shown", "address", w.From, "in_this_minute", w.Wrong, "suppressed", w.Suppressed)
	})
	public := policy
	if c.AdminHTTP != "" {
		public = policy.Without(auth.ScopeAdmin | auth.ScopeMetrics | auth.ScopeRead)
	}
	certs, err := newCertificates(c, log)
	if err != nil {
		return nil, err
	}
	fleetKey, err := c.fleetKey()
	if err != nil {
		return nil, err
	}
	ls, err := listenAll(ctx, c)
	if err != nil {
		return nil, err
	}
	tellFiles := c.fitFiles(log)
	unlisten := func() error {
		return errors.Join(ls.close(), mounts.seal(ctx), mounts.close())
	}
	if err := mounts.listen(ctx, c); err != nil {
		return nil, errors.Join(err, unlisten())
	}
	// From the listener: the port in the configuration may be 0.
	c.address = c.advertised(ls.administering())
	node, err := OpenNode(ctx, c, log)
	if err != nil {
		return nil, errors.Join(err, unlisten())
	}
	err = node.OpenHistory(opts.Strategies)
	if err == nil {
		err = mounts.open(ctx, c, node, &opts, log)
	}
	if err != nil {
		return nil, errors.Join(err, unlisten(), node.Close())
	}
	tellFiles()
	if len(c.ignored) > 0 {
		log.Warn("these settings have no effect", "settings", strings.Join(c.ignored, ", "))
	}
	opts.Holder, opts.Cache, opts.Ledger = node.Instance, node.cache, node.Ledger
	opts.StoreWarnings = node.warned.snapshot
	maker := func(t hapax.Tag) string { return define.Read(t).Maker() }
	store.Store = ledger.Store{Store: node.Store, Ledger: node.Ledger, Maker: maker}
	if node.Guard == nil {
		log.Warn("the store forgets everything when the server stops: its numbers will repeat", "store", c.Store)
	}
	sights := &sights{certs: certs, within: c.AlarmCertificate}
	opts.Conditions = sights.conditions
	notifier, err := newNotifier(c, log)
	if err != nil {
		return nil, errors.Join(err, unlisten(), node.Close())
	}
	if notifier != nil {
		notifier.node, opts.Notify = cmp.Or(c.address, node.Instance), notifier.notify
	}
	svc, err = service.New(ctx, node.Store, opts)
	if err == nil {
		err = mounts.answer(c, svc, log)
	}
	if err != nil {
		if svc != nil {
			err = errors.Join(err, svc.Close(ctx))
		}
		notifier.close()
		return nil, errors.Join(err, unlisten(), node.Close())
	}
	return &server{
		config: c, log: log, node: node, service: svc, listeners: ls, mounts: mounts, certs: certs, sights: sights, notifier: notifier,
		policy: policy, public: public, fleetKey: fleetKey,
	}, nil
}

// Check judges a configuration as Run does before it opens anything.
func Check(ctx context.Context, c Config) error {
	log := slog.New(slog.DiscardHandler)
	opts, _, err := serviceOptions(c, log, NewLateStore())
	if err != nil {
		return err
	}
	if err := opts.CheckIdentities(ctx); err != nil {
		return err
	}
	if _, err := auth.NewPolicy(c.Tokens); err != nil {
		return err
	}
	if _, err := newCertificates(c, log); err != nil {
		return err
	}
	_, keyErr := c.fleetKey()
	if err := errors.Join(keyErr, checkAlarmURL(c), checkTelemetry()); err != nil {
		return err
	}
	return checkAddresses(ctx, c)
}

func serviceOptions(c Config, log *slog.Logger, store *LateStore) (service.Options, *mounts, error) {
	clock, err := testClock()
	if err == nil {
		err = newOpener(c, log).check()
	}
	if err != nil {
		return service.Options{}, nil, err
	}
	mounts, err := c.planMounts()
	if err != nil {
		return service.Options{}, nil, err
	}
	c.mounting = mounts
	strategies, err := c.Strategies(log, store)
	if err != nil {
		return service.Options{}, nil, err
	}
	opts := service.Options{
		Tags: c.Tags, Pools: c.Pools, NoAutoCreate: !c.AutoCreate,
		MaxTags: c.MaxTags, MaxCount: c.MaxCount, MaxWait: c.MaxWait, Refresh: c.Refresh, TagIdle: c.TagIdle, StoreTimeout: c.StoreTimeout,
		AlarmBudget: c.AlarmBudget, AlarmForecast: c.AlarmForecast,
		RetireLines: c.RetireLines, CodeKeys: c.keys, Strategies: strategies,
		Logger: log, Clock: clock, Floors: Columns,
	}
	mounts.define(&opts)
	return opts, mounts, opts.Validate()
}

// run serves until the context ends or a listener fails, and stops
// everything.
func (s *server) run(ctx context.Context, leaving <-chan struct{}) error {
	var err error
	if s.telemetry, err = newTelemetry(ctx, s.gatherer(), s.node.Instance, s.log); err != nil {
		s.log.Warn("traces or metrics could not be sent", "err", err) // numbers matter more
	}
	web := []*http.Server{s.newWeb(ctx, s.listeners.http, s.public)}
	at := []net.Listener{s.gated(s.listeners.http, s.public)}
	if s.listeners.admin != nil {
		web = append(web, s.newWeb(ctx, s.listeners.admin, s.policy))
		at = append(at, s.gated(s.listeners.admin, s.policy))
	}
	for i := range web {
		if s.certs != nil {
			at[i] = tls.NewListener(at[i], s.certs.web())
		}
		if !s.telemetry.tracing() { // a front tells nobody of a request
			opts := s.config.front(s.log, newConn)
			if i == 0 {
				opts.Paths = s.mounts.paths()
			}
			l, front := httpapi.NewFront(at[i], web[i].Handler, opts)
			if at[i] = l; front != nil {
				s.fronts = append(s.fronts, front)
			}
		}
	}
	redis := respapi.New(s.service, respapi.Options{
		MaxConnections: s.config.RESPConnections, IdleTimeout: s.config.RESPIdle, LargeAsText: s.config.RESPLargeNumbers == largeAsText, Policy: s.public, Logger: s.log, TurnedAway: s.crowded,
	})
	// Room for all: only the first is waited for, and the others must not hang.
	failed := make(chan error, len(web)+1+len(s.mounts.doors()))
	var serving sync.WaitGroup
	for i := range web {
		serving.Go(func() { failed <- serveWeb(web[i], at[i]) })
	}
	if l := s.listeners.resp; l != nil {
		if s.certs != nil {
			l = tls.NewListener(l, s.certs.redis())
		}
		serving.Go(func() { failed <- redis.Serve(l) })
	}
	s.mounts.serve(failed)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	// Certificates are renewed as well while requests drain.
	watching, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	serving.Go(func() { s.watch(watching, signals) })

	// Only now that it answers: a command that finds the address asks at once.
	err = errors.Join(
		s.node.noteDefinitions(s.config),
		s.node.announce(s.url(at[len(at)-1]))) // the one that administers
	if err == nil {
		s.logStart()
		err = s.await(ctx, leaving, failed)
	}
	err = errors.Join(err, s.stop(web, redis))
	unwatch()
	// Calls that never end would hold it for ever.
	if !s.left {
		serving.Wait()
	}
	return err
}

// await returns when the context has ended, and before that with why the server
// cannot go on.
func (s *server) await(ctx context.Context, leaving <-chan struct{}, failed <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case err := <-s.node.first:
			return err
		case <-leaving:
			s.log.Info("about to stop: not ready any more, and serving on", "lame_duck", s.config.LameDuck)
			s.service.Leave()
			// A closed channel would be chosen again and again.
			leaving = nil
		}
	}
}

// url returns the address of an HTTP listener; empty for none.
func (s *server) url(l net.Listener) string {
	switch {
	case l == nil:
		return ""
	case s.certs != nil:
		return "https://" + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}

func (s *server) logStart() {
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
	s.log.Info("serving", "http", s.url(s.listeners.http), "admin_http", s.url(s.listeners.admin), "resp", redis,
		"store", redact(store), "data", data, "instance", s.node.Instance)
	if s.certs == nil && len(s.config.Tokens) > 0 && slices.ContainsFunc(s.listeners.all(), func(l net.Listener) bool { return !isLoopback(l) }) {
		s.log.Warn("tokens can be read on the network: set tls_cert and tls_key, unless something in front speaks TLS")
	}
}

// stop takes no new requests, waits for those in flight, and seals.
func (s *server) stop(web []*http.Server, redis *respapi.Server) error {
	began := time.Now()
	s.log.Info("stopping", "drain", s.config.Drain)
	drain, cancel := context.WithTimeout(context.Background(), s.config.Drain)
	defer cancel()
	// Before anybody is turned away: only requests use up what cannot go back.
	s.service.Leave()
	// The last tenth is for requests in flight.
	ebb, cancel := context.WithTimeout(drain, s.config.Drain*9/10)
	s.service.Ebb(ebb)
	cancel()
	var draining sync.WaitGroup
	errs := make([]error, len(web)+2+len(s.fronts))
	draining.Go(func() { errs[len(errs)-1] = s.mounts.stop(drain) })
	for i, front := range s.fronts {
		draining.Go(func() { errs[len(web)+1+i] = front.Shutdown(drain) })
	}
	for i := range web {
		draining.Go(func() { errs[i] = web[i].Shutdown(drain) })
	}
	draining.Go(func() { errs[len(web)] = redis.Shutdown(drain) })
	expel := time.AfterFunc(strangersGrace, func() {
		for _, g := range s.gates {
			g.Expel()
		}
	})
	defer expel.Stop()
	drained := make(chan struct{})
	go func() { draining.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(s.config.Drain + stuckGrace):
		s.log.Error("calls do not end, and are left behind: a plugin or a strategy of the program does not heed its context", "after", s.config.Drain+stuckGrace)
		s.left = true
	}
	if s.left || errors.Join(errs...) != nil {
		s.log.Warn("requests in flight were cut off", "after", s.config.Drain)
		for i := range web {
			_ = web[i].Close() // Shutdown has closed the listener; connections have nothing to report
		}
	}
	if s.console != nil {
		s.console.Close()
	}
	// A time of its own: a drain that took all of its own would leave none to give numbers back.
	seal, cancel := context.WithTimeout(context.Background(), sealTimeout)
	defer cancel()
	if err := errors.Join(s.service.Close(seal), s.mounts.seal(seal)); err != nil {
		s.log.Warn("what is held could not be given back: the numbers granted are lost, and a worker ID is free when its granted time is over", "err", err)
	}
	// After the service, which tells of alarms until its end.
	s.notifier.close()
	_ = s.telemetry.stop(context.Background()) // the log has told what could not be sent
	// The address goes before the lock does: afterwards it may be that of the next server.
	err := errors.Join(s.node.withdraw(), s.mounts.close(), s.node.Close())
	if parting := s.service.Parting(); parting.Lost > 0 {
		s.log.Warn("numbers in hand could not all go back: the next ones of their tags come after a gap", parting.Attrs()...)
	}
	s.log.Info("stopped", append([]any{"took", time.Since(began)}, s.service.Parting().Attrs()...)...)
	return err
}
