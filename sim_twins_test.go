package hapax_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A twin is a deliberately broken variant of a part of the system, which the
// simulator must tell from the real one.
type twin struct {
	broken     bool
	layout     string // instead of a random one
	nodes      int    // instead of a random count
	noWitness  bool
	keepsStore bool // nobody puts a backup back
	node       func(*node)
	link       func(driver.Store) driver.Store           // around the store, below the node's guard
	guard      func(*process, driver.Store) driver.Store // around the node's own guard, if it has one
	store      func(*node) driver.Store
	open       func(context.Context, *process, hapax.SnowflakeOptions) (hapax.Issuer, error)
}

func (tw twin) storeOf(n *node) driver.Store {
	if tw.store != nil {
		return tw.store(n)
	}
	return n.world.store
}

func (tw twin) linkOf(n *node) driver.Store {
	store := tw.storeOf(n)
	if tw.link != nil {
		store = tw.link(store)
	}
	return store
}

const (
	narrow  = "time:41,worker:5,sequence:4,unit=1ms,epoch=2020-01-01T00:00:00Z"
	coarse  = "time:30,worker:5,sequence:14,unit=1s,epoch=2020-01-01T00:00:00Z"
	sixteen = "time:40,worker:5,sequence:14,unit=1ms,epoch=2020-01-01T00:00:00Z"
)

// plainTwin runs a simple issuer with one fault in place of the Snowflake.
func plainTwin(fault string, layout string, nodes int) twin {
	return twin{
		broken: fault != "", layout: layout, nodes: nodes, keepsStore: true, noWitness: true,
		open: func(ctx context.Context, p *process, opts hapax.SnowflakeOptions) (hapax.Issuer, error) {
			return &plain{fault: fault, store: p.records, opts: opts, node: p.node, lock: make(chan struct{}, 1)}, nil
		},
	}
}

// storeTwin runs the real engine over a store with one fault.
func storeTwin(nodes int, wrap func(*memstore.Store) driver.Store) twin {
	return twin{broken: true, layout: coarse, nodes: nodes, keepsStore: true, noWitness: true, store: func(n *node) driver.Store { return wrap(n.world.store) }}
}

// crowded leaves the nodes one worker ID too few.
func crowded(tw twin) twin {
	tw.node = func(n *node) { n.workers = hapax.WorkerRange{Lo: 0, Hi: int64(tw.nodes) - 1} }
	return tw
}

func TestSimulationCatchesBrokenTwins(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	twins := map[string]twin{
		"time and sequence in two variables":             plainTwin("two variables", narrow, 2),
		"a cursor reused across grants":                  crowded(plainTwin("reused cursor", coarse, 3)),
		"a seal while numbers are in flight":             crowded(plainTwin("seal in flight", narrow, 2)),
		"a commit error ignored":                         plainTwin("ignored error", narrow, 3),
		"last time not advanced at exhaustion":           plainTwin("last time", narrow, 2),
		"a worker ID shifted in 16 bits":                 plainTwin("16 bits", sixteen, 5),
		"a store rolled back and believed":               {broken: true, nodes: 1, noWitness: true},
		"local state trusted over the store":             plainTwin("local state", narrow, 2),
		"sealed before the last number is issued":        plainTwin("sealed early", coarse, 2),
		"a deleted tag that starts again at 1":           storeTwin(2, func(m *memstore.Store) driver.Store { return reviver{m} }),
		"a worker recycled without its mark":             storeTwin(3, func(m *memstore.Store) driver.Store { return forgetful{m} }),
		"an extension without a look at the token":       crowded(storeTwin(3, func(m *memstore.Store) driver.Store { return unfenced{m} })),
		"a poisoned mark lowered":                        storeTwin(2, func(m *memstore.Store) driver.Store { return lowerer{m} }),
		"an identity of address and port that is shared": {broken: true, nodes: 2, keepsStore: true, noWitness: true, node: shareIdentity, store: func(n *node) driver.Store { return sticky{n.world.store} }},
	}
	catch(t, twins)
	t.Run("and not the simple issuer without a fault", func(t *testing.T) {
		for seed := uint64(1); seed <= 2; seed++ {
			if faults, _ := simulate(t, seed, plainTwin("", narrow, 0)); len(faults) > 0 {
				t.Errorf("seed %d: %s", seed, faults[0])
			}
		}
	})
}

// catch runs worlds of each twin until one of its numbers is wrong. Some are found in one of
// ten worlds only, so that many can pass.
func catch(t *testing.T, twins map[string]twin) {
	t.Helper()
	const most = 2000
	for name, tw := range twins {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= most; seed++ {
				if faults, _ := simulate(t, seed, tw); len(faults) > 0 {
					t.Logf("caught with seed %d: %s", seed, faults[0])
					return
				}
			}
			t.Errorf("not caught in %d worlds", most)
		})
	}
}

// plain is the simplest issuer that is right, one number and one lock at a
// time; each of its faults is a mistake that systems in the field have made.
type plain struct {
	fault string
	store hapax.WorkerStore
	opts  hapax.SnowflakeOptions
	node  *node

	lock   chan struct{} // held also while the store works, which virtual time must see
	lease  hapax.Lease
	held   bool
	tick   int64
	seq    int64
	closed bool
}

// localState is what the "local state" twin keeps in its data directory.
var localState sync.Map // *node to hapax.Lease

func (p *plain) Next(ctx context.Context) (hapax.ID, error) {
	if p.fault == "two variables" {
		return p.nextUnlocked(ctx)
	}
	if p.fault == "seal in flight" {
		time.Sleep(20 * time.Millisecond) // the caller was let in before Close
	}
	for {
		id, wait, err := p.try(ctx)
		if err != nil {
			return 0, err
		}
		if wait == 0 {
			if p.fault == "sealed early" {
				time.Sleep(time.Millisecond) // taken from the cursor, and issued a moment later
			}
			return id, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// try issues one number, or tells how long to wait.
func (p *plain) try(ctx context.Context) (id hapax.ID, wait time.Duration, err error) {
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	if p.closed && p.fault != "seal in flight" {
		return 0, 0, hapax.ErrClosed
	}
	wall, _ := p.node.clock.Now()
	now, err := p.opts.Layout.TickOf(wall)
	if err != nil {
		return 0, 0, err
	}
	if !p.held || max(p.tick, now) >= p.lease.Grant.Hi {
		if err := p.refill(ctx, now); err != nil {
			return 0, 0, err
		}
	}
	at, seq := max(p.tick, now), p.seq
	if at > p.tick {
		seq = 0
	} else if seq >= p.opts.Layout.PerTick() {
		at, seq = p.tick+1, 0
		if p.fault == "last time" { // the tick is used, but not remembered
			id, err := p.compose(at, p.seq%p.opts.Layout.PerTick())
			p.seq++
			return id, 0, err
		}
	}
	if at >= p.lease.Grant.Hi || at > now+10 {
		return 0, time.Millisecond, nil
	}
	p.tick, p.seq = at, seq+1
	id, err = p.compose(at, seq)
	return id, 0, err
}

func (p *plain) compose(tick, seq int64) (hapax.ID, error) {
	worker := p.lease.Worker
	if p.fault == "16 bits" {
		bits := p.opts.Layout.SequenceBits()
		worker = int64(uint16(worker<<bits)) >> bits
	}
	return p.opts.Layout.Compose(hapax.Fields{{Name: "time", Value: tick}, {Name: "worker", Value: worker}, {Name: "sequence", Value: seq}})
}

func (p *plain) refill(ctx context.Context, now int64) error {
	wall, _ := p.node.clock.Now()
	if old, ok := localState.Load(p.node); ok && p.fault == "local state" && !p.held {
		p.lease, p.held = old.(hapax.Lease), true // a file says which worker it was
		p.lease.Grant.Hi = now + 1000
		return nil
	}
	unit := p.opts.Layout.Unit()
	to := now + 2000
	term := hapax.Term{Now: wall, Length: 2000 * unit, Ahead: 10 * unit, TTL: 5 * time.Second}
	if p.held {
		l, err := p.store.ExtendWorker(ctx, p.lease, p.opts.Layout, term)
		switch {
		case err == nil && p.fault == "reused cursor":
			p.lease = l // the cursor stays, also where the grant is not adjacent
			return nil
		case err == nil:
			if l.Grant.Lo > p.lease.Grant.Hi {
				p.tick, p.seq = max(p.tick, l.Grant.Lo), 0
			}
			p.lease = l
			return nil
		case p.fault == "ignored error":
			p.lease.Grant.Hi = to
			return nil
		case hapax.CodeOf(err) != hapax.CodeOf(hapax.ErrLeaseLost):
			return err
		}
		p.held = false
	}
	l, err := p.store.AcquireWorker(ctx, hapax.AcquireRequest{
		Pool: hapax.DefaultPool, Layout: p.opts.Layout, Workers: p.opts.Workers, Holder: p.opts.Holder, Term: term,
	})
	if err != nil {
		return err
	}
	p.lease, p.held = l, true
	localState.Store(p.node, l)
	if p.fault != "reused cursor" {
		p.tick, p.seq = max(p.tick+1, l.Grant.Lo), 0
	}
	return nil
}

// nextUnlocked keeps time and sequence in two variables, each read and written
// on its own.
func (p *plain) nextUnlocked(ctx context.Context) (hapax.ID, error) {
	wall, _ := p.node.clock.Now()
	now, err := p.opts.Layout.TickOf(wall)
	if err != nil {
		return 0, err
	}
	p.lock <- struct{}{}
	if !p.held || now >= p.lease.Grant.Hi {
		err = p.refill(ctx, now)
	}
	tick, seq := p.tick, p.seq
	<-p.lock
	if err != nil {
		return 0, err
	}
	time.Sleep(time.Microsecond) // another thread may run here
	if now > tick {
		tick, seq = now, 0
	}
	if seq >= p.opts.Layout.PerTick() || tick >= p.lease.Grant.Hi {
		return 0, fmt.Errorf("%w: twin", hapax.ErrTickExhausted)
	}
	p.lock <- struct{}{}
	p.tick, p.seq = tick, seq+1
	<-p.lock
	return p.compose(tick, seq)
}

func (p *plain) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	for i := range dst {
		id, err := p.Next(ctx)
		if err != nil {
			return i, err
		}
		dst[i] = id
	}
	return len(dst), nil
}

func (p *plain) Close(ctx context.Context) error {
	p.lock <- struct{}{}
	p.closed = true
	lease, held, last := p.lease, p.held, max(p.tick+1, p.lease.From)
	<-p.lock
	if !held {
		return nil
	}
	if p.fault == "sealed early" {
		last = max(p.tick, lease.From) // the tick that is in use
	}
	return p.store.SealWorker(ctx, lease, min(last, lease.Grant.Hi))
}

// reviver lets a deleted tag begin at 1 when it is created again.
type reviver struct{ *memstore.Store }

// revivedAt holds the mark of each tag that a reviver revived.
var revivedAt sync.Map

type revived struct {
	store *memstore.Store
	tag   string
}

func (s reviver) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	created, err := s.Store.CreateTag(ctx, tag, mode)
	if err == nil {
		revivedAt.Store(revived{s.Store, tag.Name}, created.Mark-1)
	}
	return created, err
}

func (s reviver) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := s.Store.Allocate(ctx, tag, n, last)
	if base, ok := revivedAt.Load(revived{s.Store, tag}); ok {
		a.Grant.Lo -= base.(int64)
		a.Grant.Hi -= base.(int64)
		a.From -= base.(int64)
	}
	return a, err
}

// forgetful hands a worker on as soon as its lease has run out, with the
// caller's clock for a mark.
type forgetful struct{ *memstore.Store }

func (s forgetful) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return driver.LeasesIn(unmarked(s)).AcquireWorker(ctx, req)
}

// unmarked shows the mark of every worker as passed.
type unmarked struct{ *memstore.Store }

var markField = regexp.MustCompile(`"(mark|from)":[0-9]+`)

func (s unmarked) hide(table string, value []byte) []byte {
	if value != nil && strings.HasPrefix(table, "workers/") {
		return markField.ReplaceAll(value, []byte(`"$1":0`))
	}
	return value
}

func (s unmarked) Row(ctx context.Context, table, name string) ([]byte, error) {
	v, err := s.Store.Row(ctx, table, name)
	return s.hide(table, v), err
}

func (s unmarked) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	rows, err := s.Store.ListRows(ctx, table, after, limit)
	for i := range rows {
		rows[i].Value = s.hide(table, rows[i].Value)
	}
	return rows, err
}

func (s unmarked) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	now, err := s.Store.Row(ctx, table, name)
	if err != nil || string(s.hide(table, now)) != string(old) {
		return false, err
	}
	return s.Store.SwapRow(ctx, table, name, now, next)
}

// worker returns a worker of a pool, and how to write its mark and token.
func workerRow(ctx context.Context, s *memstore.Store, pool string, id int64) (raw []byte, edit func(field string, value int64)) {
	name := fmt.Sprintf("%019d", id)
	raw, _ = s.Row(ctx, "workers/"+pool, name)
	return raw, func(field string, value int64) {
		next := regexp.MustCompile(`"`+field+`":[0-9]+`).ReplaceAll(raw, fmt.Appendf(nil, "%q:%d", field, value))
		if string(next) != string(raw) {
			_, _ = s.SwapRow(ctx, "workers/"+pool, name, raw, next)
		}
	}
}

// unfenced extends whatever lease there is.
type unfenced struct{ *memstore.Store }

func (s unfenced) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	workers, err := s.Store.Workers(ctx, lease.Pool)
	if err != nil {
		return lease, err
	}
	to, err := layout.TickOf(term.Now.Add(term.Length))
	if err != nil {
		return lease, err
	}
	for _, w := range workers {
		if w.ID == lease.Worker {
			to = max(to, w.Mark)
			_, edit := workerRow(ctx, s.Store, lease.Pool, lease.Worker)
			edit("mark", to)
		}
	}
	if to <= lease.Grant.Hi {
		return lease, hapax.ErrStoreUnavailable
	}
	lease.Grant = hapax.Grant{Lo: lease.Grant.Hi, Hi: to} // the old end as if it were still one's own
	return lease, nil
}

// lowerer repairs marks that lie ahead of the caller's clock.
type lowerer struct{ *memstore.Store }

func (s lowerer) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	workers, err := s.Store.Workers(ctx, req.Pool)
	if err != nil {
		return hapax.Lease{}, err
	}
	latest, err := req.Layout.TickOf(req.Term.Now)
	if err != nil {
		return hapax.Lease{}, err
	}
	for _, w := range workers {
		if w.Mark > latest+int64(time.Minute/req.Layout.Unit()) {
			for field, value := range map[string]int64{"mark": latest, "from": min(w.From, latest), "token": w.Token + 1, "expires_ms": 0} {
				_, edit := workerRow(ctx, s.Store, req.Pool, w.ID)
				edit(field, value)
			}
		}
	}
	return s.Store.AcquireWorker(ctx, req)
}

// shareIdentity makes all nodes say that they are the same instance.
func shareIdentity(n *node) { n.holder = "10.0.0.1:8080" }

// sticky gives an instance its worker back whether its grant is over or not.
type sticky struct{ *memstore.Store }

func (s sticky) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	rows, err := s.Store.Workers(ctx, req.Pool)
	if err != nil {
		return hapax.Lease{}, err
	}
	for _, w := range rows {
		if w.Holder == req.Holder {
			now, err := req.Layout.TickOf(req.Term.Now)
			g := hapax.Grant{Lo: now, Hi: now + 1 + int64(req.Term.Length/req.Layout.Unit())}
			return hapax.Lease{Pool: w.Pool, Worker: w.ID, Token: w.Token, Holder: w.Holder, Grant: g, From: g.Lo}, err
		}
	}
	return s.Store.AcquireWorker(ctx, req)
}
