package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/patience"
)

// addresses are where a server listens, as its log tells.
type addresses struct {
	HTTP  string
	Admin string `json:"admin_http"`
	RESP  string
}

func (s *serving) addresses() (a addresses) {
	s.t.Helper()
	for line := range strings.Lines(s.logged()) {
		var msg struct{ Msg string }
		if json.Unmarshal([]byte(line), &msg) == nil && msg.Msg == "serving" {
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return a
}

// newToken has the real command make a token, and returns it and its hash.
func newToken(t *testing.T) (token, hash string) {
	t.Helper()
	found := regexp.MustCompile(`^token: (hapax_[A-Z2-7]{26})\nhash: (sha256:[0-9a-f]{64})\n$`).FindStringSubmatch(ok(t, t.TempDir(), "token", "new"))
	if found == nil {
		t.Fatal("hapax token new printed something else")
	}
	return found[1], found[2]
}

// request makes a request with headers as "Name: value" and returns the status,
// and the stable code of an error.
func request(t *testing.T, client *http.Client, method, address string, headers ...string) (status int, code string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
		} else {
			req.Header.Set(name, value)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var problem struct{ Code string }
	_ = json.Unmarshal(body, &problem) // numbers are no problem
	return resp.StatusCode, problem.Code
}

// protocol issues a number of a tag over one protocol, with a token or without.
type protocol struct {
	name string
	next func(ctx context.Context, token, tag string) error
	want map[string]string // the beginning of the error's text, by its cause
}

// The causes.
const (
	nobody    = "without a token"
	stranger  = "with a wrong token"
	forbidden = "for a tag that is not allowed"
	limited   = "too often"
)

func protocols(a addresses, client *http.Client) []protocol {
	rpc := func(opts ...connect.ClientOption) func(ctx context.Context, token, tag string) error {
		c := hapaxv1connect.NewIssueServiceClient(client, a.HTTP, opts...)
		return func(ctx context.Context, token, tag string) error {
			req := connect.NewRequest(&hapaxv1.NextRequest{Tag: tag})
			ctx, info := connect.NewClientContext(ctx)
			if token != "" {
				info.RequestHeader().Set("Authorization", "Bearer "+token)
			}
			_, err := c.Next(ctx, req.Msg)
			return err
		}
	}
	codes := map[string]string{
		nobody: "unauthenticated: ", stranger: "unauthenticated: ", forbidden: "permission_denied: ", limited: "resource_exhausted: ",
	}
	return []protocol{
		{"HTTP", func(ctx context.Context, token, tag string) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.HTTP+"/v1/tags/"+url.PathEscape(tag)+"/next", http.NoBody)
			if err != nil {
				return err
			}
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return errors.New(resp.Status)
			}
			return nil
		}, map[string]string{nobody: "401", stranger: "401", forbidden: "403", limited: "429"}},
		{"Connect", rpc(), codes},
		{"gRPC", rpc(connect.WithGRPC()), codes},
		{"Redis", func(ctx context.Context, token, tag string) error {
			c := redis.NewClient(&redis.Options{Addr: a.RESP, Password: token, MaxRetries: -1})
			defer c.Close()
			return c.Incr(ctx, tag).Err()
		}, map[string]string{
			nobody: "NOAUTH ", stranger: "WRONGPASS ", forbidden: "NOPERM permission_denied: ", limited: "LIMIT limit_exceeded: ",
		}},
	}
}

// webClient speaks HTTP/1 or, without TLS, HTTP/2 as gRPC needs it.
func webClient(t *testing.T) *http.Client {
	t.Helper()
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2c.CloseIdleConnections)
	return &http.Client{Transport: h2c}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	appToken, appHash := newToken(t)
	slowToken, slowHash := newToken(t)
	rootToken, rootHash := newToken(t)
	wrongToken, _ := newToken(t)
	config := filepath.Join(dir, "hapax.yaml")
	text := fmt.Sprintf(`
log_level: debug
tokens:
  app: {hash: "%s", tags: [orders, team-*]}
  slow: {hash: "%s", rate: 1, burst: 1}
  root: {hash: "%s", scopes: [issue, admin]}
`, appHash, slowHash, rootHash)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--config", config, "--http", "0.0.0.0:0") // tokens allow that
	s.await("tokens can be read on the network")
	a := s.addresses()
	a.HTTP = strings.NewReplacer("0.0.0.0", "127.0.0.1", "[::]", "127.0.0.1").Replace(a.HTTP)
	for _, p := range protocols(a, webClient(t)) {
		t.Run(p.name, func(t *testing.T) {
			patience.Slow(1100 * time.Millisecond) // a client between two requests: the slow token is shared by all protocols
			for _, tag := range []string{"orders", "team-a"} {
				if err := p.next(t.Context(), appToken, tag); err != nil {
					t.Error(err)
				}
			}
			slow := func() error { // one more than the rate allows, whatever the connection itself takes
				for range 20 {
					if err := p.next(t.Context(), slowToken, "orders"); err != nil {
						return err
					}
				}
				return nil
			}
			for cause, err := range map[string]error{
				nobody:    p.next(t.Context(), "", "orders"),
				stranger:  p.next(t.Context(), wrongToken, "orders"),
				forbidden: p.next(t.Context(), appToken, "invoices"),
				limited:   slow(),
			} {
				if err == nil || !strings.HasPrefix(err.Error(), p.want[cause]) {
					t.Errorf("%s: %v, want %s", cause, err, p.want[cause])
				}
			}
		})
	}
	t.Run("commands", func(t *testing.T) {
		if r := run(t, dir, "next", "orders"); r.code != 1 || !strings.Contains(r.err, "a token is needed; give one in $HAPAX_TOKEN") {
			t.Errorf("without a token: %+v", r)
		}
		if r := runWith(t, dir, "", []string{"HAPAX_TOKEN=" + appToken}, "next", "orders"); r.code != 0 {
			t.Errorf("with a token: %+v", r)
		}
		if r := runWith(t, dir, "", []string{"HAPAX_TOKEN=" + appToken}, "tags", "list"); r.code != 1 || !strings.Contains(r.err, `"app" may not list tags`) {
			t.Errorf("with a token for less: %+v", r)
		}
		file := filepath.Join(dir, "token")
		if err := os.WriteFile(file, []byte(rootToken+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ok(t, dir, "tags", "list", "--token-file", file)
	})
	t.Run("nothing secret is told", func(t *testing.T) {
		told := s.logged() + ok(t, dir, "serve", "--config", config, "--print-config",
			"--store", "postgres://hapax:pass@127.0.0.1/x?sslpassword=word")
		for _, secret := range []string{appToken, slowToken, rootToken, wrongToken, ":pass@", "=word"} {
			if strings.Contains(told, secret) {
				t.Errorf("%q is told", secret)
			}
		}
		if !strings.Contains(told, `"msg":"request"`) || !strings.Contains(told, appHash) {
			t.Error("this test looks at the wrong thing")
		}
	})
}

func TestAdminListener(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil, "--admin-http", "127.0.0.1:0")
	a := s.addresses()
	client := &http.Client{}
	for _, route := range []struct {
		method, path string
		public       bool
	}{
		{"GET", "/v1/tags/orders/next", true},
		{"GET", "/v1/tags/orders", true},
		{"GET", "/healthz", true},
		{"GET", "/v1/layouts", true},
		{"DELETE", "/v1/tags/orders", false},
		{"GET", "/v1/pools", false},
		{"GET", "/v1/pools/default/workers", false},
		{"GET", "/metrics", false},
	} {
		status, code := request(t, client, route.method, a.HTTP+route.path)
		if route.public != (status == http.StatusOK) || !route.public && code != "permission_denied" {
			t.Errorf("%s %s: %d %s", route.method, route.path, status, code)
		}
		if status, code = request(t, client, route.method, a.Admin+route.path); status != http.StatusOK {
			t.Errorf("%s %s on the admin listener: %d %s", route.method, route.path, status, code)
		}
	}
	for address, denied := range map[string]bool{a.HTTP: true, a.Admin: false} {
		_, err := hapaxv1connect.NewAdminServiceClient(client, address).ListPools(t.Context(), &hapaxv1.ListPoolsRequest{})
		if got := connect.CodeOf(err) == connect.CodePermissionDenied; got != denied || !denied && err != nil {
			t.Errorf("RPC on %s: %v", address, err)
		}
	}
}

// A web page makes browsers on this machine send what it likes. None of it reaches
// a listener on loopback.
func TestForeignPages(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil, "--admin-http", "127.0.0.1:0")
	a := s.addresses()
	foreign := []string{
		"Host: attacker.example", "Host: attacker.example:8080", "Origin: https://attacker.example", "Origin: null",
		"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site",
	}
	client := &http.Client{}
	for _, route := range []struct{ method, url, contentType string }{
		{"GET", a.HTTP + "/v1/tags/orders/next", ""},
		{"POST", a.HTTP + "/v1/tags/orders/ids", "text/plain"},
		{"GET", a.HTTP + "/healthz", ""},
		{"GET", a.Admin + "/metrics", ""},
		{"DELETE", a.Admin + "/v1/tags/orders", ""},
		{"POST", a.HTTP + hapaxv1connect.IssueServiceNextProcedure, "application/json"},
		{"POST", a.HTTP + hapaxv1connect.IssueServiceNextStreamProcedure, "application/connect+json"},
		{"POST", a.HTTP + "/grpc.health.v1.Health/Check", "application/grpc"},
		{"POST", a.Admin + hapaxv1connect.AdminServiceListTagsProcedure, "application/json"},
	} {
		for _, header := range foreign {
			if status, code := request(t, client, route.method, route.url, "Content-Type: "+route.contentType, header); status != http.StatusForbidden || code != "permission_denied" {
				t.Errorf("%s %s with %s: %d %s", route.method, route.url, header, status, code)
			}
		}
		if status, _ := request(t, client, route.method, route.url, "Content-Type: "+route.contentType); status == http.StatusForbidden {
			t.Errorf("%s %s is refused without need", route.method, route.url)
		}
	}
	for _, text := range []string{
		"GET / HTTP/1.1\r\nINCR orders\r\n",
		"POST / HTTP/1.1\r\nContent-Type: text/plain\r\n\r\nINCR orders\r\n",
		"PING\r\nHost: localhost:6380\r\n\r\nINCR orders\r\n",
	} {
		c, err := net.Dial("tcp", a.RESP)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := errors.Join(c.SetDeadline(time.Now().Add(patience.Long)), second(c.Write([]byte(text)))); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() || strings.Contains(string(got), ":") {
			t.Errorf("HTTP spoken to the Redis port was answered: %q, %v", got, err)
		}
	}
}

func second(_ int, err error) error { return err }

// SIGHUP revokes a token, on connections that exist, too.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stays, staysHash := newToken(t)
	goes, goesHash := newToken(t)
	comes, comesHash := newToken(t)
	config := filepath.Join(dir, "hapax.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf("tokens: {stays: {hash: '%s'}, goes: {hash: '%s'}}", staysHash, goesHash))
	s := serve(t, dir, nil, "--config", config, "--admin-http", "127.0.0.1:0")
	clients := map[string]*redis.Client{}
	for _, token := range []string{stays, goes} {
		clients[token] = redis.NewClient(&redis.Options{Addr: s.addresses().RESP, Password: token, MaxRetries: -1, PoolSize: 1})
		defer clients[token].Close()
		if err := clients[token].Incr(t.Context(), "orders").Err(); err != nil {
			t.Fatal(err)
		}
	}
	hangUp := func(awaited string) {
		t.Helper()
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		s.await(awaited)
	}
	check := func(revoked bool) {
		t.Helper()
		for token, want := range map[string]int{stays: 200, goes: 200, comes: 401} {
			if revoked && token != stays {
				want = 601 - want
			}
			if status, code := request(t, &http.Client{}, "GET", s.url+"/v1/tags/orders/next", "Authorization: Bearer "+token); status != want {
				t.Errorf("%d %s, want %d", status, code, want)
			}
		}
		if err := clients[stays].Incr(t.Context(), "orders").Err(); err != nil {
			t.Error(err)
		}
		if err := clients[goes].Incr(t.Context(), "orders").Err(); revoked != (err != nil) {
			t.Errorf("on the connection from before: %v", err)
		}
	}
	check(false)
	write("tokens: {stays: {hash: " + stays + "}}")
	hangUp("the configuration cannot be used")
	check(false)
	write(fmt.Sprintf("tokens: {stays: {hash: '%s'}, comes: {hash: '%s'}}", staysHash, comesHash))
	hangUp("configuration read")
	check(true)
	if strings.Contains(s.logged(), stays) {
		t.Error("the log tells a token")
	}
}

// A connection counts for its token until it ends, in HTTP/1 and HTTP/2.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	token, hash := newToken(t)
	bearer := "Authorization: Bearer " + token
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", version), func(t *testing.T) {
			s := serve(t, t.TempDir(), []string{"HAPAX_TOKENS={app: {hash: '" + hash + "', connections: 1}}"})
			next := s.url + "/v1/tags/orders/next"
			var first net.Conn
			dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
				c, err = new(net.Dialer).DialContext(ctx, network, address)
				first = c
				return c, err
			}
			protocols := new(http.Protocols)
			protocols.SetHTTP1(version == 1)
			protocols.SetUnencryptedHTTP2(version == 2)
			one := &http.Client{Transport: &http.Transport{DialContext: dial, Protocols: protocols}}
			two := &http.Client{Transport: &http.Transport{Protocols: protocols}}
			defer two.CloseIdleConnections()
			for range 3 {
				if status, code := request(t, one, "GET", next, bearer); status != http.StatusOK {
					t.Fatalf("%d %s", status, code)
				}
			}
			if status, code := request(t, two, "GET", next, bearer); status != http.StatusTooManyRequests || code != "limit_exceeded" {
				t.Errorf("on a second connection: %d %s", status, code)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			patience.Until(t, "the end of the first connection makes room", func() bool {
				status, _ := request(t, two, "GET", next, bearer)
				return status == http.StatusOK
			}, s)
		})
	}
}

// However a store's URL is wrong, its password is not told.
func TestStorePasswords(t *testing.T) {
	t.Parallel()
	for _, store := range []string{
		"mysql://u:S3CRETPW@h:x/db", "mysql://u:S3CRETPW@h/db?zz=1", "mysql://u:S3%zzCRETPW@h/db",
		"postgres://u:S3CRETPW@h:x/db", "postgres://h/db?password=S3CRETPW&sslmode=bogus",
		"redis://u:S3CRETPW@h:x/y", "redis://:S3CRETPW@h/zz", "redis+sentinel://u:S3CRETPW@h1:1,h2:2/m?bad=1",
		"mongodb://u:S3CRETPW@h:x/?y", "mongodb://u:S3CR/ETPW@h",
		"nonsense://u:S3CRETPW@h",
	} {
		r := run(t, t.TempDir(), "next", "orders", "--store", store)
		if r.code == 0 || strings.Contains(r.out+r.err, "S3") || strings.Contains(r.out+r.err, "ETPW") {
			t.Errorf("%s: %+v", store, r)
		}
	}
}
