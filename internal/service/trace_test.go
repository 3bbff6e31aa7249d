package service

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/strategy"
)

// withLedger opens a service with a ledger, and a history where that is asked for.
func withLedger(t *testing.T, store driver.Store, o Options, history bool, plugins ...strategy.Plugin) *Service {
	t.Helper()
	dir := t.TempDir()
	var err error
	if o.Ledger, err = ledger.Open(filepath.Join(dir, ledger.Dir), ledger.Options{Node: "a"}); err != nil {
		t.Fatal(err)
	}
	if history {
		h := strategy.NewHistory(strategy.HistoryOptions{Caller: CallerOf})
		if err := h.Open(filepath.Join(dir, strategy.HistoryDir), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		plugins = append(plugins, h.Plugin("history", 1000))
	}
	t.Cleanup(func() { _ = o.Ledger.Close() })
	if o.Strategies == nil {
		o.Strategies = newStrategies(t, plugins...)
	}
	return open(t, store, o)
}

// line is what the trace of a number on one line must be.
func traceLine(t *testing.T, s *Service, req TraceRequest) api.TraceLine {
	t.Helper()
	tr, err := s.Trace(t.Context(), req)
	if err != nil || len(tr.Lines) != 1 {
		t.Fatalf("%+v: %+v, %v", req, tr, err)
	}
	return tr.Lines[0]
}

func TestTrace(t *testing.T) {
	beside := open(t, memstore.New(), Options{})
	mustCreate(t, beside, hapax.Tag{Name: "foreign"})
	s := withLedger(t, memstore.New(), Options{
		Tags: map[string]TagConfig{
			"coded":    {Code: "C-{id:6}{check}"},
			"invoices": {Code: "{yyyy}-{seq:6}{check}", Zone: "UTC"},
			"odd":      {},
		},
		Beside: map[string]*Service{"leaf table": beside},
	}, true, newScramble(t, "a-key-of-16-bytes"))
	ctx := auth.NewContext(t.Context(), nil, "192.0.2.1:5")
	take := func(tag string) hapax.ID {
		t.Helper()
		id, err := s.Next(ctx, tag)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	want := func(req TraceRequest, name string, verdict api.Verdict, why string) api.TraceLine {
		t.Helper()
		l := traceLine(t, s, req)
		if l.Name != name || l.Verdict != verdict || !strings.Contains(l.Why, why) {
			t.Errorf("%+v: %+v, want %s of %s because %q", req, l, verdict, name, why)
		}
		return l
	}
	take("orders")
	want(TraceRequest{Text: "1", Tag: "orders"}, "tag/orders", api.VerdictIssued, "at 192.0.2.1:5")
	want(TraceRequest{Text: "2", Tag: "orders"}, "tag/orders", api.VerdictGranted, "it was not issued")
	want(TraceRequest{Text: "1001", Tag: "orders"}, "tag/orders", api.VerdictNeverGranted, "mark")
	want(TraceRequest{Text: "-1", Tag: "orders"}, "tag/orders", api.VerdictNeverGranted, "begins at 1")
	if _, err := s.Trace(t.Context(), TraceRequest{Text: "1", Tag: "none"}); !errors.Is(err, hapax.ErrTagNotFound) {
		t.Errorf("of a tag that no store has: %v", err)
	}
	want(TraceRequest{Text: "1", Tag: "foreign"}, "leaf table/tag/foreign", api.VerdictNeverGranted, "mark")

	flake := take(SnowflakeTag)
	for _, req := range []TraceRequest{{Tag: SnowflakeTag}, {Layout: "leaf"}, {}} {
		req.Text = flake.String()
		if l := want(req, "worker/default/0", api.VerdictIssued, "at 192.0.2.1:5"); l.Time == nil || l.Layout != "leaf" || l.Grants[0].Token != "1" {
			t.Errorf("%+v: %+v", req, l)
		}
	}
	want(TraceRequest{Text: (flake + 1<<50).String(), Tag: SnowflakeTag}, "worker/default/0", api.VerdictNeverGranted, "mark")
	want(TraceRequest{Text: (flake + 1<<13).String(), Tag: SnowflakeTag}, "worker/default/2", api.VerdictNeverGranted, "never used")

	shown := take("coupons")
	if l := want(TraceRequest{Text: shown.String(), Tag: "coupons"}, "tag/coupons", api.VerdictIssued, "192.0.2.1"); l.Shown == nil || *l.Shown != 1 {
		t.Errorf("%d is shown for %v", shown, l.Shown)
	}

	coded, err := s.NextCodes(ctx, "coded", 1)
	if err != nil {
		t.Fatal(err)
	}
	want(TraceRequest{Text: coded.Codes[0], Code: true, Tag: "coded"}, "tag/coded", api.VerdictIssued, "192.0.2.1")
	dated, err := s.NextCodes(ctx, "invoices", 2)
	if err != nil {
		t.Fatal(err)
	}
	line := "tag/invoices@@" + dated.Period
	want(TraceRequest{Text: dated.Codes[1], Code: true, Tag: "invoices"}, line, api.VerdictIssued, "192.0.2.1")
	want(TraceRequest{Text: "2", Tag: "invoices"}, line, api.VerdictIssued, "192.0.2.1")
	want(TraceRequest{Text: "5000", Tag: "invoices"}, "tag/invoices", api.VerdictUnknown, "restart")

	for _, req := range []TraceRequest{
		{Text: "x"}, {Text: "1", Tag: "a", Layout: "leaf"}, {Text: "1", Code: true}, {Text: "nonsense", Code: true, Tag: "coded"}, {Text: "1", Layout: "nope"},
	} {
		if tr, err := s.Trace(t.Context(), req); err == nil {
			t.Errorf("%+v: %+v", req, tr)
		}
	}
	bare := open(t, memstore.New(), Options{})
	if _, err := bare.Trace(t.Context(), TraceRequest{Text: "1"}); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("without a ledger: %v", err)
	}
}

// Of a strategy's numbers the grants and the mark tell only where they are the numbers
// granted.
func TestTraceOfStrategies(t *testing.T) {
	mark := func(context.Context, string) (int64, error) { return 500, nil }
	away := func(context.Context, string) (int64, error) { return 0, hapax.ErrStoreUnavailable }
	for name, c := range map[string]struct {
		marks            map[string]func(context.Context, string) (int64, error)
		issued, low, top api.Verdict
	}{
		"made":    {nil, api.VerdictUnknown, api.VerdictUnknown, api.VerdictUnknown},
		"granted": {map[string]func(context.Context, string) (int64, error){"tens": mark}, api.VerdictElsewhere, api.VerdictGranted, api.VerdictNeverGranted},
		"away":    {map[string]func(context.Context, string) (int64, error){"tens": away}, api.VerdictUnknown, api.VerdictGranted, api.VerdictUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			r := newStrategies(t)
			if err := r.Register("tens", strategy.Func(func(context.Context, hapax.Tag) (hapax.Issuer, error) { return &tens{}, nil })); err != nil {
				t.Fatal(err)
			}
			s := withLedger(t, memstore.New(), Options{Strategies: r, Marks: c.marks, Tags: map[string]TagConfig{"steps": {Strategy: "tens"}}}, false)
			if id, err := s.Next(t.Context(), "steps"); id != 10 || err != nil {
				t.Fatal(id, err)
			}
			grant := hapax.Allocation{Tag: hapax.Tag{Name: "steps"}, Grant: hapax.Grant{Lo: 1, Hi: 5}}
			if err := s.opts.Ledger.Allocated(grant, ledger.By{}, ""); err != nil {
				t.Fatal(err)
			}
			for number, want := range map[string]api.Verdict{"10": c.issued, "3": c.low, "600": c.top} {
				if l := traceLine(t, s, TraceRequest{Text: number, Tag: "steps"}); l.Verdict != want || (len(l.Grants) > 0) != (want == api.VerdictGranted) {
					t.Errorf("%s: %+v, want %s", number, l, want)
				}
			}
		})
	}
}

// A client's leases and what it gives back are recorded with its name; the store's
// trouble costs a trace the store's word, and no more.
func TestTraceOfLeases(t *testing.T) {
	store := storetest.NewFaults(memstore.New())
	s := withLedger(t, store, Options{}, false)
	mustCreate(t, s, hapax.Tag{Name: "orders"})
	ctx := auth.NewContext(t.Context(), nil, "192.0.2.9:1")
	a, err := s.Allocate(ctx, "orders", 100, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.HandBack(ctx, a, 51); err != nil {
		t.Fatal(err)
	}
	for text, verdict := range map[string]api.Verdict{"50": api.VerdictGranted, "51": api.VerdictHandedBack} {
		l := traceLine(t, s, TraceRequest{Text: text, Tag: "orders"})
		if l.Verdict != verdict || len(l.Grants) != 1 || l.Grants[0].Caller != "anonymous" || l.Grants[0].Address != "192.0.2.9:1" {
			t.Errorf("%s: %+v", text, l)
		}
	}
	leaf, err := hapax.ParseLayout("leaf")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.AcquireWorker(ctx, hapax.AcquireRequest{Pool: hapax.DefaultPool, Layout: leaf, Holder: "client", Term: hapax.Term{Length: hapax.DefaultMaxGrant}})
	if err != nil {
		t.Fatal(err)
	}
	id, err := leaf.Compose(hapax.Fields{{Name: "time", Value: w.Grant.Hi - 1}, {Name: "worker", Value: w.Worker}, {Name: "sequence", Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	req := TraceRequest{Text: id.String(), Layout: "leaf"}
	if l := traceLine(t, s, req); l.Verdict != api.VerdictGranted || l.Grants[0].Holder != "client" || l.Grants[0].Caller != "anonymous" {
		t.Errorf("leased: %+v", l)
	}
	if err := s.SealWorker(ctx, w, w.Grant.Lo+1); err != nil {
		t.Fatal(err)
	}
	if l := traceLine(t, s, req); l.Verdict != api.VerdictHandedBack {
		t.Errorf("sealed: %+v", l)
	}
	store.Down()
	defer store.Up()
	if l := traceLine(t, s, TraceRequest{Text: "51", Tag: "orders"}); l.Verdict != api.VerdictHandedBack || !strings.Contains(l.Why, "not known here") {
		t.Errorf("without the store: %+v", l)
	}
}

// A number of a layout gets a verdict wherever it is asked about.
func TestTraceOfALayout(t *testing.T) {
	s := withLedger(t, memstore.New(), Options{Pools: map[string]PoolConfig{"a": {}, "b": {}}}, false)
	verdict := func(number, layout string, want api.Verdict, why string) {
		t.Helper()
		l := traceLine(t, s, TraceRequest{Text: number, Layout: layout})
		if l.Verdict != want || !strings.Contains(l.Why, why) {
			t.Errorf("%s in %s: %+v, want %s because %q", number, layout, l, want, why)
		}
	}
	verdict("3", "leaf", api.VerdictNeverGranted, "no pool has the layout")
	verdict("-1", "leaf", api.VerdictNeverGranted, "has no such number")
	for _, pool := range []string{"a", "b"} {
		if _, err := s.CreatePool(t.Context(), pool, "leaf"); err != nil {
			t.Fatal(err)
		}
	}
	verdict("3", "leaf", api.VerdictNeverGranted, "worker ID")
}

// What a plugin or a strategy makes of the numbers granted is no lie of a node that
// does not have it, nor of a data directory that no server runs in.
func TestTraceWithoutTheMaker(t *testing.T) {
	store := memstore.New()
	r := newStrategies(t, newScramble(t, "a-key-of-16-bytes"))
	if err := r.Register("tens", strategy.Func(func(_ context.Context, _ hapax.Tag) (hapax.Issuer, error) { return &tens{}, nil })); err != nil {
		t.Fatal(err)
	}
	s := withLedger(t, store, Options{Strategies: r, Tags: map[string]TagConfig{"steps": {Strategy: "tens"}}}, false)
	for _, tag := range []string{"coupons", "steps", "plain"} {
		mustNext(t, s, tag)
	}
	if err := s.opts.Ledger.Allocated(hapax.Allocation{Tag: hapax.Tag{Name: "steps"}, Grant: hapax.Grant{Lo: 1, Hi: 5}}, ledger.By{}, `the strategy "tens"`); err != nil {
		t.Fatal(err)
	}
	found, err := s.opts.Ledger.Find(t.Context(), ledger.Query{Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range ledger.Judge(1, "a", found, nil, nil).Lines {
		switch {
		case l.Tag == "plain" && l.Verdict == api.VerdictGranted:
		case l.Tag == "coupons" && l.Verdict == api.VerdictUnknown && strings.Contains(l.Why, "plugin"):
		case l.Tag == "steps" && l.Verdict == api.VerdictUnknown && strings.Contains(l.Why, "tens"):
		default:
			t.Errorf("%+v", l)
		}
	}

	other := open(t, store, Options{Ledger: s.opts.Ledger})
	if tr, err := other.Trace(t.Context(), TraceRequest{Text: "1", Tag: "coupons"}); !errors.Is(err, strategy.ErrPluginMismatch) {
		t.Errorf("on a node without the plugin: %+v, %v", tr, err)
	}
	tr, err := other.Trace(t.Context(), TraceRequest{Text: "1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range tr.Lines {
		if (l.Verdict == api.VerdictGranted) != (l.Tag == "plain") {
			t.Errorf("on a node without the plugin: %+v", l)
		}
	}
	if _, err := s.DeleteTag(t.Context(), "coupons"); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Next":      func() error { _, err := other.Next(t.Context(), "coupons"); return err }(),
		"NextN":     func() error { _, err := other.NextN(t.Context(), "coupons", make([]hapax.ID, 2)); return err }(),
		"Reserve":   func() error { _, err := other.Reserve(t.Context(), "coupons", 2); return err }(),
		"Allocate":  func() error { _, err := other.Allocate(t.Context(), "coupons", 2, ""); return err }(),
		"NextCodes": func() error { _, err := other.NextCodes(t.Context(), "coupons", 2); return err }(),
	} {
		if !errors.Is(err, hapax.ErrTagDeleted) {
			t.Errorf("%s of a deleted tag: %v", name, err)
		}
	}
}
