package rpcapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

var quiet = slog.New(slog.DiscardHandler)

// node is a server in this process, as it is wired in the real one.
type node struct {
	*httptest.Server

	svc *service.Service
}

func serve(t testing.TB, store driver.Store, opts rpcapi.Options, configure ...func(*http.Server)) *node {
	t.Helper()
	svc, err := service.New(t.Context(), store, service.Options{
		MaxWait: 300 * time.Millisecond, MaxCount: 5000, Logger: quiet,
		Tags: map[string]service.TagConfig{"bulk": {Step: 1_000_000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	opts.Logger = quiet
	mux := http.NewServeMux()
	for pattern, h := range rpcapi.New(svc, opts) {
		mux.Handle(pattern, h)
	}
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	for _, f := range configure {
		f(srv.Config)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		_ = svc.Close(context.Background())
	})
	return &node{srv, svc}
}

// address returns what grpc-go dials.
func (n *node) address() string { return strings.TrimPrefix(n.URL, "http://") }

// h2c speaks HTTP/2 without TLS, which gRPC needs.
func h2c() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p}}
}

// dialGRPC connects as any gRPC program does.
func dialGRPC(t testing.TB, n *node) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(n.address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// detailOf returns the code that an error of connect-go carries.
func detailOf(t testing.TB, err error) *hapaxv1.ErrorDetail {
	t.Helper()
	e, ok := errors.AsType[*connect.Error](err)
	if !ok || len(e.Details()) != 1 {
		t.Fatalf("error is %v; want one with a detail", err)
	}
	m, err := e.Details()[0].Value()
	if err != nil {
		t.Fatal(err)
	}
	return m.(*hapaxv1.ErrorDetail)
}

func TestGRPC(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{})
	conn := dialGRPC(t, n)

	res := &hapaxv1.NextResponse{}
	if err := conn.Invoke(t.Context(), hapaxv1connect.IssueServiceNextProcedure, &hapaxv1.NextRequest{Tag: "orders", Count: 3}, res); err != nil {
		t.Fatal(err)
	}
	if want := []int64{1, 2, 3}; !slices.Equal(res.GetIds(), want) {
		t.Errorf("got %v; want %v", res.GetIds(), want)
	}

	err := conn.Invoke(t.Context(), hapaxv1connect.IssueServiceNextProcedure, &hapaxv1.NextRequest{Tag: "orders", Count: 5001}, res)
	st := status.Convert(err)
	if st.Code() != codes.InvalidArgument || len(st.Details()) != 1 {
		t.Fatalf("a count that is too high: %v", err)
	}
	d, ok := st.Details()[0].(*hapaxv1.ErrorDetail)
	if !ok || d.GetCode() != "invalid_argument" || d.GetField() != "count" || d.GetNumber() != 5001 || d.GetAllowed() != "0 to 5000" {
		t.Errorf("the detail is %v", st.Details()[0])
	}

	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, hapaxv1connect.IssueServiceNextStreamProcedure)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(&hapaxv1.NextStreamRequest{Tag: "bulk", Count: 10_000}), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for {
		m := &hapaxv1.NextStreamResponse{}
		if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.GetIds()...)
	}
	if len(ids) != 10_000 || ids[0] != 1 || ids[9999] != 10_000 || !slices.IsSorted(ids) {
		t.Errorf("%d numbers from %d to %d", len(ids), ids[0], ids[len(ids)-1])
	}
}

func TestHealthAndReflection(t *testing.T) {
	faults := storetest.NewFaults(memstore.New())
	conn := dialGRPC(t, serve(t, faults, rpcapi.Options{}))
	health := grpc_health_v1.NewHealthClient(conn)
	for _, name := range []string{"", hapaxv1connect.IssueServiceName, hapaxv1connect.LeaseServiceName, hapaxv1connect.AdminServiceName} {
		res, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
		if err != nil || res.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", name, res, err)
		}
	}
	if _, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
	faults.Down()
	res, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || res.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("while the store is down: %v, %v", res, err)
	}

	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := &grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(ask); err != nil {
		t.Fatal(err)
	}
	listed, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range listed.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if want := hapaxv1connect.IssueServiceName; !slices.Contains(names, want) {
		t.Errorf("reflection lists %v; want %s among them", names, want)
	}
}

// TestConnect uses connect-go's client in all its protocols.
func TestConnect(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{})
	for name, c := range map[string]struct {
		http    *http.Client
		options []connect.ClientOption
	}{
		"Connect":          {http.DefaultClient, nil},
		"Connect on h2c":   {h2c(), nil},
		"Connect and JSON": {http.DefaultClient, []connect.ClientOption{connect.WithProtoJSON()}},
		"Connect and gzip": {http.DefaultClient, []connect.ClientOption{connect.WithSendGzip()}},
		"gRPC":             {h2c(), []connect.ClientOption{connect.WithGRPC()}},
		"gRPC-Web":         {http.DefaultClient, []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		t.Run(name, func(t *testing.T) {
			tag := "tag of " + name
			issue := hapaxv1connect.NewIssueServiceClient(c.http, n.URL, c.options...)
			res, err := issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: tag})
			if err != nil || !slices.Equal(res.GetIds(), []int64{1}) {
				t.Fatalf("%v, %v", res.GetIds(), err)
			}
			stream, err := issue.NextStream(t.Context(), &hapaxv1.NextStreamRequest{Tag: tag, Count: 5000})
			if err != nil {
				t.Fatal(err)
			}
			var ids []int64
			for stream.Receive() {
				ids = append(ids, stream.Msg().GetIds()...)
			}
			if stream.Err() != nil || len(ids) != 5000 || ids[0] != 2 || !slices.IsSorted(ids) {
				t.Errorf("%d numbers, %v", len(ids), stream.Err())
			}
			_, err = issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: "\n"})
			if d := detailOf(t, err); connect.CodeOf(err) != connect.CodeInvalidArgument || d.GetCode() != "invalid_tag" || d.GetText() != "\n" {
				t.Errorf("error is %v with detail %v", err, d)
			}
		})
	}
}

// What is wrong with a request is told as the client's error, and in JSON a field
// that is not known is wrong.
func TestBrokenRequests(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{})
	for name, c := range map[string]struct {
		procedure, contentType, header, body string
		status                               int
		want                                 string
	}{
		"unknown field":    {hapaxv1connect.IssueServiceNextProcedure, "application/json", "", `{"tag":"x","cuont":5}`, 400, `want an object of tag, count`},
		"with a charset":   {hapaxv1connect.IssueServiceNextProcedure, "application/json; charset=utf-8", "", `{"tag":"x","cuont":5}`, 400, `want an object of tag, count`},
		"no JSON":          {hapaxv1connect.IssueServiceNextProcedure, "application/json", "", ``, 400, `a message without fields is {}`},
		"no time":          {hapaxv1connect.IssueServiceNextProcedure, "application/json", "Connect-Timeout-Ms: 0", `{"tag":"x"}`, 504, `"deadline_exceeded"`},
		"half an envelope": {hapaxv1connect.IssueServiceNextStreamProcedure, "application/connect+json", "", "abc", 200, `"invalid_argument"`},
		"an array":         {hapaxv1connect.IssueServiceNextStreamProcedure, "application/connect+json", "", "\x00\x00\x00\x00\x02[]", 200, `"invalid_argument"`},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.URL+c.procedure, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", c.contentType)
			if key, value, ok := strings.Cut(c.header, ": "); ok {
				r.Header.Set(key, value)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != c.status || !strings.Contains(string(body), c.want) {
				t.Errorf("%d %s, %v; want %d with %s", res.StatusCode, body, err, c.status, c.want)
			}
		})
	}
}

// TestCurl asks for JSON as a shell script would.
func TestCurl(t *testing.T) {
	curl := testservers.Require(t, []string{"curl"})
	n := serve(t, memstore.New(), rpcapi.Options{})
	ask := func(procedure, body string) (head, answer string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), curl, "-sS", "-i", "-H", "Content-Type: application/json", "-d", body, n.URL+procedure).Output()
		if err != nil {
			t.Fatal(err)
		}
		head, answer, _ = strings.Cut(string(out), "\r\n\r\n")
		return head, answer
	}
	head, answer := ask(hapaxv1connect.IssueServiceNextProcedure, `{"tag":"orders","count":2}`)
	var ids struct{ IDs []string }
	if err := json.Unmarshal([]byte(answer), &ids); err != nil || !slices.Equal(ids.IDs, []string{"1", "2"}) {
		t.Errorf("answer is %s: %v; want numbers as strings", answer, err)
	}
	if !strings.Contains(strings.ToLower(head), "cache-control: no-store") {
		t.Errorf("the head is %q; want Cache-Control: no-store", head)
	}
	head, answer = ask(hapaxv1connect.IssueServiceExplainTagProcedure, `{"tag":"nobody"}`)
	var problem struct {
		Code    string
		Details []struct{ Debug struct{ Code string } }
	}
	if err := json.Unmarshal([]byte(answer), &problem); err != nil || problem.Code != "not_found" || len(problem.Details) != 1 || problem.Details[0].Debug.Code != "tag_not_found" {
		t.Errorf("answer is %s: %v", answer, err)
	}
	if !strings.Contains(head, " 404 ") || !strings.Contains(strings.ToLower(head), "cache-control: no-store") {
		t.Errorf("the head is %q", head)
	}
}

func TestExplain(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{})
	issue := hapaxv1connect.NewIssueServiceClient(http.DefaultClient, n.URL)
	id, err := n.svc.Next(t.Context(), service.SnowflakeTag)
	if err != nil {
		t.Fatal(err)
	}
	p, err := issue.Parse(t.Context(), &hapaxv1.ParseRequest{Id: int64(id)})
	if err != nil || p.GetLayout() != "leaf" || time.Since(p.GetTime().AsTime()).Abs() > time.Hour {
		t.Fatalf("%v, %v", p, err)
	}
	for name, req := range map[string]*hapaxv1.ComposeRequest{
		"fields": {Layout: "leaf", Fields: p.GetFields()},
		"time":   {Layout: "leaf", Time: p.GetTime(), Fields: slices.DeleteFunc(slices.Clone(p.GetFields()), func(f *hapaxv1.Field) bool { return f.GetName() == hapax.FieldTime })},
	} {
		back, err := issue.Compose(t.Context(), req)
		if err != nil || back.GetId() != int64(id) {
			t.Errorf("%s: %v, %v; want %d again", name, back, err, id)
		}
	}
	for name, req := range map[string]*hapaxv1.ComposeRequest{
		"many fields": {Layout: "leaf", Fields: make([]*hapaxv1.Field, 9)},
		"two times":   {Layout: "leaf", Time: p.GetTime(), Fields: p.GetFields()},
		"no time":     {Layout: "leaf"},
		"no layout":   {Layout: "x"},
	} {
		if _, err := issue.Compose(t.Context(), req); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v; want invalid_argument", name, err)
		}
	}
	flake, err := issue.ExplainTag(t.Context(), &hapaxv1.ExplainTagRequest{Tag: service.SnowflakeTag})
	if err != nil || flake.GetTag().GetKind() != hapaxv1.Kind_KIND_SNOWFLAKE || flake.GetLayout().GetName() != "leaf" || flake.GetLayout().GetWorkers() != 1024 || flake.Last != nil {
		t.Errorf("%v, %v", flake, err)
	}
	if _, err := n.svc.Next(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	orders, err := issue.ExplainTag(t.Context(), &hapaxv1.ExplainTagRequest{Tag: "orders"})
	if err != nil || orders.GetLast() != 1 || orders.GetLayout() != nil || orders.GetTag().GetStep() != hapax.DefaultStep {
		t.Errorf("%v, %v", orders, err)
	}
	layouts, err := issue.ListLayouts(t.Context(), &hapaxv1.ListLayoutsRequest{})
	if err != nil || len(layouts.GetLayouts()) != len(hapax.Layouts()) {
		t.Errorf("%d layouts, %v", len(layouts.GetLayouts()), err)
	}
}

// TestAdmin: what the console and scripts do; the client's tests do the rest.
func TestAdmin(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{})
	admin := hapaxv1connect.NewAdminServiceClient(http.DefaultClient, n.URL)
	ctx := t.Context()
	for i := range 150 {
		_, err := admin.CreateTag(ctx, &hapaxv1.CreateTagRequest{Tag: &hapaxv1.Tag{Name: fmt.Sprintf("t%03d", i)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := admin.ListTags(ctx, &hapaxv1.ListTagsRequest{After: "t"})
	if err != nil || len(page.GetTags()) != 100 || page.GetTags()[99].GetName() != "t099" {
		t.Errorf("the first page has %d tags, %v", len(page.GetTags()), err)
	}
	for _, limit := range []int32{-1, 1001, math.MaxInt32} {
		if _, err := admin.ListTags(ctx, &hapaxv1.ListTagsRequest{Limit: limit}); detailOf(t, err).GetField() != "limit" {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	for name, tag := range map[string]*hapaxv1.Tag{
		"no tag":  nil,
		"kind":    {Name: "x", Kind: 7},
		"deleted": {Name: "x", Deleted: true},
		"step":    {Name: "x", Step: -1},
	} {
		if _, err := admin.CreateTag(ctx, &hapaxv1.CreateTagRequest{Tag: tag}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v; want invalid_argument", name, err)
		}
	}
	// A code stays where neither is named.
	_, err = admin.UpdateTag(ctx, &hapaxv1.UpdateTagRequest{Name: "t000", Code: "A{id:6}"})
	coded, err2 := admin.UpdateTag(ctx, &hapaxv1.UpdateTagRequest{Name: "t000", Step: new(int64(500))})
	if err := errors.Join(err, err2); err != nil || coded.GetTag().GetExtra() != define.CodeExtra("A{id:6}", "") || coded.GetTag().GetStep() != 500 {
		t.Errorf("with a code: %v, %v", coded, err)
	}
	if _, err := n.svc.Next(ctx, service.SnowflakeTag); err != nil {
		t.Fatal(err)
	}
	pools, err := admin.ListPools(ctx, &hapaxv1.ListPoolsRequest{})
	if err != nil || len(pools.GetPools()) != 1 {
		t.Fatalf("%v, %v", pools, err)
	}
	workers, err := admin.ListWorkers(ctx, &hapaxv1.ListWorkersRequest{Pool: "default"})
	if err != nil || len(workers.GetWorkers()) != 1 {
		t.Fatalf("%v, %v", workers, err)
	}
	retired, err := admin.RetireWorker(ctx, &hapaxv1.RetireWorkerRequest{Pool: "default", Worker: workers.GetWorkers()[0].GetId()})
	if err != nil || retired.GetWorker().GetHolder() != "" || retired.GetWorker().GetToken() <= workers.GetWorkers()[0].GetToken() {
		t.Errorf("%v, %v", retired, err)
	}
}

// TestSizes: requests are bounded before they are looked at.
func TestSizes(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{})
	for name, options := range map[string][]connect.ClientOption{
		"plain":      nil,
		"compressed": {connect.WithSendGzip()},
	} {
		issue := hapaxv1connect.NewIssueServiceClient(http.DefaultClient, n.URL, options...)
		_, err := issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: strings.Repeat("x", 10<<20)})
		if connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("%s: %.200v; want resource_exhausted", name, err)
		}
	}
	for _, count := range []int32{-1, 5001, math.MaxInt32, math.MinInt32} {
		_, err := hapaxv1connect.NewIssueServiceClient(http.DefaultClient, n.URL).Next(t.Context(), &hapaxv1.NextRequest{Tag: "x", Count: count})
		if detailOf(t, err).GetField() != "count" {
			t.Errorf("count %d: %v", count, err)
		}
	}
	for name, body := range map[string][]byte{
		"garbage":        bytes.Repeat([]byte{0xff}, 100),
		"a huge length":  {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"an endless one": bytes.Repeat([]byte{0x80}, 20),
	} {
		resp, err := http.Post(n.URL+hapaxv1connect.IssueServiceNextProcedure, "application/proto", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}

// TestWaiting: a call ends with its own deadline or the server's limit,
// whichever comes first, and tells what it waited for.
func TestWaiting(t *testing.T) {
	faults := storetest.NewFaults(memstore.New())
	n := serve(t, faults, rpcapi.Options{})
	faults.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: storetest.Forever} })
	issue := hapaxv1connect.NewIssueServiceClient(http.DefaultClient, n.URL)
	_, err := issue.Next(t.Context(), &hapaxv1.NextRequest{Tag: "orders"})
	if connect.CodeOf(err) != connect.CodeUnavailable || hapax.ErrorOf(hapax.Code(detailOf(t, err).GetCode())) == nil {
		t.Errorf("the server's limit: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := issue.Next(ctx, &hapaxv1.NextRequest{Tag: "orders"}); connect.CodeOf(err) != connect.CodeDeadlineExceeded && connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("the call's deadline: %v", err)
	}
}

// TestStreamOutlastsTimeouts: the limits that a server sets for requests do not
// end a stream.
func TestStreamOutlastsTimeouts(t *testing.T) {
	const limit = 200 * time.Millisecond
	n := serve(t, memstore.New(), rpcapi.Options{}, func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = limit, limit })
	for name, c := range map[string]struct {
		http    *http.Client
		options []connect.ClientOption
	}{
		"Connect": {http.DefaultClient, nil},
		"gRPC":    {h2c(), []connect.ClientOption{connect.WithGRPC()}},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := hapaxv1connect.NewIssueServiceClient(c.http, n.URL, c.options...).NextStream(t.Context(), &hapaxv1.NextStreamRequest{Tag: "bulk"})
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			for began := time.Now(); time.Since(began) < 5*limit; {
				if !stream.Receive() {
					t.Fatalf("after %v: %v", time.Since(began), stream.Err())
				}
			}
		})
	}
}

// TestStreamEnds: without end, until the caller or the server stops it.
func TestStreamEnds(t *testing.T) {
	stopping := make(chan struct{})
	n := serve(t, memstore.New(), rpcapi.Options{Stopping: stopping})
	issue := hapaxv1connect.NewIssueServiceClient(http.DefaultClient, n.URL)

	ctx, cancel := context.WithCancel(t.Context())
	stream, err := issue.NextStream(ctx, &hapaxv1.NextStreamRequest{Tag: "bulk"})
	if err != nil || !stream.Receive() {
		t.Fatalf("%v, %v", err, stream.Err())
	}
	cancel()
	for stream.Receive() {
	}
	if connect.CodeOf(stream.Err()) != connect.CodeCanceled {
		t.Errorf("the caller stopped it: %v", stream.Err())
	}

	stream, err = issue.NextStream(t.Context(), &hapaxv1.NextStreamRequest{Tag: "bulk"})
	if err != nil || !stream.Receive() {
		t.Fatalf("%v, %v", err, stream.Err())
	}
	close(stopping)
	for stream.Receive() {
	}
	if detailOf(t, stream.Err()).GetCode() != "closed" {
		t.Errorf("the server stopped it: %v", stream.Err())
	}

	stream, err = issue.NextStream(t.Context(), &hapaxv1.NextStreamRequest{Tag: "bulk", Count: -1})
	if err == nil && stream.Receive() || detailOf(t, stream.Err()).GetField() != "count" {
		t.Errorf("a negative count: %v, %v", err, stream.Err())
	}
}
