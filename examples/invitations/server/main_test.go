package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/strategy"
)

// TestMain is the program itself where the test starts it as a process.
func TestMain(m *testing.M) {
	if os.Getenv("INVITATIONS_SERVE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A process is the program, running.
type process struct{ http, redis string }

var serving = regexp.MustCompile(`"serving".*"http":"http://([^"]+)".*"resp":"([^"]+)"`)

func start(t *testing.T, data string) process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "--config", "hapax.yaml", "--data", data, "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--log-format", "json")
	cmd.Env = append(os.Environ(), "INVITATIONS_SERVE=1")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		<-drained
		if err := cmd.Wait(); err != nil {
			t.Errorf("told to stop, the program ended with %v", err)
		}
	})
	at := make(chan process, 1)
	go func() {
		defer close(drained)
		defer close(at)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := serving.FindStringSubmatch(lines.Text()); m != nil {
				at <- process{m[1], m[2]}
			} else {
				t.Log(lines.Text())
			}
		}
	}()
	p, ok := <-at
	if !ok {
		t.Fatal("the program ended")
	}
	return p
}

// curl asks as the command does, and returns status and body.
func (p process) curl(t *testing.T, method, path string) (int, string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "curl", "-sS", "-X", method, "-w", "\n%{http_code}", "http://"+p.http+path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at := bytes.LastIndexByte(out, '\n')
	status := 0
	for _, digit := range string(out[at+1:]) {
		status = 10*status + int(digit-'0')
	}
	return status, string(out[:at])
}

func (p process) grpc() hapaxv1connect.IssueServiceClient {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	h := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	return hapaxv1connect.NewIssueServiceClient(h, "http://"+p.http, connect.WithGRPC())
}

// TestThroughEveryProtocol takes numbers of the strategy, and sees a plugin's veto and
// another's panic, with curl, a gRPC client, the Go client and a Redis client.
func TestThroughEveryProtocol(t *testing.T) {
	data := t.TempDir()
	var got []hapax.ID
	t.Run("all", func(t *testing.T) {
		p := start(t, data)
		t.Run("curl", func(t *testing.T) { got = append(got, throughCurl(t, p)...) })
		t.Run("gRPC", func(t *testing.T) { got = append(got, throughGRPC(t, p)...) })
		t.Run("SDK", func(t *testing.T) { got = append(got, throughSDK(t, p)...) })
		t.Run("Redis", func(t *testing.T) { got = append(got, throughRedis(t, p)...) })
	})
	// Started anew, the program goes on in the list, to its end.
	p := start(t, data)
	for {
		status, body := p.curl(t, "GET", "/v1/tags/beta/next")
		if status != http.StatusOK {
			if status != http.StatusInsufficientStorage || !strings.Contains(body, "all 10 codes are handed out") {
				t.Errorf("at the end: %d %s", status, body)
			}
			break
		}
		id, err := hapax.ParseID(body)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, id)
	}
	slices.Sort(got)
	want := slices.Sorted(slices.Values(codes))
	if !slices.Equal(got, want) {
		t.Errorf("handed out were %v of %v", got, want)
	}
}

func throughCurl(t *testing.T, p process) []hapax.ID {
	status, body := p.curl(t, "GET", "/v1/tags/beta/next")
	id, err := hapax.ParseID(body)
	if status != http.StatusOK || err != nil {
		t.Fatalf("%d %s", status, body)
	}
	var problem struct{ Code, Plugin, Reason, Hook, Detail string }
	for _, c := range []struct {
		path         string
		status       int
		code, plugin string
	}{
		{"/v1/tags/beta/ids?count=4", http.StatusForbidden, "rejected", "few"},
		{"/v1/tags/gala/ids", http.StatusInternalServerError, "plugin_failed", "seating"},
	} {
		status, body := p.curl(t, "POST", c.path)
		if err := json.Unmarshal([]byte(body), &problem); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if status != c.status || problem.Code != c.code || problem.Plugin != c.plugin {
			t.Errorf("%s: %d %s", c.path, status, body)
		}
		if c.plugin == "few" && problem.Reason != "you may have 3 invitations at a time, and not 4" {
			t.Errorf("the veto's words are %q", problem.Reason)
		}
		if strings.Contains(body, "nil map") {
			t.Errorf("a panic's words are the log's: %s", body)
		}
	}
	return []hapax.ID{id}
}

func throughGRPC(t *testing.T, p process) []hapax.ID {
	c := p.grpc()
	res, err := c.Next(t.Context(), &hapaxv1.NextRequest{Tag: "beta", Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		req          *hapaxv1.NextRequest
		status       connect.Code
		code, plugin string
	}{
		{&hapaxv1.NextRequest{Tag: "beta", Count: 4}, connect.CodePermissionDenied, "rejected", "few"},
		{&hapaxv1.NextRequest{Tag: "gala"}, connect.CodeInternal, "plugin_failed", "seating"},
	} {
		_, err := c.Next(t.Context(), q.req)
		if connect.CodeOf(err) != q.status {
			t.Errorf("got %v, want %v", err, q.status)
		}
		e, ok := errors.AsType[*connect.Error](err)
		if !ok || len(e.Details()) != 1 {
			t.Fatalf("got %v without a detail", err)
		}
		m, err := e.Details()[0].Value()
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := m.(*hapaxv1.ErrorDetail); !ok || d.GetCode() != q.code || d.GetPlugin() != q.plugin {
			t.Errorf("the detail is %v", m)
		}
	}
	var ids []hapax.ID
	for _, id := range res.GetIds() {
		ids = append(ids, hapax.ID(id))
	}
	return ids
}

func throughSDK(t *testing.T, p process) []hapax.ID {
	c, err := client.Dial(t.Context(), client.Options{}, "http://"+p.http)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id, err := c.Next(t.Context(), "beta")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.NextN(t.Context(), "beta", make([]hapax.ID, 4))
	if veto, ok := errors.AsType[*strategy.VetoError](err); !ok || veto.Plugin != "few" || !errors.Is(err, strategy.ErrRejected) {
		t.Errorf("got %v", err)
	}
	_, err = c.Next(t.Context(), "gala")
	if failure, ok := errors.AsType[*strategy.PluginError](err); !ok || failure.Plugin != "seating" || failure.Hook != "Before" {
		t.Errorf("got %v", err)
	}
	// Leases would go round the strategy.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Allocate(ctx, "beta", 1, ""); !errors.Is(err, hapax.ErrKindMismatch) {
		t.Errorf("a lease: %v", err)
	}
	return []hapax.ID{id}
}

func throughRedis(t *testing.T, p process) []hapax.ID {
	c := redis.NewClient(&redis.Options{Addr: p.redis})
	defer c.Close()
	n, err := c.Incr(t.Context(), "beta").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Do(t.Context(), "HAPAX.NEXT", "beta", "COUNT", "4").Result()
	if want := `REJECTED rejected: plugin "few" refused: you may have 3 invitations at a time, and not 4`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	err = c.Incr(t.Context(), "gala").Err()
	if want := `FAILED plugin_failed: plugin "seating" failed in Before`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	return []hapax.ID{hapax.ID(n)}
}
