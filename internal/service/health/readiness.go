package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// AskFor is how long Readiness waits for the store to tell how it is now.
const AskFor = 250 * time.Millisecond

// slowly is what is said of a store that has not answered within AskFor, while nothing says
// that it is lost: it grants still, and those who balance load must not turn away from a
// node that issues. A call that is out for longer, or heartbeats that do not come through,
// tell that it is lost.
var slowly = fmt.Sprintf("the store is slow: it did not answer within %v", AskFor)

// Readiness is what a service can do at the moment.
type Readiness struct {
	// Ready is true if something can be issued.
	Ready bool `json:"ready"`
	// Degraded is true if something cannot be issued, although Ready may be true, or if
	// the store is slow to answer.
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
	Cannot []api.Lack `json:"cannot,omitempty"`
	// Beside tells of the foreign systems that the server stands in for, whose
	// tables and trees are their own. One that cannot issue makes this Degraded.
	Beside map[string]Readiness `json:"beside,omitempty"`
	// See is the runbook's entry on why something is not issued.
	See string `json:"see,omitempty"`
	// Budget is the tag or pool in use that could be issued from for the shortest time if
	// the store answered nothing any more; nil where no time is the limit.
	Budget *api.Budget `json:"outage_budget,omitempty"`
	// Forecasts are what ends within a year at the present rate, the nearest end first.
	Forecasts []api.Forecast `json:"forecasts,omitempty"`
	// Alarms are those that are up.
	Alarms []api.Alarm `json:"alarms,omitempty"`

	err   error  // why nothing can be issued
	adopt string // Command without the names of rows
}

// state returns the store's trouble, and whether it is slow. It asks the store, and waits
// for the answer no longer than AskFor, nor at all where it is known that none comes.
func (m *Monitor) state(ctx context.Context) (slow bool, err error) {
	answered, unanswered := m.ask()
	if answered == nil {
		return false, hapax.ErrClosed
	}
	if err := Trouble(m.opts.Store); err != nil && unanswered {
		return false, err
	}
	select {
	case <-answered:
	case <-ctx.Done():
	case <-time.After(AskFor):
		slow = true
	}
	return slow, Trouble(m.opts.Store)
}

// ask asks the store how it is, unless it is asked already, and returns what is closed when
// it has answered; nil if the service is closed.
func (m *Monitor) ask() (answered chan struct{}, already bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking != nil {
		if m.opts.Life.Err() != nil {
			return nil, true
		}
		return m.asking, true
	}
	// One look: Close comes before it, or waits for the answer.
	if !m.opts.Spawn(m.ping) {
		return nil, false
	}
	m.asking = make(chan struct{}) // before ping, which takes the lock, closes it
	return m.asking, false
}

// ping waits for the store's answer, and tells those who wait for it.
func (m *Monitor) ping() {
	_ = m.opts.Store.Ping(m.opts.Life) // the store keeps what it tells
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.asking)
	m.asking = nil
}

// A statusError is why a store grants nothing.
type statusError struct{ st witness.Status }

func (e statusError) Error() string { return "hapax: " + e.st.Why }

func (e statusError) Unwrap() error { return hapax.ErrorOf(e.st.Code) }

// Standing tells how the node stands with its store, and what keeps that from granting
// whatever the reason: readiness, metrics and the administrators' API all tell this. It
// waits for the store no longer than a quarter of a second.
func (m *Monitor) Standing(ctx context.Context) witness.Status {
	st, _ := m.standing(ctx)
	st.Command = m.command(st)
	if m.leaving.Load() {
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
func (m *Monitor) standing(ctx context.Context) (st witness.Status, refused map[string]error) {
	slow, err := m.asked(ctx)
	if st, refused = m.stand(err); slow && st.Code == "" {
		st.Why = slowly
	}
	return st, refused
}

// asked returns what keeps the store from granting, beside what the guard tells, and
// whether it is slow.
func (m *Monitor) asked(ctx context.Context) (slow bool, err error) {
	err = m.opts.Ledger.Ready()
	if g := GuardOf(m.opts.Store); err == nil && (g == nil || g.Status().State == witness.Serving) {
		slow, err = m.state(ctx) // which also mends the witness
	}
	return slow, err
}

// stand is standing where it is known what keeps the store from granting.
func (m *Monitor) stand(err error) (st witness.Status, refused map[string]error) {
	g := GuardOf(m.opts.Store)
	if st.State = witness.Serving; g != nil {
		st = g.Status()
	} else if r, ok := m.opts.Store.Store.(refuser); ok {
		if refused = r.Refused(); len(refused) > 0 {
			st.State, st.Command = witness.Refusing, m.adoptCommand(refused)
		}
	}
	if err != nil && st.Code == "" {
		st.Code, st.Why = hapax.CodeOf(err), plain(err)
		if durable.IsFull(err) {
			st.Disk = err
		}
	}
	return st, refused
}

// command returns what an operator may do about how the node stands with its store.
func (m *Monitor) command(st witness.Status) string {
	if GuardOf(m.opts.Store) == nil { // a foreign system's: no command looks into it
		return st.Command
	}
	_, command := Advise(st)
	return command
}

// Readiness tells what can be issued, from what is known: it waits for the store
// no longer than a quarter of a second. What is granted already can be issued
// without it.
func (m *Monitor) Readiness(ctx context.Context) Readiness {
	st, refused := m.standing(ctx)
	r, ahead := m.issuing(st, refused), m.outlook()
	budget := ahead.budget
	for name, other := range m.opts.Beside {
		if r.Beside == nil {
			r.Beside = map[string]Readiness{}
		}
		state := other.Readiness(ctx)
		r.Beside[name] = state
		r.Degraded = r.Degraded || state.Degraded || !state.Ready
		if r.Command == "" {
			r.Command = state.Command
		}
		if state.Ready {
			r.Ready, r.err = true, nil
		}
		if b := state.Budget; b != nil && (budget == nil || b.Seconds < budget.Seconds) {
			budget = b
		}
	}
	// After the others: a foreign system that can issue makes a leaving server no more ready.
	if m.leaving.Load() {
		r.Leaving, r.Ready, r.err = true, false, fmt.Errorf("%w: %s", hapax.ErrClosed, aboutToStop)
		r.State = string(witness.Leaving)
	}
	see, _ := Advise(st)
	switch own, ok := errors.AsType[statusError](r.err); {
	case r.err != nil && !(ok && own.st.Code == st.Code): // not the store's trouble, or none of it
		r.See = signals.SeeCode(string(hapax.CodeOf(r.err)))
	case see != "":
		r.See = see
	case r.StoreDetail != "":
		r.See = signals.SeeCode(string(hapax.ErrRefillPending.Code()))
	}
	r.Budget, r.Forecasts = budget, ahead.forecasts
	r.Alarms = m.Alarms()
	return r
}

// issuing tells what can be issued, from how the node stands with its store.
func (m *Monitor) issuing(st witness.Status, refused map[string]error) Readiness {
	r := Readiness{State: string(st.State), Store: "ok", Command: m.command(st)}
	r.Fenced = st.State == witness.Fenced || st.State == witness.Refusing
	r.Degraded = r.Fenced
	if len(refused) > 0 {
		r.adopt = m.opts.Adopt
	}
	var store error
	if st.Code != "" {
		store = statusError{st}
		r.Store, r.StoreDetail = string(st.Code), st.Why
	} else {
		if st.Why == slowly {
			r.Degraded, r.StoreDetail = true, slowly
		}
		if st.Slow != "" { // it serves, and says why what goes wrong is noticed later
			r.StoreDetail = strings.TrimPrefix(r.StoreDetail+"; "+st.Slow, "; ")
		}
	}
	m.lines(store, refused, func(line watch.Line, err error) {
		if err == nil {
			r.Ready = true
			return
		}
		r.Degraded = true
		r.Cannot = append(r.Cannot, api.Lack{Kind: line.Kind, Name: line.Name, Code: hapax.CodeOf(err), Detail: plain(err)})
		if r.err == nil {
			r.err = err
		}
	})
	switch {
	// One line that issues is enough: a node that balancers take away takes that one with it.
	case r.Ready:
		r.err = nil
	case store != nil:
		r.err = store
	}
	slices.SortFunc(r.Cannot, func(a, b api.Lack) int {
		return strings.Compare(a.Kind+"\x00"+a.Name, b.Kind+"\x00"+b.Name)
	})
	return r
}

// Leave has Readiness say from now on that the service is not ready, and reports whether it
// did not say so before.
func (m *Monitor) Leave() bool { return !m.leaving.Swap(true) }

// Bare returns what anybody may know, without names and details.
func (r Readiness) Bare() Readiness {
	r.StoreDetail, r.Command, r.Cannot, r.Beside = "", "", nil, nil
	r.Budget, r.Forecasts, r.Alarms = nil, nil, nil
	return r
}

// And returns what can be issued where both are needed, without names and details, but for
// the command that has refused rows used again.
func (r Readiness) And(other Readiness) Readiness {
	r.Ready = r.Ready && other.Ready
	r.Degraded = r.Degraded || other.Degraded || !other.Ready
	r.Leaving = r.Leaving || other.Leaving
	if r.Store == "ok" && !r.Fenced {
		r.State, r.Store = other.State, other.Store
	}
	r.Fenced = r.Fenced || other.Fenced
	r.adopt = cmp.Or(r.adopt, other.adopt)
	r = r.Bare()
	r.Command = r.adopt
	return r
}

// plain returns what a client may know of an error: the store's own words may tell
// of hosts inside.
func plain(err error) string {
	if durable.IsFull(err) {
		return durable.FullText
	}
	if watch.IsAway(err) {
		err = hapax.ErrorOf(hapax.CodeOf(err))
	}
	return hapax.Message(err)
}

// Ready returns nil if something can be issued, and otherwise why nothing can.
func (m *Monitor) Ready(ctx context.Context) error { return m.Readiness(ctx).err }

// lines tells of the segment tags and the pools that are configured or in use why each
// cannot issue now; store is the store's trouble, and tags are refused. Tags in use may be
// many: it keeps nothing for each of them.
func (m *Monitor) lines(store error, tags map[string]error, tell func(watch.Line, error)) {
	refused := m.opts.Store.Refusals()
	for tag, err := range tags {
		if refused == nil {
			refused = map[watch.Line]error{}
		}
		refused[watch.Tag(tag)] = err
	}
	why := func(line watch.Line) error { return cmp.Or(refused[line], store) }

	others := map[watch.Line]error{} // what is not in use, and pools
	for line := range refused {
		others[line] = why(line)
	}
	for name := range m.opts.Tags {
		if m.opts.Tags[name].IsSegment {
			others[watch.Tag(name)] = why(watch.Tag(name))
		}
	}
	for _, name := range m.opts.PoolNames {
		others[watch.Pool(name)] = why(watch.Pool(name))
	}
	for _, p := range m.opts.Source.Pools() {
		line := watch.Pool(p.Name)
		switch {
		case p.Stats.Rollback > 0 && m.opts.Pools[p.Name].Refuses:
			others[line] = hapax.ErrClockRollback
		// Granted time is issued without the store.
		case p.Stats.Remaining > 0:
			others[line] = nil
		default:
			others[line] = why(line)
		}
	}
	for t := range m.opts.Source.Tags() {
		line := watch.Tag(t.Name)
		own, _ := t.Own.(strategy.Readiness)
		var err error
		switch {
		case own != nil:
			err = own.Ready()
		case t.IsSegment && t.Stats.Remaining > 0:
		case t.IsSegment || t.Own != nil:
			err = why(line)
		default:
			continue
		}
		delete(others, line)
		tell(line, err)
	}
	for line, err := range others {
		tell(line, err)
	}
}
