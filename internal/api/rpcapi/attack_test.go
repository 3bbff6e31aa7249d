package rpcapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A fortress is a server with a witness and tokens, as strangers meet it.
type fortress struct {
	t       testing.TB
	svc     *service.Service
	store   *memstore.Store
	witness *witness.Witness
	guard   *witness.Guarded
	policy  *auth.Policy
	mux     *http.ServeMux
	url     string
	tokens  map[string]string
	log     *logBuffer
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func fortify(t testing.TB, store *memstore.Store, opts service.Options, tokens map[string]auth.TokenConfig) *fortress {
	t.Helper()
	secrets := map[string]string{}
	for name, c := range tokens {
		secrets[name] = auth.NewToken()
		c.Hash = auth.HashToken(secrets[name])
		tokens[name] = c
	}
	return fortifyNode(t, store, alone{shared{store}}, opts, tokens, secrets)
}

// fortifyNode is one of several servers on a store, with the same tokens.
func fortifyNode(t testing.TB, store *memstore.Store, served driver.Store, opts service.Options, tokens map[string]auth.TokenConfig, secrets map[string]string) *fortress {
	t.Helper()
	w, err := witness.OpenFile(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := witness.Guard(served, w, witness.Options{Heartbeat: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f := &fortress{t: t, store: store, witness: w, guard: g, mux: http.NewServeMux(), tokens: secrets, log: &logBuffer{}}
	patience.Until(t, "the node has joined", func() bool { return g.Status().Ready() })
	opts.Logger = slog.New(slog.NewJSONHandler(f.log, nil))
	var front driver.Store = g
	if broken, ok := served.(interface {
		before(driver.Store) driver.Store
	}); ok {
		front = broken.before(g)
	}
	if f.svc, err = service.New(t.Context(), front, opts); err != nil {
		t.Fatal(err)
	}
	policy, err := auth.NewPolicy(tokens)
	if err != nil {
		t.Fatal(err)
	}
	f.policy = policy
	for pattern, h := range New(f.svc, Options{Policy: policy, Logger: quiet}) {
		f.mux.Handle(pattern, h)
	}
	srv := httptest.NewServer(f.mux)
	f.url = srv.URL
	t.Cleanup(func() {
		srv.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		if err := f.svc.Close(ctx); err != nil && !errors.Is(err, hapax.ErrFenced) { // which is for tests to find
			t.Error(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// alone is a store of one node, which waits for nobody.
type alone struct{ shared }

func (alone) Shared() bool { return false }

// shared is a store of several nodes, which none of them closes.
type shared struct{ *memstore.Store }

func (shared) Close() error { return nil }

func (f *fortress) client(token string) *http.Client {
	return &http.Client{Transport: bearer(f.tokens[token])}
}

func (f *fortress) lease(token string) hapaxv1connect.LeaseServiceClient {
	return hapaxv1connect.NewLeaseServiceClient(f.client(token), f.url)
}

// next takes a number from the server as an honest caller does.
func (f *fortress) next(tag string) hapax.ID {
	f.t.Helper()
	id, err := f.svc.Next(f.t.Context(), tag)
	if err != nil {
		f.t.Fatalf("an honest call for %q: %v", tag, err)
	}
	return id
}

// workers returns the rows of the default pool.
func (f *fortress) workers() []driver.Worker {
	f.t.Helper()
	workers, err := f.store.Workers(f.t.Context(), hapax.DefaultPool)
	if err != nil {
		f.t.Fatal(err)
	}
	return workers
}

var (
	issuer = auth.TokenConfig{}
	lessee = auth.TokenConfig{Scopes: []string{"lease"}, Pools: []string{hapax.DefaultPool}}
)

// TestForgedLeases: whoever has no key extends, seals and learns nothing.
func TestForgedLeases(t *testing.T) {
	f := fortify(t, memstore.New(), service.Options{}, map[string]auth.TokenConfig{"evil": lessee})
	f.next(service.SnowflakeTag)
	before, lines := f.workers(), f.witness.Lines()
	right := before[0]
	evil := f.lease("evil")
	texts := map[int64]map[string]bool{0: {}, right.Mark: {}, math.MaxInt64: {}} // by the mark that the lease claims
	for token := int64(-1); token <= right.Token+3; token++ {
		for _, key := range []string{"", "guess", strings.Repeat("A", 4096)} {
			for _, hi := range []int64{0, right.Mark, math.MaxInt64} {
				forged := &hapaxv1.Lease{Pool: right.Pool, Worker: right.ID, Token: token, Key: key, Holder: right.Holder, Grant: &hapaxv1.Grant{Hi: hi}}
				_, err := evil.ExtendWorker(t.Context(), &hapaxv1.ExtendWorkerRequest{Lease: forged, Term: &hapaxv1.Term{Length: durationpb.New(time.Second)}})
				if err == nil {
					t.Fatalf("extended: token %d, key %.5q, mark %d", token, key, hi)
				}
				if token > 0 {
					texts[hi][err.Error()] = true
				}
				if _, err := evil.SealWorker(t.Context(), &hapaxv1.SealWorkerRequest{Lease: forged, Last: 0}); err == nil {
					t.Fatalf("sealed: token %d, key %.5q, mark %d", token, key, hi)
				}
			}
		}
	}
	for hi, said := range texts {
		if len(said) != 1 {
			t.Errorf("the errors for a lease up to %d tell right from wrong: %v", hi, said)
		}
	}
	for _, worker := range []int64{5000, math.MaxInt64, -1, math.MinInt64, 6} {
		forged := &hapaxv1.Lease{Pool: hapax.DefaultPool, Worker: worker, Token: 1, Key: "guess", Holder: "\n\x1b[31mX", Grant: &hapaxv1.Grant{Hi: math.MaxInt64}}
		if _, err := evil.SealWorker(t.Context(), &hapaxv1.SealWorkerRequest{Lease: forged, Last: math.MaxInt64}); err == nil {
			t.Errorf("sealed worker %d", worker)
		}
	}
	if after := f.workers(); len(after) != 1 || after[0] != right {
		t.Errorf("the workers were %+v, and are %+v", before, after)
	}
	if after := f.witness.Lines(); len(after) != len(lines) {
		t.Errorf("the witness had %v, and has %v", lines, after)
	}
	f.next(service.SnowflakeTag)
}

// TestInventedWorkers: what is said of workers that nobody has leaves no trace.
func TestInventedWorkers(t *testing.T) {
	f := fortify(t, memstore.New(), service.Options{}, map[string]auth.TokenConfig{"evil": lessee})
	f.next(service.SnowflakeTag)
	lines := len(f.witness.Lines())
	evil := f.lease("evil")
	for i := range int64(1000) {
		_, err := evil.ExtendWorker(t.Context(), &hapaxv1.ExtendWorkerRequest{
			Lease: &hapaxv1.Lease{Pool: hapax.DefaultPool, Worker: i * 1_000_003, Token: 1, Key: "k", Grant: &hapaxv1.Grant{}},
			Term:  &hapaxv1.Term{Length: durationpb.New(time.Second)},
		})
		if err == nil {
			t.Fatal("extended an invented worker")
		}
	}
	if n := len(f.witness.Lines()); n != lines || len(f.workers()) != 1 {
		t.Errorf("%d lines in the witness, %d workers; want %d and 1", n, len(f.workers()), lines)
	}
}

// TestGreedyLeases: nobody gets a pool to the end of time, another's worker, a
// pool of a wrong layout, or more workers than its quota.
func TestGreedyLeases(t *testing.T) {
	wide := "time:41,worker:4,sequence:18,unit=1ms,epoch=2024-01-01T00:00:00Z"
	config := lessee
	config.Leases = 3
	config.Pools = []string{hapax.DefaultPool, "wide", "evil*"}
	opts := service.Options{Pools: map[string]service.PoolConfig{"wide": {Layout: wide}}}
	f := fortify(t, memstore.New(), opts, map[string]auth.TokenConfig{"evil": config, "bare": {Scopes: []string{"lease"}}, "app": issuer})
	f.next(service.SnowflakeTag)
	acquire := func(token, pool, layout, holder string, lo, hi int64) (*hapaxv1.Lease, error) {
		res, err := f.lease(token).AcquireWorker(t.Context(), &hapaxv1.AcquireWorkerRequest{
			Pool: pool, Layout: layout, Workers: &hapaxv1.WorkerRange{Lo: lo, Hi: hi}, Holder: holder,
			Term: &hapaxv1.Term{Length: durationpb.New(24 * time.Hour), Ahead: durationpb.New(24 * time.Hour), Behind: durationpb.New(24 * time.Hour)},
		})
		return res.GetLease(), err
	}
	for name, c := range map[string]struct {
		token, pool, layout, holder string
		want                        connect.Code
	}{
		"without the scope":      {"app", hapax.DefaultPool, "", "h", connect.CodePermissionDenied},
		"without the pool":       {"bare", hapax.DefaultPool, "", "h", connect.CodePermissionDenied},
		"a pool made up":         {"evil", "evil-1", "leaf", "h", connect.CodeInvalidArgument},
		"a wrong layout":         {"evil", "wide", "leaf", "h", connect.CodeFailedPrecondition},
		"a holder with controls": {"evil", hapax.DefaultPool, "", "\n\x1b[31mX", connect.CodeInvalidArgument},
		"a holder without end":   {"evil", hapax.DefaultPool, "", strings.Repeat("x", 129), connect.CodeInvalidArgument},
	} {
		if _, err := acquire(c.token, c.pool, c.layout, c.holder, 1, 8); connect.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	held := f.workers()[0].ID
	if _, err := acquire("evil", hapax.DefaultPool, "", "thief", held, held+1); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("the server's own worker: %v", err)
	}
	leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		l, err := acquire("evil", hapax.DefaultPool, "", fmt.Sprint("h", i), 0, 1024)
		if err != nil {
			t.Fatal(err)
		}
		if until := leaf.TimeOf(l.GetGrant().GetHi()); time.Until(until) > hapax.DefaultMaxGrant+time.Second {
			t.Errorf("granted until %v", until)
		}
	}
	if _, err := acquire("evil", hapax.DefaultPool, "", "h4", 0, 1024); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a fourth worker: %v", err)
	}
	f.next(service.SnowflakeTag)
	for _, want := range []string{`"audit":{`, `"token":"evil"`, `"outcome":"refused"`, `"outcome":"done"`, `"address":"127.0.0.1`} {
		if !strings.Contains(f.log.String(), want) {
			t.Errorf("the log has no %s", want)
		}
	}
	for _, secret := range f.tokens {
		if strings.Contains(f.log.String(), secret) {
			t.Error("a token is in the log")
		}
	}
}

// TestNobodyEndsALine: neither by a definition nor by a lease, and what one token
// may create is bounded.
func TestNobodyEndsALine(t *testing.T) {
	config := lessee
	config.NewTags = 5
	other := auth.TokenConfig{Scopes: []string{"lease"}, NumbersPerMinute: 10_000}
	f := fortify(t, memstore.New(), service.Options{}, map[string]auth.TokenConfig{
		"evil": config, "other": other, "admin": {Scopes: []string{"admin", "lease"}},
	})
	firstUse := func(token string, tag *hapaxv1.Tag) error {
		_, err := f.lease(token).FirstUse(t.Context(), &hapaxv1.FirstUseRequest{Tag: tag})
		return err
	}
	for name, tag := range map[string]*hapaxv1.Tag{
		"start":     {Name: "t", Start: math.MaxInt64 - 1<<32 - 1},
		"a start":   {Name: "t", Start: 1000},
		"mark":      {Name: "t", Mark: 1 << 60},
		"step":      {Name: "t", Step: 1 << 40, MaxStep: 1 << 40},
		"delta":     {Name: "t", Delta: 1 << 20},
		"extra":     {Name: "t", Extra: "code: {}"},
		"kind":      {Name: "t", Kind: hapaxv1.Kind_KIND_SNOWFLAKE, Pool: "payments"},
		"snowflake": {Name: "t", Kind: hapaxv1.Kind_KIND_SNOWFLAKE},
	} {
		if err := firstUse("evil", tag); err == nil {
			t.Errorf("first use with %s was taken", name)
		}
	}
	if _, err := f.store.Tag(t.Context(), "t"); hapax.CodeOf(err) != hapax.ErrTagNotFound.Code() {
		t.Errorf("the tag: %v", err)
	}
	if err := firstUse("admin", &hapaxv1.Tag{Name: "t", Start: 1000}); err != nil {
		t.Errorf("an administrator's definition: %v", err)
	}
	created := 0
	for i := range 50 {
		if firstUse("evil", &hapaxv1.Tag{Name: fmt.Sprint("t", i)}) == nil {
			created++
		}
	}
	if created != 5 {
		t.Errorf("%d tags created, want 5", created)
	}
	if err := firstUse("other", &hapaxv1.Tag{Name: "honest"}); err != nil {
		t.Errorf("another token's first use: %v", err)
	}
	evil := f.lease("evil")
	for _, n := range []int64{math.MaxInt64, 1 << 62, 1 << 40, hapax.DefaultMaxStep + 1, -1, math.MinInt64} {
		if _, err := evil.Allocate(t.Context(), &hapaxv1.AllocateRequest{Tag: "t0", N: n}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("a lease of %d: %v", n, err)
		}
	}
	if id := f.next("t0"); id != 1 {
		t.Errorf("the line goes on at %d", id)
	}

	quota := f.lease("other")
	a, err := quota.Allocate(t.Context(), &hapaxv1.AllocateRequest{Tag: "honest", N: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := quota.Allocate(t.Context(), &hapaxv1.AllocateRequest{Tag: "honest", N: 1}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("beyond the quota: %v", err)
	}
	if _, err := quota.HandBack(t.Context(), &hapaxv1.HandBackRequest{Tag: "honest", Grant: a.GetGrant(), Key: a.GetKey(), From: a.GetFrom(), Next: 101}); err != nil {
		t.Fatal(err)
	}
	if _, err := quota.Allocate(t.Context(), &hapaxv1.AllocateRequest{Tag: "honest", N: 9000}); err != nil {
		t.Errorf("after a hand-back: %v", err)
	}
}
