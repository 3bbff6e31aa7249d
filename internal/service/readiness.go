package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

const (
	// silence is how long a call is out until the store counts as one that does
	// not answer.
	silence = time.Second
	// askFor is how long Readiness waits for the store to tell how it is now.
	askFor = 250 * time.Millisecond
)

// The kinds of what can issue.
const (
	KindTag  = "tag"
	KindPool = "pool"
)

// Readiness is what a service can do at the moment.
type Readiness struct {
	// Ready is true if something can be issued.
	Ready bool `json:"ready"`
	// Degraded is true if something cannot be issued, although Ready may be true.
	Degraded bool `json:"degraded"`
	// Fenced is true while nothing is granted, because the store went back or is not
	// the right one, although what was granted before may still be issued.
	Fenced bool `json:"fenced"`
	// State says how this node stands with its store: "joining", "serving", "fenced",
	// "refusing", "leaving" or "left"; see store/witness. It is "leaving" from when
	// Leaving is true.
	State string `json:"state"`
	// Leaving is true while the server is about to stop: it serves on, and is not
	// ready, so that whoever balances load sends its requests elsewhere.
	Leaving bool `json:"leaving,omitempty"`
	// Store is "ok", or the code of its trouble.
	Store       string `json:"store"`
	StoreDetail string `json:"store_detail,omitempty"`
	// Command is what an operator may do about it; empty: nothing is needed.
	Command string `json:"command,omitempty"`
	// Cannot lists the tags and pools, configured or in use, that cannot issue now.
	Cannot []Lack `json:"cannot,omitempty"`
	// Beside tells of the foreign systems that the server stands in for, whose
	// tables and trees are their own. One that cannot issue makes this Degraded.
	Beside map[string]Readiness `json:"beside,omitempty"`

	err error // why nothing can be issued
}

// A Lack is a tag or pool that cannot issue now.
type Lack struct {
	Kind   string     `json:"kind"` // KindTag or KindPool
	Name   string     `json:"name"`
	Code   hapax.Code `json:"code"`
	Detail string     `json:"detail"`
}

// A lineName names a tag or a pool.
type lineName struct{ kind, name string }

// health is what the calls on a store have told so far.
type health struct {
	mu      sync.Mutex // guards the fields below
	err     error      // of the last call that told anything about the store; nil: it answered
	told    time.Time  // when; zero: never
	barred  error      // why nothing is granted, until Ping says otherwise
	asked   map[*time.Time]struct{}
	refused map[lineName]error // lines that the store or the witness refuses
}

// begin notes that the store is asked; the answer is noted by calling what it returns.
func (h *health) begin() (end func()) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked == nil {
		h.asked = map[*time.Time]struct{}{}
	}
	h.asked[&now] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.asked, &now)
	}
}

// tell notes what a call says about the store.
func (h *health) tell(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err, h.told = err, time.Now()
	if isBarred(err) {
		h.barred = err
	}
}

// admit notes that the store grants.
func (h *health) admit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.barred = nil
}

// trouble returns what is wrong with the store as far as is known.
func (h *health) trouble() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for since := range h.asked {
		if silent := now.Sub(*since); silent >= silence && !since.Before(h.told) {
			return fmt.Errorf("%w: it has not answered for %v", hapax.ErrStoreUnavailable, silent.Truncate(time.Second))
		}
	}
	return firstOf(h.barred, h.err)
}

// passing are the codes of answers that say nothing about what can be issued.
var passing = []*hapax.Error{
	hapax.ErrInvalidArgument, hapax.ErrInvalidTag, hapax.ErrInvalidLayout, hapax.ErrFieldRange,
	hapax.ErrTagNotFound, hapax.ErrTagDeleted, hapax.ErrTagExists, hapax.ErrKindMismatch,
	hapax.ErrLeaseLost, hapax.ErrNotSupported, hapax.ErrClosed, hapax.ErrRefillPending,
}

// note keeps why a line cannot be issued from, until a grant on it comes.
func (h *health) note(kind, name string, err error) {
	code := hapax.CodeOf(err)
	isPassing := slices.ContainsFunc(passing, func(e *hapax.Error) bool { return e.Code() == code })
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		delete(h.refused, lineName{kind, name})
	case isAway(err), isGuarded(err), isPassing, len(h.refused) >= maxRefusals:
	default:
		if h.refused == nil {
			h.refused = map[lineName]error{}
		}
		h.refused[lineName{kind, name}] = err
	}
}

func (h *health) refusals() map[lineName]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.refused)
}

// state returns the store's trouble. It asks the store, and waits for the answer
// no longer than askFor, nor at all where it is known that none comes.
func (s *Service) state(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return hapax.ErrClosed
	}
	answered, unanswered := s.asking, s.asking != nil
	if !unanswered {
		answered = make(chan struct{})
		s.asking = answered
		s.children.Go(func() {
			_ = s.store.Ping(s.life) // health keeps what it tells
			s.mu.Lock()
			s.asking = nil
			s.mu.Unlock()
			close(answered)
		})
	}
	s.mu.Unlock()
	if err := s.trouble(); err != nil && unanswered {
		return err
	}
	select {
	case <-answered:
		return s.trouble()
	case <-ctx.Done():
	case <-time.After(askFor):
	}
	return firstOf(s.trouble(), fmt.Errorf("%w: it did not answer within %v", hapax.ErrStoreUnavailable, askFor))
}

// A statusError is why a store grants nothing.
type statusError struct{ st witness.Status }

func (e statusError) Error() string { return "hapax: " + e.st.Why }

func (e statusError) Unwrap() error { return hapax.ErrorOf(e.st.Code) }

// trouble returns what keeps the store from granting, as far as is known.
func (s *Service) trouble() error {
	if g := s.Guard(); g != nil {
		if st := g.Status(); !st.Ready() {
			return statusError{st}
		}
	}
	return s.store.health.trouble()
}

// A refuser is a foreign table that refuses tags that went back, until an operator has
// decided, and grants the others.
type refuser interface {
	// Refused returns why tags are refused.
	Refused() map[string]error
}

// Standing tells how the node stands with its store, and what keeps that from granting
// whatever the reason: readiness, metrics and the administrators' API all tell this. It
// waits for the store no longer than a quarter of a second.
func (s *Service) Standing(ctx context.Context) witness.Status {
	st, _ := s.standing(ctx)
	if s.leaving.Load() {
		st.State = witness.Leaving
		if st.Code == "" {
			st.Code, st.Why = hapax.ErrClosed.Code(), aboutToStop
		}
	}
	return st
}

// aboutToStop is why a server that serves on is not ready.
const aboutToStop = "the server is about to stop"

// standing is Standing, with the tags that are refused alone.
func (s *Service) standing(ctx context.Context) (st witness.Status, refused map[string]error) {
	g := s.Guard()
	err := s.opts.Ledger.Ready()
	if err == nil && (g == nil || g.Status().State == witness.Serving) {
		err = s.state(ctx) // which also mends the witness
	}
	if st.State = witness.Serving; g != nil {
		st = g.Status()
	} else if r, ok := s.store.Store.(refuser); ok {
		if refused = r.Refused(); len(refused) > 0 {
			st.State, st.Command = witness.Refusing, s.opts.Adopt
		}
	}
	if err != nil && st.Code == "" {
		st.Code, st.Why = hapax.CodeOf(err), plain(err)
	}
	return st, refused
}

// Readiness tells what can be issued, from what is known: it waits for the store
// no longer than a quarter of a second. What is granted already can be issued
// without it.
func (s *Service) Readiness(ctx context.Context) Readiness {
	st, refused := s.standing(ctx)
	r := Readiness{State: string(st.State), Store: "ok", Command: st.Command}
	r.Fenced = st.State == witness.Fenced || st.State == witness.Refusing
	r.Degraded = r.Fenced
	var store error
	if st.Code != "" {
		store = statusError{st}
		r.Store, r.StoreDetail = string(st.Code), st.Why
	}
	for line, err := range s.lines(store, refused) {
		if err == nil {
			r.Ready = true
			continue
		}
		r.Degraded = true
		r.Cannot = append(r.Cannot, Lack{line.kind, line.name, hapax.CodeOf(err), plain(err)})
		if r.err == nil {
			r.err = err
		}
	}
	switch {
	case r.Ready:
		r.err = nil
	case store != nil:
		r.err = store
	}
	for name, other := range s.opts.Beside {
		if r.Beside == nil {
			r.Beside = map[string]Readiness{}
		}
		state := other.Readiness(ctx)
		r.Beside[name] = state
		r.Degraded = r.Degraded || state.Degraded || !state.Ready
		if state.Ready {
			r.Ready, r.err = true, nil
		}
	}
	slices.SortFunc(r.Cannot, func(a, b Lack) int {
		return strings.Compare(a.Kind+"\x00"+a.Name, b.Kind+"\x00"+b.Name)
	})
	if s.leaving.Load() {
		r.Leaving, r.Ready, r.err = true, false, fmt.Errorf("%w: %s", hapax.ErrClosed, aboutToStop)
		r.State = string(witness.Leaving)
	}
	return r
}

// Leave has Readiness say from now on that the service is not ready, and those of
// foreign systems beside it; they serve on.
func (s *Service) Leave() {
	s.leaving.Store(true)
	for _, other := range s.opts.Beside {
		other.Leave()
	}
}

// Bare returns what anybody may know, without names and details.
func (r Readiness) Bare() Readiness {
	r.StoreDetail, r.Command, r.Cannot, r.Beside = "", "", nil, nil
	return r
}

// And returns what can be issued where both are needed, without names and details.
func (r Readiness) And(other Readiness) Readiness {
	r.Ready = r.Ready && other.Ready
	r.Degraded = r.Degraded || other.Degraded || !other.Ready
	r.Leaving = r.Leaving || other.Leaving
	if r.Store == "ok" && !r.Fenced {
		r.State, r.Store = other.State, other.Store
	}
	r.Fenced = r.Fenced || other.Fenced
	return r.Bare()
}

// plain returns what a client may know of an error: the store's own words may tell
// of hosts inside.
func plain(err error) string {
	if isAway(err) {
		err = hapax.ErrorOf(hapax.CodeOf(err))
	}
	return hapax.Message(err)
}

// Ready returns nil if something can be issued, and otherwise why nothing can.
func (s *Service) Ready(ctx context.Context) error { return s.Readiness(ctx).err }

// lines returns the segment tags and the pools that are configured or in use, and
// why each cannot issue now; store is the store's trouble, and tags are refused.
func (s *Service) lines(store error, tags map[string]error) map[lineName]error {
	refused := s.store.health.refusals()
	for tag, err := range tags {
		if refused == nil {
			refused = map[lineName]error{}
		}
		refused[lineName{KindTag, tag}] = err
	}
	lines := map[lineName]error{}
	judge := func(line lineName) {
		if _, known := lines[line]; !known {
			lines[line] = firstOf(refused[line], store)
		}
	}
	for l := range s.tags.all() {
		line := lineName{KindTag, l.name}
		if f, ok := l.issuer.(*foreignIssuer); ok {
			if own, ok := f.Issuer.(strategy.Readiness); ok {
				lines[line] = own.Ready()
				continue
			}
			judge(line)
		}
		if l.segment == nil {
			continue
		}
		if judge(line); l.segment.Stats().Remaining > 0 {
			lines[line] = nil
		}
	}
	for _, p := range s.openPools() {
		line := lineName{KindPool, p.name}
		judge(line)
		stats := p.issuer.Load().Stats()
		switch {
		case stats.Rollback > 0 && s.opts.Pools[p.name].OnRollback == string(hapax.RollbackRefuse):
			lines[line] = hapax.ErrClockRollback
		case stats.Remaining > 0:
			lines[line] = nil
		}
	}
	for name := range s.opts.Tags {
		if def, ok := s.declared(name); ok && def.Kind == hapax.KindSegment {
			judge(lineName{KindTag, name})
		}
	}
	for name := range s.opts.Pools {
		judge(lineName{KindPool, name})
	}
	judge(lineName{KindPool, hapax.DefaultPool})
	for line := range refused {
		judge(line)
	}
	return lines
}

// firstOf returns the first of two errors that is one.
func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// explain tells callers who wait for a grant that it is the store which keeps
// them waiting.
func (s *Service) explain(err error) error {
	w, ok := errors.AsType[*hapax.WaitError](err)
	if !ok || !errors.Is(w.Cause, hapax.ErrRefillPending) {
		return err
	}
	if trouble := s.trouble(); trouble != nil && isAway(trouble) {
		return &hapax.WaitError{Cause: trouble, Context: w.Context}
	}
	return err
}
