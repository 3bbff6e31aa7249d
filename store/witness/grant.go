package witness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A pulse is one call on the store under the row of this process.
type pulse struct {
	driver.Pulse
	sent  time.Duration
	joins int64 // that the process knew of then
	begun int64 // as the process's then
}

// pulse begins a call; grant says that it asks for one. It has no row where the node has
// just been made to join again: nothing can be called then.
func (g *Guarded) pulse(grant bool) pulse {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.me
	if grant && m.row != "" {
		m.beat.Grants++
	}
	// The count grows with each call, answered or not: a beat that equals the row under the own
	// run is this process's, and its answer was lost.
	m.beat.Count++
	m.beat.Seen = m.seen
	return pulse{driver.Pulse{Row: m.row, Was: m.acked, Now: m.beat}, g.now(), m.joins, m.begun}
}

// ownLocked returns the row as the witness is to know it.
func (m *member) ownLocked(grant int64) own {
	m.asked = m.beat.Grants + askAhead
	return own{Count: m.acked.Count, Grants: grant, Asked: m.asked}
}

// reserve has the witness know that a grant will be asked for. It writes only where
// more were asked for than it was told of with the last one that it recorded.
func (g *Guarded) reserve(p pulse) error {
	return g.witness.commit(func(b *record) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		// One write for many grants: a restart attests for all that were asked for and not recorded,
		// since such a grant was never used.
		if g.me.row != p.Row || g.me.asked >= p.Now.Grants {
			return errNoChange
		}
		b.Own[p.Row] = g.me.ownLocked(0)
		return nil
	})
}

// A granted is the result of a call for a grant.
type granted struct {
	line     string
	from, to Pair   // the line's pair before, at the earliest, and after
	of       string // the definition's name
	def      def
}

// errAbandoned is the error of a grant that came too late.
func errAbandoned() error {
	return fmt.Errorf("%w: the node was not serving when the answer came; what was granted is abandoned", hapax.ErrStoreUnavailable)
}

// grant makes one call for grants, and returns when the witness holds their pairs, so
// that they may be used. known is asked, before the call, for the pair that the
// witness knows of a line that the answer may be of.
func (g *Guarded) grant(ctx context.Context, known func() func(line string) (Pair, bool), call func(context.Context, store, pulse) ([]granted, error)) error {
	_, err := asServing(ctx, g, func(ctx context.Context, s store) (nothing, error) {
		was := known()
		p := g.pulse(true)
		if p.Row == "" {
			return nothing{}, errAbandoned()
		}
		// Before the call, lest a process that is killed within it has asked for a grant of which its
		// witness does not know: nobody could attest for the row.
		if err := g.reserve(p); err != nil {
			return nothing{}, err
		}
		all, err := call(ctx, s, p)
		if err != nil || len(all) == 0 {
			return nothing{}, err
		}
		// Judged before it is recorded: a grant of a store that went back would hide the loss from the
		// next comparison.
		for _, got := range all {
			want, ok := was(got.line)
			if err := g.judgeGrant(got, want, ok); err != nil {
				return nothing{}, err
			}
		}
		return nothing{}, g.record(p, all)
	})
	return err
}

// judgeGrant compares where a grant began with the witness's record before the call.
func (g *Guarded) judgeGrant(got granted, want Pair, known bool) error {
	if known && got.from.Less(want) {
		return g.isBehind(fmt.Errorf("%w: %s was at token %d, mark %d, and was at token %d, mark %d before",
			hapax.ErrStoreRolledBack, got.line, got.from.Token, got.from.Mark, want.Token, want.Mark))
	}
	return nil
}

// record makes the grants of one call durable in the witness, and judges whether they may
// be used.
func (g *Guarded) record(p pulse, all []granted) error {
	err := g.witness.commit(func(b *record) error {
		// Recorded even where it will be abandoned: the pair is the store's, and proof against an
		// older one.
		for _, got := range all {
			b.Lines[got.line] = b.Lines[got.line].max(got.to)
			if g.witness.state.Defs[got.of] != got.def {
				b.Defs[got.of] = got.def
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.me.row == p.Row {
			b.Own[p.Row] = g.me.ownLocked(p.Now.Grants)
			b.Joins = g.me.joins
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, got := range all {
		if tag, ok := CutTagLine(got.line); ok {
			g.used.add(tag)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// The answer may be of the primary before, and the question about the next one over: nobody
	// has looked for this grant there.
	before := g.me.begun != p.begun
	if g.state != Serving || g.me.row != p.Row || before || g.isCutOffLocked(g.now()) {
		if err := g.refusedLocked(); err != nil {
			return err
		}
		return errAbandoned()
	}
	g.grantedLocked(all)
	return nil
}

// isCutOffLocked reports whether the node was out of contact for so long that others
// may have gone on without it.
func (g *Guarded) isCutOffLocked(now time.Duration) bool {
	return g.shared && now-g.me.contact > g.waitLocked()
}

// found takes the store's answer to a call. It is nil if the beat was made while the node was
// in contact, so that the rest of the answer may be used.
func (g *Guarded) found(ctx context.Context, s store, p pulse, c driver.Contact, err error) error {
	switch {
	case err != nil && !c.Met && c.Row == nil && c.Fence == nil:
		return err // no answer is no evidence
	case !c.Met: // and the answer about a tag says nothing: the store may have gone back
		return g.judge(ctx, s, p, c)
	}
	g.mu.Lock()
	m := &g.me
	// The answer is to a call under an earlier row: it proves nothing of this one.
	if m.row != p.Row {
		g.mu.Unlock()
		return errAbandoned()
	}
	// As many as were known when it was sent: answers may overtake each other.
	if c.Joins < p.joins {
		g.mu.Unlock()
		return g.isBehind(fmt.Errorf("%w: %d nodes have joined it, and %d had", hapax.ErrStoreRolledBack, c.Joins, p.joins))
	}
	m.joins = max(m.joins, c.Joins)
	away := g.shared && p.sent-m.contact > g.waitLocked()
	// The time of sending: the store may have gone back, and the others gone on, right after it
	// answered.
	m.contact = max(m.contact, p.sent)
	// A later call may have been answered before.
	if bytes.Compare(p.Now.Encode(), m.acked.Encode()) > 0 {
		m.acked = p.Now
	}
	moved := c.Primary != "" && m.primary != "" && c.Primary != m.primary
	// Nobody knows at which primary it has registered: this one may have come after that.
	first := c.Primary != "" && m.primary == "" && g.state == Joining
	if c.Primary != "" {
		m.primary = c.Primary
	}
	serving := g.state == Serving
	// A beat at a primary about which the question is not over shows nothing: grants at the one
	// before may be missing there.
	if !moved && !away && m.over == m.begun && p.begun == m.begun {
		m.sure = max(m.sure, p.Now.Count)
	}
	if moved || away || first {
		g.awaitOthersLocked()
		m.asks = !away && (m.asks || serving)
	}
	g.mu.Unlock()
	if moved {
		g.opts.Log.Warn("the store's primary has changed; nothing is granted until the other nodes have found their heartbeats there")
	}
	switch {
	// The answer is sound and comes too late: others may have joined, and been granted the same,
	// while this node was out of sight.
	case away && serving:
		g.cutOff()
		return errAbandoned()
	case moved && serving:
		g.apply(unsure, nil, nil)
		g.wake()
		return errAbandoned()
	}
	return err
}

// cutOff notes that the node was out of contact for so long that others may have gone on
// without it. Unless one of them has ended its row, it goes on under that once they have
// met the store since.
func (g *Guarded) cutOff() {
	g.apply(unsure, fmt.Errorf("%w: the node was out of contact with the store for more than %v; it goes on when the others have met the store too", hapax.ErrStoreUnavailable, waitOf(g.interval())), nil)
	g.wake()
}

// awaitOthersLocked has this process wait until the others have met the store, from now
// on. Their rows, as they are first read, may be from before.
func (g *Guarded) awaitOthersLocked() {
	g.me.waits = g.now()
	// Calls that were sent before end under an earlier count, and are abandoned.
	g.me.begun++
	g.noted = g.me.waits
	for _, other := range g.peers {
		other.value, other.met = "", false
	}
}

// pulsed are a store's rows, written under pulses.
type pulsed struct {
	driver.Rows
	g *Guarded
	s store
	p *pulse // of the call that asks for a grant; nil: each change has its own
}

// pulsed returns a store's rows, each change of which has a pulse of its own.
func (g *Guarded) pulsed(s store) pulsed { return pulsed{s, g, s, nil} }

// SwapRow implements driver.Rows.
func (r pulsed) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	p := r.g.pulse(false)
	// A lease is read and written in several calls: under another row the store may be another
	// copy than the one that was read.
	if p.Row == "" || r.p != nil && p.Row != r.p.Row {
		return false, errAbandoned()
	}
	ok, c, err := r.s.SwapRowWith(ctx, p.Pulse, table, name, old, next)
	return ok, r.g.found(ctx, r.s, p, c, err)
}

// nothing is the result of calls that have none.
type nothing struct{}

// ask makes one call on the store with the guard's time-out.
func ask[T any](ctx context.Context, g *Guarded, f func(context.Context, store) (T, error)) (T, error) {
	began := g.now()
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	return asked(ctx, g, began, f)
}

// asked is ask for a call whose time-out has begun.
func asked[T any](ctx context.Context, g *Guarded, began time.Duration, f func(context.Context, store) (T, error)) (T, error) {
	s, err := g.calls.get(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	v, err := f(ctx, s)
	g.calls.answered(s, began, err == nil || ctx.Err() == nil, g.opts.Timeout)
	return v, g.replaceLost(g.calls, s, err)
}

// asServing is ask for a call that must wait until the node serves.
func asServing[T any](ctx context.Context, g *Guarded, f func(context.Context, store) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	if err := g.serving(ctx); err != nil {
		var zero T
		return zero, err
	}
	return asked(ctx, g, g.now(), f)
}

// replaceLost replaces a handle whose driver has found by itself that its store went back or
// is another one, and has the node join anew, which shows the loss. A handle that is
// closed was replaced while it was used.
func (g *Guarded) replaceLost(h *handle, s store, err error) error {
	switch {
	case err == nil || errors.Is(err, hapax.ErrFenced):
		return err
	case errors.Is(err, hapax.ErrClosed) && g.life.Err() == nil:
		return errReplacedInUse()
	}
	if errors.Is(err, hapax.ErrStoreRetired) { // a change that is made under no heartbeat
		return g.ifRetired(err)
	}
	if errors.Is(err, hapax.ErrStoreRolledBack) || errors.Is(err, hapax.ErrStoreReplaced) {
		err = fmt.Errorf("%w: the store is dialled anew, since its driver says: %s", hapax.ErrStoreUnavailable, hapax.Message(err))
		// The driver has only seen its connection; what is missing is found by joining anew, with the
		// witness.
		h.drop(s)
		g.apply(lost, err, nil)
		g.wake()
	}
	return unavailable(err)
}

func errReplacedInUse() error {
	return fmt.Errorf("%w: the connection was replaced while it was used", hapax.ErrStoreUnavailable)
}

// StoreID implements driver.Store.
func (g *Guarded) StoreID(ctx context.Context) (string, error) {
	return ask(ctx, g, func(ctx context.Context, s store) (string, error) { return s.StoreID(ctx) })
}

// StoreTime implements driver.Clock for stores that do.
func (g *Guarded) StoreTime(ctx context.Context) (time.Time, error) {
	return ask(ctx, g, func(ctx context.Context, s store) (time.Time, error) {
		if clock, ok := s.(driver.Clock); ok {
			return clock.StoreTime(ctx)
		}
		return time.Time{}, hapax.ErrNotSupported
	})
}

// Ping implements driver.Store: it reports whether the store can grant now and is
// allowed to, and whether the witness can record it.
func (g *Guarded) Ping(ctx context.Context) error {
	_, err := asServing(ctx, g, func(ctx context.Context, s store) (nothing, error) { return nothing{}, s.Ping(ctx) })
	if err != nil {
		return err
	}
	return g.witness.rewrite()
}

// sound judges a grant by itself.
func sound(line string, grant hapax.Grant) error {
	if grant.Lo < 0 || grant.Hi <= grant.Lo {
		return fmt.Errorf("%w: %s: the store granted [%d, %d)", hapax.ErrStoreCorrupt, line, grant.Lo, grant.Hi)
	}
	return nil
}

// missing turns "not found" into a loss where the witness knew better before the call.
// The witness's knowledge since may be of another call, which has created the tag meanwhile.
func (g *Guarded) missing(line string, known bool, err error) error {
	if !known || !errors.Is(err, hapax.ErrTagNotFound) {
		return err
	}
	p, _ := g.witness.Pair(line)
	return g.isBehind(fmt.Errorf("%w: it does not know %s, which was used below %d", hapax.ErrStoreRolledBack, line, p.Mark))
}

// AcquireWorker implements hapax.WorkerStore. Which line the grant will be of is not
// known before.
func (g *Guarded) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (l hapax.Lease, err error) {
	err = g.grant(ctx, func() func(string) (Pair, bool) {
		before := g.witness.pairsOf(req.Pool)
		return func(line string) (Pair, bool) {
			want, ok := before[line]
			return want, ok
		}
	}, func(ctx context.Context, s store, p pulse) ([]granted, error) {
		l, err = driver.LeasesIn(pulsed{s, g, s, &p}).AcquireWorker(ctx, req)
		line := WorkerLine(l.Pool, l.Worker)
		if err != nil {
			return nil, err
		}
		return []granted{{line, Pair{l.Token - 1, l.Grant.Lo}, Pair{l.Token, l.Grant.Hi}, poolDef(l.Pool), def{Layout: req.Layout.String()}}}, sound(line, l.Grant)
	})
	if err != nil {
		return hapax.Lease{}, err
	}
	return l, nil
}

// ExtendWorker implements hapax.WorkerStore. A caller's lease is no evidence against the
// store; the witness's record is.
func (g *Guarded) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	var l hapax.Lease
	line := WorkerLine(lease.Pool, lease.Worker)
	err := g.grant(ctx, func() func(string) (Pair, bool) {
		want, ok := g.witness.Pair(line)
		return func(string) (Pair, bool) { return want, ok }
	}, func(ctx context.Context, s store, p pulse) ([]granted, error) {
		want, known := g.witness.Pair(line)
		var err error
		l, err = driver.LeasesIn(pulsed{s, g, s, &p}).ExtendWorker(ctx, lease, layout, term)
		switch {
		case errors.Is(err, hapax.ErrStoreRolledBack) && !errors.Is(err, hapax.ErrFenced):
			return nil, g.claimed(ctx, s, lease, want, known)
		case err != nil:
			return nil, err
		}
		// It may repeat an earlier grant of its holder, in an extension whose answer was lost.
		after := Pair{l.Token, l.Grant.Hi}
		return []granted{{line, after, after, poolDef(l.Pool), def{Layout: layout.String()}}}, sound(line, l.Grant)
	})
	if err != nil {
		return lease, err
	}
	return l, nil
}

// claimed judges a lease that is further than its row, against the witness's record before
// the call.
func (g *Guarded) claimed(ctx context.Context, s store, lease hapax.Lease, want Pair, known bool) error {
	workers, err := s.Workers(ctx, lease.Pool)
	if err != nil {
		return err
	}
	have := Pair{}
	for _, w := range workers {
		if w.ID == lease.Worker {
			have = Pair{w.Token, w.Mark}
		}
	}
	if known && have.Less(want) {
		return g.isBehind(fmt.Errorf("%w: pool %q, worker %d is at token %d, mark %d, and was at token %d, mark %d before",
			hapax.ErrStoreRolledBack, lease.Pool, lease.Worker, have.Token, have.Mark, want.Token, want.Mark))
	}
	return fmt.Errorf("%w: pool %q, worker %d", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
}

// SealWorker implements hapax.WorkerStore.
func (g *Guarded) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	_, err := asServing(ctx, g, func(ctx context.Context, s store) (nothing, error) {
		if err := driver.LeasesIn(g.pulsed(s)).SealWorker(ctx, lease, last); err != nil {
			return nothing{}, err
		}
		g.gaveBack(map[string]Pair{WorkerLine(lease.Pool, lease.Worker): {lease.Token + 1, last}})
		return nothing{}, nil
	})
	return err
}

// gaveBack has the witness know that numbers were handed back, so that it does not take
// them for used where it knows more than others.
func (g *Guarded) gaveBack(lines map[string]Pair) {
	g.witness.note(func(b *record) {
		for line, p := range lines {
			// Another node may have been granted the line since: then the witness knows a later pair
			// already.
			if known, ok := g.witness.state.Lines[line]; ok && known.Less(p) {
				b.Lines[line] = p
			}
		}
	})
}

// CreateTag implements hapax.SegmentStore.
func (g *Guarded) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) (hapax.Tag, error) {
		if _, ok := g.witness.Pair(TagLine(tag.Name)); ok && mode == hapax.CreateFirstUse {
			t, err := s.Tag(ctx, tag.Name)
			switch {
			case err != nil:
				return hapax.Tag{}, g.missing(TagLine(tag.Name), true, err)
			case t.Deleted:
				return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, tag.Name)
			}
			return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagExists, tag.Name)
		}
		return s.CreateTag(ctx, tag, mode)
	})
}

// Tag implements driver.TagStore.
func (g *Guarded) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) (hapax.Tag, error) {
		_, known := g.witness.Pair(TagLine(name))
		t, err := s.Tag(ctx, name)
		if err == nil {
			err = g.asBefore(t)
		}
		if err != nil {
			return hapax.Tag{}, g.unreadable(TagLine(name), g.missing(TagLine(name), known, err))
		}
		return t, nil
	})
}

// Tags implements driver.TagStore.
func (g *Guarded) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return ask(ctx, g, func(ctx context.Context, s store) ([]hapax.Tag, error) {
		tags, err := s.Tags(ctx, after, limit)
		for i, t := range tags {
			if !g.blocks() {
				break
			}
			if t.Kind != hapax.KindUnreadable && g.asBefore(t) != nil {
				tags[i] = hapax.Tag{Name: t.Name, Kind: hapax.KindUnreadable}
			}
		}
		return tags, err
	})
}

// UpdateTag implements driver.TagStore.
func (g *Guarded) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) (hapax.Tag, error) {
		if err := g.asBlocked(ctx, s, name); err != nil {
			return hapax.Tag{}, err
		}
		return s.UpdateTag(ctx, name, u)
	})
}

// DeleteTag implements driver.TagStore.
func (g *Guarded) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) (hapax.Tag, error) {
		if err := g.asBlocked(ctx, s, name); err != nil {
			return hapax.Tag{}, err
		}
		return s.DeleteTag(ctx, name)
	})
}

// Pools implements driver.PoolStore.
func (g *Guarded) Pools(ctx context.Context) ([]driver.Pool, error) {
	return ask(ctx, g, func(ctx context.Context, s store) ([]driver.Pool, error) { return s.Pools(ctx) })
}

// CreatePool implements driver.PoolStore.
func (g *Guarded) CreatePool(ctx context.Context, pool, layout string) (driver.Pool, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) (driver.Pool, error) { return s.CreatePool(ctx, pool, layout) })
}

// DeletePool implements driver.PoolStore.
func (g *Guarded) DeletePool(ctx context.Context, pool string) (driver.Pool, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) (driver.Pool, error) { return s.DeletePool(ctx, pool) })
}

// Workers implements driver.PoolStore.
func (g *Guarded) Workers(ctx context.Context, pool string) ([]driver.Worker, error) {
	return ask(ctx, g, func(ctx context.Context, s store) ([]driver.Worker, error) { return s.Workers(ctx, pool) })
}

// RetireWorker implements driver.PoolStore.
func (g *Guarded) RetireWorker(ctx context.Context, pool string, id int64) (driver.Worker, error) {
	return asServing(ctx, g, func(ctx context.Context, s store) (driver.Worker, error) { return s.RetireWorker(ctx, pool, id) })
}
