package rpcapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// administered returns clients of a server with these options.
func administered(t *testing.T, o service.Options) (hapaxv1connect.AdminServiceClient, hapaxv1connect.IssueServiceClient) {
	t.Helper()
	o.Logger = quiet
	svc, err := service.New(t.Context(), memstore.New(), o)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, h := range New(svc, Options{Logger: quiet}) {
		mux.Handle(pattern, h)
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		srv.Close()
		_ = svc.Close(context.Background())
	})
	return hapaxv1connect.NewAdminServiceClient(http.DefaultClient, srv.URL), hapaxv1connect.NewIssueServiceClient(http.DefaultClient, srv.URL)
}

func TestPlugins(t *testing.T) {
	r := strategy.NewRegistry(strategy.Options{})
	quota, err := strategy.Quota("daily", strategy.ByTag, 5, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	quota.Order, quota.Tags = 1<<40, []string{"orders"}
	for _, p := range []strategy.Plugin{quota, strategy.NewRate().Plugin()} {
		if err := r.Use(p); err != nil {
			t.Fatal(err)
		}
	}
	admin, issue := administered(t, service.Options{Strategies: r})
	ctx := t.Context()
	next := func(n int32) error {
		_, err := issue.Next(ctx, &hapaxv1.NextRequest{Tag: "orders", Count: n})
		return err
	}
	if err := next(4); err != nil {
		t.Fatal(err)
	}
	if err := next(2); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("beyond the quota: %v", err)
	}

	list, err := admin.ListPlugins(ctx, &hapaxv1.ListPluginsRequest{})
	if err != nil || len(list.GetPlugins()) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	if p := list.GetPlugins()[1]; p.GetName() != "daily" || !p.GetOn() || p.GetVetoes() != 1 || p.GetOrder() != 1<<31-1 ||
		!slices.Equal(p.GetHooks(), []string{"Before"}) || !slices.Equal(p.GetTags(), []string{"orders"}) {
		t.Errorf("the last plugin is %v", p)
	}
	usage, err := admin.GetUsage(ctx, &hapaxv1.GetUsageRequest{Tag: "orders"})
	if err != nil || len(usage.GetUsages()) != 3 { // of the quota, and of two windows
		t.Fatalf("%v, %v", usage, err)
	}
	if u := usage.GetUsages()[slices.IndexFunc(usage.GetUsages(), func(u *hapaxv1.Usage) bool { return u.GetPlugin() == "daily" })]; u.GetTag() != "orders" || u.GetCurrent() != 4 || u.GetLimit() != 5 || u.GetWindow().AsDuration() != 24*time.Hour {
		t.Errorf("the quota says %v", u)
	}
	if usage, err := admin.GetUsage(ctx, &hapaxv1.GetUsageRequest{Tag: "others"}); err != nil || len(usage.GetUsages()) != 0 {
		t.Errorf("of a tag that was not used: %v, %v", usage, err)
	}

	set, err := admin.SetPlugin(ctx, &hapaxv1.SetPluginRequest{Name: "daily", On: new(false), Order: new(int32(-7))})
	if p := set.GetPlugin(); err != nil || p.GetOn() || p.GetOrder() != -7 {
		t.Errorf("%v, %v", set, err)
	}
	if err := next(2); err != nil {
		t.Errorf("without the quota: %v", err)
	}
	for name, req := range map[string]*hapaxv1.SetPluginRequest{
		"nothing to change": {Name: "daily"},
		"no plugin":         {Name: "hourly", On: new(true)},
		"no name":           {On: new(true)},
	} {
		if _, err := admin.SetPlugin(ctx, req); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v; want invalid_argument", name, err)
		}
	}
}

func TestTraceProcedure(t *testing.T) {
	admin, _ := administered(t, service.Options{})
	if _, err := admin.Trace(t.Context(), &hapaxv1.TraceRequest{Number: "1"}); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("without a ledger: %v", err)
	}
	l, err := ledger.Open(filepath.Join(t.TempDir(), ledger.Dir), ledger.Options{Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	admin, issue := administered(t, service.Options{Ledger: l})
	if _, err := issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: "orders"}); err != nil {
		t.Fatal(err)
	}
	res, err := admin.Trace(t.Context(), &hapaxv1.TraceRequest{Number: "1", Tag: "orders"})
	if err != nil || len(res.GetLines()) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	if line := res.GetLines()[0]; line.GetLine() != "tag/orders" || line.GetVerdict() != "granted" || len(line.GetGrants()) != 1 || line.GetGrants()[0].GetNode() != "a" || res.GetHistory().GetOn() {
		t.Errorf("%v", res)
	}
	for name, req := range map[string]*hapaxv1.TraceRequest{
		"no number":         {},
		"words":             {Number: "one"},
		"a code of no tag":  {Number: "A-1", Code: true},
		"a tag's layout":    {Number: "1", Tag: "orders", Layout: "leaf"},
		"an unknown layout": {Number: "1", Layout: "none"},
	} {
		if _, err := admin.Trace(t.Context(), req); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v; want invalid_argument", name, err)
		}
	}
}
