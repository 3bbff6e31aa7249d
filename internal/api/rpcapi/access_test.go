package rpcapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/memstore"
)

// methods yields every procedure with an empty request.
func methods(t testing.TB) map[string]proto.Message {
	t.Helper()
	all := map[string]proto.Message{}
	for _, name := range services {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Fatal(err)
		}
		list := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range list.Len() {
			m := list.Get(i)
			input, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
			if err != nil {
				t.Fatal(err)
			}
			all["/"+name+"/"+string(m.Name())] = input.New().Interface()
		}
	}
	return all
}

// TestEveryProcedureHasAPermission, and its request says what the permission is
// for.
func TestEveryProcedureHasAPermission(t *testing.T) {
	all := methods(t)
	for procedure, m := range all {
		permission, ok := permissions[procedure]
		if !ok {
			t.Errorf("%s has no permission", procedure)
		}
		switch permission {
		case auth.Nothing, auth.List, auth.ListPools, auth.Watch, auth.Operate:
			continue
		}
		fill(m.ProtoReflect())
		if nameIn(m) != "mine" {
			t.Errorf("%s: the name in %v is %q", procedure, m, nameIn(m))
		}
	}
	if len(all) != len(permissions) {
		t.Errorf("%d procedures, %d permissions", len(all), len(permissions))
	}
}

// fill writes a name wherever there is one, and into the messages below.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList(), f.IsMap():
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("mine"))
		case f.Message() != nil && f.Message().ParentFile().Package() == "hapax.v1":
			fill(m.Mutable(f).Message())
		}
	}
}

// serveFor returns the address of a server that knows one token.
func serveFor(t *testing.T, config auth.TokenConfig) (url, token string) {
	t.Helper()
	token = auth.NewToken()
	config.Hash = auth.HashToken(token)
	policy, err := auth.NewPolicy(map[string]auth.TokenConfig{"app": config})
	if err != nil {
		t.Fatal(err)
	}
	svc, err := service.New(t.Context(), memstore.New(), service.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, h := range New(svc, Options{Policy: policy, Logger: quiet}) {
		mux.Handle(pattern, h)
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		srv.Close()
		_ = svc.Close(context.Background())
	})
	return srv.URL, token
}

// bearer sends a token with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// TestNobodyGetsInWithoutAToken tries every procedure.
func TestNobodyGetsInWithoutAToken(t *testing.T) {
	url, _ := serveFor(t, auth.TokenConfig{Scopes: []string{"issue", "admin"}})
	for procedure := range methods(t) {
		for name, client := range map[string]*http.Client{
			"no token":    http.DefaultClient,
			"wrong token": {Transport: bearer(auth.NewToken())},
		} {
			if strings.HasSuffix(procedure, "/NextStream") {
				continue // below
			}
			resp, err := client.Post(url+procedure, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with %s: %s", procedure, name, resp.Status)
			}
		}
	}
	if err := firstOf(t, http.DefaultClient, url, "orders"); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("NextStream: %v", err)
	}
	resp, err := http.Post(url+"/grpc.health.v1.Health/Check", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("health: %s", resp.Status)
	}
}

// firstOf takes the first batch of a stream.
func firstOf(t *testing.T, client *http.Client, url, tag string) error {
	t.Helper()
	stream, err := hapaxv1connect.NewIssueServiceClient(client, url).NextStream(t.Context(), &hapaxv1.NextStreamRequest{Tag: tag, Count: 1})
	if err != nil {
		return err
	}
	defer stream.Close()
	stream.Receive()
	return stream.Err()
}

func TestPermissions(t *testing.T) {
	url, token := serveFor(t, auth.TokenConfig{Scopes: []string{"issue", "lease"}, Tags: []string{"orders"}, Rate: 1000, Burst: 20})
	client := &http.Client{Transport: bearer(token)}
	issue := hapaxv1connect.NewIssueServiceClient(client, url)
	lease := hapaxv1connect.NewLeaseServiceClient(client, url)
	admin := hapaxv1connect.NewAdminServiceClient(client, url)
	for name, c := range map[string]struct {
		err  func() error
		want connect.Code // 0: none
	}{
		"own tag":     {func() error { _, err := issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: "orders"}); return err }, 0},
		"own stream":  {func() error { return firstOf(t, client, url, "orders") }, 0},
		"other tag":   {func() error { _, err := issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: "users"}); return err }, connect.CodePermissionDenied},
		"other first": {func() error { return firstOf(t, client, url, "users") }, connect.CodePermissionDenied},
		"lease": {func() error {
			_, err := lease.Allocate(t.Context(), &hapaxv1.AllocateRequest{Tag: "users"})
			return err
		}, connect.CodePermissionDenied},
		"a worker": {func() error {
			_, err := lease.AcquireWorker(t.Context(), &hapaxv1.AcquireWorkerRequest{Pool: "default"})
			return err
		}, connect.CodePermissionDenied},
		"a seal": {func() error {
			_, err := lease.SealWorker(t.Context(), &hapaxv1.SealWorkerRequest{Lease: &hapaxv1.Lease{Pool: "default"}})
			return err
		}, connect.CodePermissionDenied},
		"administration": {func() error {
			_, err := admin.DeleteTag(t.Context(), &hapaxv1.DeleteTagRequest{Name: "orders"})
			return err
		}, connect.CodePermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.err(); err == nil && c.want != 0 || err != nil && connect.CodeOf(err) != c.want {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	url, token := serveFor(t, auth.TokenConfig{Rate: 1, Burst: 1})
	issue := hapaxv1connect.NewIssueServiceClient(&http.Client{Transport: bearer(token)}, url)
	for range 100 { // one may get through each second
		_, err := issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: "orders"})
		if err == nil {
			continue
		}
		e, ok := errors.AsType[*connect.Error](err)
		if !ok || e.Code() != connect.CodeResourceExhausted || e.Meta().Get("Retry-After") != "1" {
			t.Errorf("got %v", err)
		}
		return
	}
	t.Error("no call was refused")
}

// A stream gets what is left of the quota, and then ends.
func TestQuotaOfAStream(t *testing.T) {
	const quota = 5000 // more than one batch
	url, token := serveFor(t, auth.TokenConfig{NumbersPerDay: quota})
	issue := hapaxv1connect.NewIssueServiceClient(&http.Client{Transport: bearer(token)}, url)
	for round, want := range []int{quota, 0} {
		stream, err := issue.NextStream(t.Context(), &hapaxv1.NextStreamRequest{Tag: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for stream.Receive() {
			got += len(stream.Msg().GetIds())
		}
		if err := stream.Err(); got != want || connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("stream %d: %d numbers, %v", round, got, err)
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A stream ends when its token is revoked, or has expired.
func TestRevokedStream(t *testing.T) {
	for name, config := range map[string]auth.TokenConfig{
		"revoked": {},
		"expired": {Expires: time.Now().Add(2 * time.Second).Format(time.RFC3339Nano)},
	} {
		t.Run(name, func(t *testing.T) {
			f := fortify(t, memstore.New(), service.Options{}, map[string]auth.TokenConfig{"app": config})
			stream, err := hapaxv1connect.NewIssueServiceClient(f.client("app"), f.url).NextStream(t.Context(), &hapaxv1.NextStreamRequest{Tag: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if !stream.Receive() {
				t.Fatal(stream.Err())
			}
			if name == "revoked" {
				if err := f.policy.Replace(map[string]auth.TokenConfig{"other": {Hash: auth.HashToken(auth.NewToken())}}); err != nil {
					t.Fatal(err)
				}
			}
			for stream.Receive() {
			}
			if err := stream.Err(); connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// counted notes the codes of errors.
type counted []hapax.Code

func (c *counted) Failed(_ string, err error)        { *c = append(*c, hapax.CodeOf(err)) }
func (c *counted) Refused(_ string, code hapax.Code) { *c = append(*c, code) }

func (c *counted) Attempted(context.Context, string, error, ...any) {}

func (c *counted) Route(string, string) *health.Route { return nil }

// What a client does wrong is no error of the server's: not that it asked for the
// health of a service that is not there, left, or gave no time.
func TestWhatCountsAsFailed(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		err  error
		want hapax.Code
	}{
		{"of the service", t.Context(), hapax.ErrTagDeleted, "tag_deleted"},
		{"a panic", t.Context(), wire.Error(hapax.ErrInternal), "internal"},
		{"said already", t.Context(), connect.NewError(connect.CodeNotFound, errors.New("no such service")), ""},
		{"the client is gone", gone, hapax.ErrStoreUnavailable, ""},
		{"no time at all", t.Context(), context.DeadlineExceeded, codeDeadline},
		{"a wait that ended", t.Context(), &hapax.WaitError{Cause: hapax.ErrNoWorker, Context: context.DeadlineExceeded}, "no_worker"},
		{"none", t.Context(), nil, ""},
	} {
		var got counted
		err := boundary{counter: &got}.translate(tt.ctx, tt.err)
		if want := (counted{tt.want}); tt.want == "" && len(got) > 0 || tt.want != "" && !slices.Equal(got, want) {
			t.Errorf("%s: counted is %q, want %q", tt.name, got, tt.want)
		}
		if (connect.CodeOf(err) == connect.CodeInternal) != (tt.want == "internal") && err != nil {
			t.Errorf("%s: told is %v", tt.name, err)
		}
	}
}
