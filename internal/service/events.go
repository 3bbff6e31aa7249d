package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/strategy"
)

const (
	throttleWindow = 10 * time.Second
	throttleLines  = 10 // log lines of one kind in a window
)

// A throttle lets through so many log lines of one kind in a window, so that
// trouble which hits every tag at once does not drown the log.
type throttle struct {
	mu    sync.Mutex // guards kinds
	kinds map[string]*throttled
}

type throttled struct {
	since   time.Time
	lines   int
	dropped int // in the window before this line
}

// pass reports whether a line of this kind may be logged, and how many were not
// since the last one that was.
func (t *throttle) pass(kind string) (ok bool, dropped int) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds == nil {
		t.kinds = map[string]*throttled{}
	}
	k := t.kinds[kind]
	if k == nil {
		k = &throttled{since: now}
		t.kinds[kind] = k
	}
	if now.Sub(k.since) >= throttleWindow {
		k.since, k.lines = now, 0
	}
	if k.lines >= throttleLines {
		k.dropped++
		return false, 0
	}
	k.lines++
	dropped, k.dropped = k.dropped, 0
	return true, dropped
}

// levels tells how loud an event is; those that are not here are for debugging.
var levels = map[hapax.EventKind]slog.Level{
	hapax.EventLineExhausted:  slog.LevelError,
	hapax.EventTimeExhausted:  slog.LevelError,
	hapax.EventRefused:        slog.LevelError,
	hapax.EventClockSkew:      slog.LevelError,
	hapax.EventTimeRunningOut: slog.LevelWarn,
	hapax.EventRollback:       slog.LevelWarn,
	hapax.EventSuspended:      slog.LevelWarn,
	hapax.EventWorkerLost:     slog.LevelWarn,
	hapax.EventStoreLost:      slog.LevelWarn,
	hapax.EventTickUsed:       slog.LevelInfo,
	hapax.EventTickExhausted:  slog.LevelInfo,
	hapax.EventBurnt:          slog.LevelInfo,
	hapax.EventStoreBack:      slog.LevelInfo,
	hapax.EventWorkerAcquired: slog.LevelInfo,
	hapax.EventWorkerSealed:   slog.LevelInfo,
	hapax.EventTagCreated:     slog.LevelInfo,
	hapax.EventTagDeleted:     slog.LevelInfo,
}

// Observe counts and logs what the issuer of a registered strategy tells, as it does
// for the built-in ones.
func (s *Service) Observe(e hapax.Event) { s.observe(e) }

// observe counts and logs what happened. It is the Observer of every issuer.
func (s *Service) observe(e hapax.Event) {
	// Before anybody hears of it: a listener may use the tag at once, and a refusal lasts a second.
	if e.Kind == hapax.EventTagCreated {
		s.forgive(e.Tag)
	}
	if s.opts.Observer != nil {
		s.opts.Observer(e)
	}
	s.metrics.Happened(e, s.poolLabel(e.Pool))
	switch e.Kind {
	case hapax.EventRollback:
		s.Happened(health.AlarmRollback, fmt.Sprintf("the wall clock went back by %v", e.By.Round(time.Millisecond)))
	case hapax.EventClockSkew:
		s.Happened(health.AlarmSkew, hapax.Message(cmp.Or(e.Err, error(hapax.ErrClockSkew))))
	}
	// Before the level is looked at: what a stop loses is counted whether or not the log tells of it.
	parting, tell := s.parting.take(e)
	level, ok := levels[e.Kind]
	if !ok {
		level = slog.LevelDebug
	}
	if !s.log.Enabled(context.Background(), level) {
		return
	}
	pass, dropped := tell, 0
	if !parting {
		pass, dropped = s.throttle.pass(string(e.Kind))
	}
	if !pass {
		return
	}
	attrs := []slog.Attr{slog.String("event", string(e.Kind))}
	if e.Tag != "" {
		attrs = append(attrs, slog.String("tag", e.Tag))
	}
	if e.Pool != "" {
		attrs = append(attrs, slog.String("pool", e.Pool), slog.Int64("worker", e.Worker))
	}
	layout := s.layoutKnown(e.Pool)
	if e.Grant != (hapax.Grant{}) {
		attrs = append(attrs, position(layout, "lo", e.Grant.Lo), position(layout, "hi", e.Grant.Hi))
	}
	if e.Kind == hapax.EventBurnt || e.Kind == hapax.EventHandedBack {
		attrs = append(attrs, slog.Int64("numbers", e.Value))
	} else if e.Value != 0 {
		attrs = append(attrs, position(layout, "value", e.Value))
	}
	if e.Took != 0 {
		attrs = append(attrs, slog.Duration("took", e.Took))
	}
	if e.By != 0 {
		attrs = append(attrs, slog.Duration("by", e.By))
	}
	if !e.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", e.Until))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("code", string(hapax.CodeOf(e.Err))), slog.Any("err", e.Err))
	}
	if dropped > 0 {
		attrs = append(attrs, slog.Int("suppressed", dropped))
	}
	s.log.LogAttrs(context.Background(), level, message(e.Kind), attrs...)
}

// position returns a place on a line: of a pool, where it is a tick, as a time.
func position(layout hapax.Layout, key string, value int64) slog.Attr {
	if layout.IsZero() {
		return slog.Int64(key, value)
	}
	return slog.Time(key, layout.TimeOf(value))
}

// message says an event in words.
func message(kind hapax.EventKind) string {
	if m, ok := messages[kind]; ok {
		return m
	}
	return "issuer event"
}

var messages = map[hapax.EventKind]string{
	hapax.EventGrant:          "grant taken",
	hapax.EventSwapped:        "issuing moved to another grant",
	hapax.EventStepChanged:    "step changed",
	hapax.EventLineExhausted:  "no numbers are left",
	hapax.EventTimeExhausted:  "the layout's time is over",
	hapax.EventTimeRunningOut: "the layout's time ends within a year",
	hapax.EventTickUsed:       "the numbers of this tick are used out; those of the next ones are taken ahead of the clock",
	hapax.EventTickExhausted:  "no more numbers may be taken ahead of the clock; callers wait for it",
	hapax.EventTickResumed:    "callers no longer wait for the clock",
	hapax.EventRollback:       "the wall clock went back",
	hapax.EventSuspended:      "the machine was asleep; its granted time is not used",
	hapax.EventClockSkew:      "local clock and store clock differ too much",
	hapax.EventWorkerAcquired: "worker ID acquired",
	hapax.EventWorkerLost:     "worker ID lost",
	hapax.EventWorkerSealed:   "worker ID sealed",
	hapax.EventBurnt:          "numbers that were granted could not go back, and are skipped",
	hapax.EventTagCreated:     "tag created",
	hapax.EventTagDeleted:     "tag deleted",
	hapax.EventStoreLost:      "the store does not answer",
	hapax.EventStoreBack:      "the store answers again",
	hapax.EventRefused:        "the store's answer cannot be used",
}

// reports are what protocols tell of themselves.
type reports struct{ *core }

// Route returns the counts of a route. Protocols ask once for each.
func (rs *reports) Route(api, route string) *health.Route { return rs.metrics.Route(api, route) }

// Counting has the errors of a protocol counted from 0: those that every protocol
// has, and its own.
func (rs *reports) Counting(api string, own ...hapax.Code) {
	rs.metrics.Counting(api, append(hapax.Codes(), own...))
}

// Refused counts an error that a protocol has told its client by itself, about a
// request that never became a call of the service.
func (rs *reports) Refused(api string, code hapax.Code) {
	rs.metrics.Failed(api, code)
}

// RequestFailed is the message of the log for an error that nobody expects; its code says
// which.
const RequestFailed = "request failed"

// Failed counts an error that a protocol has told its client, and logs it if it
// is one that nobody expects. Every protocol calls it once per error, where it
// translates errors; api is the protocol's name.
func (rs *reports) Failed(api string, err error) {
	code := hapax.CodeOf(err)
	rs.metrics.Failed(api, code)
	if code != hapax.ErrInternal.Code() && code != hapax.ErrStoreCorrupt.Code() && code != strategy.ErrPluginFailed.Code() {
		return
	}
	if pass, dropped := rs.throttle.pass("failed"); pass {
		about := []any{"api", api, "code", string(code), "err", err, "suppressed", dropped}
		if e, ok := errors.AsType[*strategy.PluginError](err); ok && e.Stack != nil {
			about = append(about, "stack", string(e.Stack))
		}
		rs.log.Error(RequestFailed, about...)
	}
}
