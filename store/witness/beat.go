package witness

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// turns does the work of each state, a turn each interval, until the node leaves.
func (g *Guarded) turns() {
	for {
		began := g.now()
		g.turn()
		interval := g.interval()
		pause := max(interval-(g.now()-began), interval/20)
		if st := g.Status(); st.State != Serving {
			pause = min(pause, g.opts.Heartbeat/4)
		}
		if crowd := g.crowd(); crowd > 0 {
			pause = rand.N(g.spread(crowd))
		}
		select {
		case <-g.life.Done():
			return
		case <-g.kick:
		case <-time.After(pause):
		}
	}
}

// crowd returns how often this process has tried to register since it last did, so that
// many that start at once spread out.
func (g *Guarded) crowd() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Joining || g.me.row != "" {
		return 0
	}
	return time.Duration(g.attempts)
}

// spread is how long a process waits at most that has tried so often.
func (g *Guarded) spread(crowd time.Duration) time.Duration {
	return g.opts.Heartbeat / 4 * min(crowd, 8) //nolint:durationcheck // a count of attempts
}

// wake has the loop take a turn at once.
func (g *Guarded) wake() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// joinTimeout is how long one turn on the way to serving may take. It is many calls, and so
// longer where each is known to take long, and not where nothing answers.
func (g *Guarded) joinTimeout() time.Duration {
	if g.interval() > g.opts.Heartbeat {
		return 3 * g.opts.Timeout
	}
	return g.opts.Timeout
}

// turn takes one turn. A failed part is tried again in the next one.
func (g *Guarded) turn() {
	g.mu.Lock()
	state := g.state
	if state == Serving {
		g.healing = 0
	}
	g.mu.Unlock()
	var err error
	switch state {
	case Serving:
		err = g.beat()
	case Joining:
		err = g.longTurn(g.join)
	case Fenced, Refusing:
		err = g.longTurn(g.heal)
	}
	g.seeIfGone(err)
	if state == Serving || state == Joining {
		if err := g.adapt(); err != nil && g.life.Err() == nil {
			g.opts.Log.Debug("the interval cannot be told yet", "err", err)
		}
	}
	if err != nil && g.life.Err() == nil {
		g.opts.Log.Debug("the guard tries again", "state", string(state), "err", err)
	}
	if (state == Fenced || state == Refusing) && g.life.Err() == nil {
		g.noteFailure(err)
	}
	g.mu.Lock()
	if state == Joining && g.state == Joining {
		if g.cause = err; err != nil {
			close(g.changed) // wakes the callers that wait
			g.changed = make(chan struct{})
		}
	}
	g.mu.Unlock()
	g.tell()
}

// longTimeouts bounds a turn towards healing, and a survey, in time-outs of a call.
const longTimeouts = 64

// longer returns how much time a step is given next that needed more than the limit.
func (g *Guarded) longer(limit time.Duration) time.Duration {
	return min(2*limit, longTimeouts*g.opts.Timeout)
}

// longTurn takes one turn towards healing, or to a row. A decision, and to take it over, is many calls, the more
// the further away the store is and the more pools and tags it has, and what they have read is of no use to the
// next turn: where the time was over, that one has twice as much. One in which nothing answered tells nothing of
// that. A process that has a row and joins has to beat in between.
func (g *Guarded) longTurn(work func(context.Context, store) error) error {
	limit, over := g.joinTimeout(), false
	g.mu.Lock()
	beats := g.state == Joining && g.me.row != ""
	if g.answers = false; !beats {
		limit = max(limit, g.healing)
	}
	g.mu.Unlock()
	err := g.within(limit, func(ctx context.Context, s store) error {
		err := work(ctx, s)
		over = err != nil && ctx.Err() != nil
		return err
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case beats:
	case !g.answers:
		g.healing = 0
	case over:
		g.healing = g.longer(limit)
	}
	return err
}

// noteFailure notes how a turn towards healing ended. A failure of more than the way to the
// store is told, once.
func (g *Guarded) noteFailure(err error) {
	if errors.Is(err, hapax.ErrStoreUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return
	}
	g.mu.Lock()
	isNew := err != nil && (g.hindered == nil || g.hindered.Error() != err.Error())
	g.hindered = err
	g.mu.Unlock()
	if isNew {
		g.opts.Log.Error("this node cannot do its part in healing the store, and nothing is granted until it can", "code", string(hapax.CodeOf(err)), "err", err)
	}
}

// within runs f on the handle for heartbeats, which is dialled anew where it does not
// answer.
func (g *Guarded) within(limit time.Duration, f func(context.Context, store) error) error {
	dial, cancel := context.WithTimeout(g.life, max(limit, g.dialTimeout()))
	defer cancel()
	h, s, err := g.beatStore(dial)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(g.life, limit)
	defer cancel()
	err = g.replaceLost(h, s, f(ctx, s))
	if err != nil && (ctx.Err() != nil || errors.Is(err, errHangs)) && g.life.Err() == nil { // the turn's time may end a moment later
		h.drop(s)
	}
	return err
}

// beatStore returns the handle for heartbeats: on a store that nobody shares, that
// for all calls. A process without a row, which beats no sooner than it has one, registers by the handle
// for calls while that for heartbeats is dialled, which on a store that is far away takes as long.
func (g *Guarded) beatStore(ctx context.Context) (*handle, store, error) {
	if s := g.beats.peek(); s != nil { // however long the other handle takes to be dialled anew
		return g.beats, s, nil
	}
	s, err := g.calls.get(ctx)
	if err != nil || !s.Shared() {
		return g.beats, s, err
	}
	g.mu.Lock()
	registers := g.state == Joining && g.me.row == "" && g.beats != g.calls
	begins := registers && !g.dials
	g.dials = g.dials || begins
	g.mu.Unlock()
	if begins {
		g.loop.Go(g.dialBeats)
	}
	if registers {
		return g.calls, s, nil
	}
	s, err = g.beats.get(ctx)
	return g.beats, s, err
}

// dialBeats dials the handle for heartbeats, of whose failure the turn tells that needs it.
func (g *Guarded) dialBeats() {
	ctx, cancel := context.WithTimeout(g.life, max(g.joinTimeout(), g.dialTimeout()))
	defer cancel()
	_, _ = g.beats.get(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dials = false
}

// beat makes one heartbeat, which is one round trip, and has the work done that is due besides.
func (g *Guarded) beat() error {
	g.mu.Lock()
	shared, known := g.shared, g.me.known
	g.mu.Unlock()
	if !shared {
		if !known {
			g.surveyLater()
		}
		return nil
	}
	err := g.within(timeoutOf(g.interval()), g.beatOnce)
	g.settleFresh()
	g.mu.Lock()
	cutOff := g.state == Serving && g.isCutOffLocked(g.now())
	g.mu.Unlock()
	if cutOff {
		g.cutOff()
	}
	if err == nil { // else the connection may be lost, and is not asked for more
		g.look()
	}
	return err
}

func (g *Guarded) beatOnce(ctx context.Context, s store) error {
	p := g.pulse(false)
	g.mu.Lock()
	p.Watch = g.watch.row
	g.mu.Unlock()
	c, err := s.Beat(ctx, p.Pulse)
	switch {
	case err == nil:
		g.timed(g.now() - p.sent)
		g.noteBeat(p, c)
	// One that has no answer tells of a connection, and not of a distance, unless that was made for it.
	// That of a survey, by the handle for calls, tells nothing of the other one's.
	case ctx.Err() != nil && g.beats.peek() == s && g.beats.dialledAt() >= p.sent-g.opts.Heartbeat/10:
		g.late(g.now() - p.sent)
	}
	return g.found(ctx, s, p, c, err)
}

// peersKnown returns the rows that were surveyed, and up to which all have ended.
func (w *Witness) peersKnown() (known map[string]peer, compacted int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.state.Peers), w.state.Compacted
}

// leave says in the store that the node has left, unless a fence stands.
func (g *Guarded) leave() error {
	g.mu.Lock()
	leaving, m := g.state == Leaving, g.me
	g.mu.Unlock()
	defer g.apply(left, nil, nil)
	if !leaving || m.row == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.opts.Timeout)
	defer cancel()
	s, err := g.calls.get(ctx)
	if err != nil {
		return nil // the others find it silent
	}
	// While a fence stands the row stays as it is: its process must give evidence.
	fence, err := s.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil || fence != nil {
		return nil
	}
	raw, err := s.Row(ctx, driver.TableBeats, m.row)
	if err != nil || raw == nil {
		return nil
	}
	beat, how, err := driver.DecodeBeat(m.row, raw)
	// A row that is behind is left as it is: the next start finds the loss by it.
	if err != nil || how != "" || beat.Count < m.acked.Count {
		return err
	}
	joins, _, err := readCounter(ctx, s, driver.RowJoins) // a command may have joined since the last survey
	if err != nil {
		return nil
	}
	gone := departure{Row: m.row, Joins: joins}
	gone.Boot, gone.Up = uptime()
	// Durable before the row says that it has left: the next start attests for this row by it.
	err = g.witness.commit(func(b *record) error {
		b.Own[m.row] = own{Count: beat.Count, Grants: beat.Grants, Asked: m.beat.Grants}
		b.Left, b.Joins = &gone, m.joins
		return nil
	})
	if errors.Is(err, hapax.ErrWitnessFailed) {
		g.opts.Log.Warn("the witness cannot be written: this node does not say that it leaves, and the others find it silent", "code", string(hapax.CodeOf(err)), "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.SwapRow(ctx, driver.TableBeats, m.row, raw, beat.EncodeEnded("left"))
	if err == nil && s.Shared() {
		err = tellChange(ctx, s)
	}
	if err != nil && !errors.Is(err, hapax.ErrStoreUnavailable) {
		return err
	}
	return nil // the reader tells it where this process could not
}

// uptime returns the identity of this run of the machine, and for how long it has been
// running, with the time that it was asleep; empty where that cannot be told.
var uptime = func() (boot string, ms int64) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", 0
	}
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "", 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return "", 0
	}
	return strings.TrimSpace(string(id)), int64(seconds * 1000)
}
