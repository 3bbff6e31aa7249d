package rpcapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// An adversary holds an issue and a lease token, knows whatever is not secret
// and what it was told itself, and calls everything.
type adversary struct {
	ctx        context.Context
	nodes      []*fortress
	rng        *rand.Rand
	tokens     []string
	names      []string         // of tags, pools and holders, and keys that it was given
	ints       []int64          // marks, fencing tokens, and the smallest and largest of them
	leases     []*hapaxv1.Lease // its own, also those that are over
	segs       []*hapaxv1.HandBackRequest
	inputs     map[string]proto.Message
	procedures []string
	taken      int
}

const maxLoot = 64

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

func keep[T any](rng *rand.Rand, loot []T, v T) []T {
	if len(loot) < maxLoot {
		return append(loot, v)
	}
	loot[rng.IntN(len(loot))] = v
	return loot
}

// number returns something that is near to one that matters, or far from all.
func (a *adversary) number() int64 {
	switch a.rng.IntN(4) {
	case 0:
		return a.rng.Int64N(2000) - 10
	case 1:
		return pick(a.rng, []int64{0, 1, -1, math.MaxInt64, math.MinInt64, hapax.MaxMark - 1, 1 << 40, 1<<41 - 2, 1 << 62})
	}
	return pick(a.rng, a.ints) + a.rng.Int64N(5) - 2
}

// fill sets the fields of a message at random.
func (a *adversary) fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsList() || f.IsMap() || a.rng.IntN(6) == 0 {
			continue
		}
		switch f.Kind() {
		case protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(pick(a.rng, a.names)))
		case protoreflect.Int64Kind:
			m.Set(f, protoreflect.ValueOfInt64(a.number()))
		case protoreflect.Int32Kind:
			m.Set(f, protoreflect.ValueOfInt32(int32(a.rng.Int64N(5000)-5)))
		case protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(a.rng.IntN(4))))
		case protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(a.rng.IntN(2) == 0))
		case protoreflect.MessageKind:
			a.fill(m.Mutable(f).Message())
		}
	}
}

// next returns a call: a procedure, and its request.
func (a *adversary) next() (string, proto.Message) {
	term := &hapaxv1.Term{Length: durationpb.New(time.Duration(1+a.rng.Int64N(86_400)) * time.Second), Ahead: durationpb.New(time.Hour), Behind: durationpb.New(time.Hour)}
	switch what := a.rng.IntN(12); {
	case what == 0:
		return hapaxv1connect.LeaseServiceAcquireWorkerProcedure, &hapaxv1.AcquireWorkerRequest{
			Pool: hapax.DefaultPool, Workers: &hapaxv1.WorkerRange{Hi: 1024}, Holder: pick(a.rng, a.names), Term: term,
		}
	case what <= 2 && len(a.leases) > 0:
		l := proto.CloneOf(pick(a.rng, a.leases))
		a.spoil(l)
		return hapaxv1connect.LeaseServiceExtendWorkerProcedure, &hapaxv1.ExtendWorkerRequest{Lease: l, Term: term}
	case what <= 4 && len(a.leases) > 0:
		l := proto.CloneOf(pick(a.rng, a.leases))
		a.spoil(l)
		last := pick(a.rng, []int64{l.GetFrom(), l.GetGrant().GetLo(), l.GetGrant().GetHi() - 1, l.GetGrant().GetHi(), l.GetFrom() - 1, 0, a.number()})
		return hapaxv1connect.LeaseServiceSealWorkerProcedure, &hapaxv1.SealWorkerRequest{Lease: l, Last: last}
	case what == 5:
		req := &hapaxv1.AllocateRequest{Tag: pick(a.rng, []string{"orders", "orders", "parcels"}), N: a.rng.Int64N(300)}
		if len(a.segs) > 0 && a.rng.IntN(2) == 0 {
			req.LastKey = pick(a.rng, a.segs).GetKey()
		}
		return hapaxv1connect.LeaseServiceAllocateProcedure, req
	case what <= 7 && len(a.segs) > 0:
		h := proto.CloneOf(pick(a.rng, a.segs))
		h.Next = pick(a.rng, []int64{h.GetGrant().GetLo(), h.GetFrom(), h.GetFrom() - 1, 1, 0, h.GetGrant().GetHi() - 1, a.number()})
		switch a.rng.IntN(5) {
		case 0:
			h.Tag = pick(a.rng, []string{"orders", "parcels"})
		case 1:
			h.From = a.number()
		case 2:
			h.Grant.Hi = a.number()
		}
		return hapaxv1connect.LeaseServiceHandBackProcedure, h
	}
	procedure := pick(a.rng, a.procedures)
	m := proto.Clone(a.inputs[procedure])
	a.fill(m.ProtoReflect())
	return procedure, m
}

// spoil changes a lease, or not.
func (a *adversary) spoil(l *hapaxv1.Lease) {
	switch a.rng.IntN(10) {
	case 0:
		l.Token = a.number()
	case 1:
		l.Worker = a.rng.Int64N(20)
	case 2:
		l.Key = pick(a.rng, a.names)
	case 3:
		l.Grant.Hi = a.number()
	case 4:
		l.Grant.Lo, l.From = 0, 0
	case 5:
		l.Pool = pick(a.rng, a.names)
	case 6:
		l.Holder = pick(a.rng, a.names)
	}
}

// call makes one call, and keeps what it learns.
func (a *adversary) call() {
	procedure, req := a.next()
	node := pick(a.rng, a.nodes)
	body, err := proto.Marshal(req)
	if err != nil {
		return
	}
	r := (&http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: procedure}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: "192.0.2.1:1234",
		Header: http.Header{"Content-Type": {"application/proto"}, "Authorization": {"Bearer " + node.tokens[pick(a.rng, a.tokens)]}},
		Body:   io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}).WithContext(a.ctx)
	w := httptest.NewRecorder()
	node.mux.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		return
	}
	a.taken++
	answer := w.Body.Bytes()
	switch procedure {
	case hapaxv1connect.LeaseServiceAcquireWorkerProcedure, hapaxv1connect.LeaseServiceExtendWorkerProcedure:
		var res hapaxv1.AcquireWorkerResponse // both have a lease in the same place
		if proto.Unmarshal(answer, &res) == nil && res.GetLease() != nil {
			l := res.GetLease()
			a.leases = keep(a.rng, a.leases, l)
			a.names = keep(a.rng, a.names, l.GetKey())
			a.ints = append(keep(a.rng, a.ints, l.GetGrant().GetHi()), l.GetToken())
		}
	case hapaxv1connect.LeaseServiceAllocateProcedure:
		var res hapaxv1.AllocateResponse
		if proto.Unmarshal(answer, &res) == nil {
			a.segs = keep(a.rng, a.segs, &hapaxv1.HandBackRequest{Tag: res.GetTag().GetName(), Grant: res.GetGrant(), Key: res.GetKey(), From: res.GetFrom()})
			a.ints = keep(a.rng, a.ints, res.GetGrant().GetHi())
		}
	}
	if len(a.ints) > 2*maxLoot {
		a.ints = a.ints[:maxLoot]
	}
}

// overhear takes what is no secret from the store: marks, tokens, holders.
func (a *adversary) overhear(store *memstore.Store) {
	workers, err := store.Workers(context.Background(), hapax.DefaultPool)
	if err != nil {
		return
	}
	for _, w := range workers {
		a.ints = keep(a.rng, a.ints, w.Mark)
		a.leases = keep(a.rng, a.leases, &hapaxv1.Lease{Pool: w.Pool, Worker: w.ID, Token: w.Token, Holder: w.Holder, Key: pick(a.rng, a.names), From: w.From, Grant: &hapaxv1.Grant{Lo: w.From, Hi: w.Mark}})
	}
	for _, tag := range []string{"orders", "parcels"} {
		if t, err := store.Tag(context.Background(), tag); err == nil {
			a.segs = keep(a.rng, a.segs, &hapaxv1.HandBackRequest{Tag: tag, Grant: &hapaxv1.Grant{Lo: 1, Hi: t.Mark}, From: 1, Key: pick(a.rng, a.names)})
		}
	}
}

// An honestLedger notes the numbers of honest parties.
type honestLedger struct {
	mu    sync.Mutex // guards the fields below
	seen  map[string]map[hapax.ID]struct{}
	twice []hapax.ID
	errs  map[string]int
}

func (l *honestLedger) note(tag string, ids ...hapax.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[tag] == nil {
		l.seen[tag] = map[hapax.ID]struct{}{}
	}
	for _, id := range ids {
		if _, taken := l.seen[tag][id]; taken {
			l.twice = append(l.twice, id)
		}
		l.seen[tag][id] = struct{}{}
	}
}

func (l *honestLedger) fail(what string, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs[what+": "+err.Error()]++
}

// attack lets adversaries make so many calls beside two honest nodes, which reach
// the store as served, and honest clients. It returns what the honest ones saw,
// the nodes, and how many calls of the adversaries succeeded.
func attack(t *testing.T, store *memstore.Store, served driver.Store, evil auth.TokenConfig, calls int64) (*honestLedger, []*fortress, int) {
	t.Helper()
	tokens := map[string]auth.TokenConfig{
		"evil-issue": {NewTags: 20},
		"evil-lease": evil,
		"honest":     {Scopes: []string{"issue", "lease"}, Pools: []string{hapax.DefaultPool}},
	}
	secrets := map[string]string{}
	for name, c := range tokens {
		secrets[name] = auth.NewToken()
		c.Hash = auth.HashToken(secrets[name])
		tokens[name] = c
	}
	var nodes []*fortress
	for range 2 {
		nodes = append(nodes, fortifyNode(t, store, served, service.Options{}, tokens, secrets))
	}
	a := nodes[0]
	l := &honestLedger{seen: map[string]map[hapax.ID]struct{}{}, errs: map[string]int{}}
	for _, tag := range []string{"orders", "parcels", service.SnowflakeTag} {
		l.note(tag, a.next(tag))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var honest, evils sync.WaitGroup
	for _, n := range nodes {
		honest.Go(func() {
			for ctx.Err() == nil {
				for _, tag := range []string{"orders", "parcels", service.SnowflakeTag} {
					ids := make([]hapax.ID, 20)
					got, err := n.svc.NextN(ctx, tag, ids)
					l.note(tag, ids[:got]...)
					l.fail("a node for "+tag, err)
				}
				patience.Slow(time.Millisecond)
			}
		})
	}
	for i := range 2 {
		honest.Go(func() {
			c, err := client.Dial(ctx, client.Options{Token: a.tokens["honest"], Timeout: patience.Long}, nodes[i].url, nodes[1-i].url)
			if err != nil {
				l.fail("dial", err)
				return
			}
			for ctx.Err() == nil {
				l.fail("a client", lifetime(ctx, c, l))
			}
			l.fail("closing a client", c.Close())
		})
	}
	var left atomic.Int64
	left.Store(calls)
	taken := atomic.Int64{}
	for i := range uint64(4) {
		evils.Go(func() {
			e := &adversary{
				ctx: t.Context(), nodes: nodes, rng: rand.New(rand.NewPCG(i, 42)), tokens: []string{"evil-issue", "evil-lease"},
				names: []string{"orders", "parcels", "snowflake", "default", "wide", "", "evil-1", "evil-2", "\n\x1b[31mX", strings.Repeat("é", 65), "leaf"},
				ints:  []int64{1, 1000, 1 << 41}, inputs: methods(t),
			}
			for name := range e.inputs {
				if !strings.HasSuffix(name, "/NextStream") {
					e.procedures = append(e.procedures, name)
				}
			}
			slices.Sort(e.procedures)
			for n := 0; left.Add(-1) >= 0; n++ {
				if n%200 == 0 {
					e.overhear(store)
				}
				e.call()
			}
			taken.Add(int64(e.taken))
		})
	}
	evils.Wait()
	cancel()
	honest.Wait()
	return l, nodes, int(taken.Load())
}

// lifetime is that of an honest program, which leases, issues, and gives back what
// is left.
func lifetime(ctx context.Context, c *client.Client, l *honestLedger) error {
	always := context.WithoutCancel(ctx)
	segment, err := c.Segment(always, "orders", hapax.SegmentOptions{})
	if err != nil {
		return fmt.Errorf("a segment: %w", err)
	}
	flake, err := c.Snowflake(always, hapax.SnowflakeOptions{})
	if err != nil {
		return fmt.Errorf("a worker: %w", err)
	}
	for range 50 {
		for tag, issuer := range map[string]hapax.Issuer{"orders": segment, service.SnowflakeTag: flake} {
			ids := make([]hapax.ID, 30)
			n, err := issuer.NextN(always, ids)
			l.note(tag, ids[:n]...)
			if err != nil {
				return fmt.Errorf("numbers of %s: %w", tag, err)
			}
		}
		patience.Slow(time.Millisecond)
	}
	return errors.Join(segment.Close(always), flake.Close(always))
}

// TestAdversary: whatever is called with an issue and a lease token, no
// number comes twice, no worker is poisoned, no line ended, and no honest caller
// refused.
func TestAdversary(t *testing.T) {
	calls := int64(30_000)
	if testing.Short() {
		calls = 20_000
	}
	withstand(t, calls)
}

func TestAdversarySoak(t *testing.T) {
	patience.Soak(t, "a million calls")
	withstand(t, 1_000_000)
}

func withstand(t *testing.T, calls int64) {
	t.Helper()
	store := memstore.New()
	l, nodes, taken := attack(t, store, shared{store}, evilLease, calls)
	if taken < int(calls)/100 {
		t.Errorf("only %d of %d calls of the adversary succeeded: it tries nothing", taken, calls)
	}
	for _, v := range violations(t, store, l, nodes) {
		t.Error(v)
	}
	t.Logf("%d calls, %d succeeded; honest numbers: %d, %d", calls, taken, len(l.seen["orders"]), len(l.seen[service.SnowflakeTag]))
}

// evilLease is the lease token of the adversary.
var evilLease = auth.TokenConfig{
	Scopes: []string{"lease"}, Tags: []string{"orders", "parcels", "evil*"}, Pools: []string{hapax.DefaultPool}, Leases: 10, NewTags: 20,
}

// violations tells what the adversary has brought about.
func violations(t *testing.T, store *memstore.Store, l *honestLedger, nodes []*fortress) (found []string) {
	t.Helper()
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if len(l.twice) > 0 {
		add("%d numbers were issued twice, such as %d", len(l.twice), l.twice[0])
	}
	for _, err := range slices.Sorted(maps.Keys(l.errs)) {
		add("an honest caller was refused %d times: %s", l.errs[err], err)
	}
	leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	issued := map[int64]int64{} // by worker, up to which tick
	l.mu.Lock()
	for id := range l.seen[service.SnowflakeTag] {
		fields, err := leaf.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		worker, _ := fields.Get("worker")
		tick, _ := fields.Get(hapax.FieldTime)
		issued[worker] = max(issued[worker], tick)
	}
	l.mu.Unlock()
	for _, w := range nodes[0].workers() {
		if w.Mark <= issued[w.ID] {
			add("worker %d has mark %d, and has issued tick %d", w.ID, w.Mark, issued[w.ID])
		}
		if ahead := time.Until(leaf.TimeOf(w.Mark)); ahead > hapax.DefaultMaxGrant+time.Minute {
			add("worker %d is poisoned: its mark is %v ahead", w.ID, ahead)
		}
	}
	tags, err := store.Tags(t.Context(), "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	if len(tags) > 3+4*20 {
		add("there are %d tags", len(tags))
	}
	for _, tag := range tags {
		if tag.Mark > 1<<50 || tag.Deleted {
			add("tag %+v", tag)
		}
	}
	if pools, err := store.Pools(t.Context()); err != nil || len(pools) != 1 || pools[0].Layout != leaf.String() {
		add("pools %v, %v", pools, err)
	}
	for i, n := range nodes {
		if st := n.guard.Status(); st.State != witness.Serving {
			add("node %d: %+v", i, st)
		}
		if lines, most := len(n.witness.Lines()), len(tags)+len(n.workers()); lines > most {
			add("node %d: %d lines in the witness for %d tags and workers", i, lines, most)
		}
		for _, tag := range []string{"orders", service.SnowflakeTag} {
			if _, err := n.svc.Next(t.Context(), tag); err != nil {
				add("node %d: %v", i, err)
			}
		}
	}
	return found
}

// keyless is a store that seals without a look at the key. What the guard in front of a
// store does not do itself is broken in front of the guard.
type keyless struct{ shared }

func (s keyless) before(guard driver.Store) driver.Store { return keylessGuard{guard, s} }

type keylessGuard struct {
	driver.Store

	store keyless
}

func (s keylessGuard) SealWorker(ctx context.Context, l hapax.Lease, last int64) error {
	return s.store.SealWorker(ctx, l, last)
}

func (s keyless) SealWorker(ctx context.Context, l hapax.Lease, last int64) error {
	table, name := "workers/"+l.Pool, fmt.Sprintf("%019d", l.Worker)
	old, err := s.Row(ctx, table, name)
	if err != nil || old == nil {
		return errors.Join(err, hapax.ErrLeaseLost)
	}
	var row map[string]any
	d := json.NewDecoder(bytes.NewReader(old))
	d.UseNumber()
	if err := d.Decode(&row); err != nil {
		return err
	}
	if row["token"] != json.Number(fmt.Sprint(l.Token)) || row["mark"] != json.Number(fmt.Sprint(l.Grant.Hi)) || last < 0 || last > l.Grant.Hi {
		return hapax.ErrLeaseLost
	}
	row["mark"], row["from"], row["token"] = last, last, l.Token+1
	delete(row, "key_hash")
	next, err := json.Marshal(row)
	if err != nil {
		return err
	}
	_, err = s.SwapRow(ctx, table, name, old, next)
	return err
}

// TestAdversaryFindsWhatIsBroken: the same adversary does harm where a rule is
// missing.
func TestAdversaryFindsWhatIsBroken(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation")
	}
	defining := evilLease
	defining.Scopes = []string{"lease", "admin"}
	for name, broken := range map[string]struct {
		serve func(*memstore.Store) driver.Store
		evil  auth.TokenConfig
	}{
		"the key is not compared":       {func(s *memstore.Store) driver.Store { return keyless{shared{s}} }, evilLease},
		"whoever leases defines a line": {func(s *memstore.Store) driver.Store { return shared{s} }, defining},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // it needs some luck
				store := memstore.New()
				l, nodes, _ := attack(t, store, broken.serve(store), broken.evil, 5000)
				if found := violations(t, store, l, nodes); len(found) > 0 {
					t.Log(found[0])
					return
				}
			}
			t.Error("the adversary has done no harm")
		})
	}
}
