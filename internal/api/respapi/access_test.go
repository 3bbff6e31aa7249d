package respapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

func newPolicy(t testing.TB, tokens map[string]auth.TokenConfig) *auth.Policy {
	t.Helper()
	p, err := auth.NewPolicy(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// access is a server with tokens, by name.
type access struct {
	testServer
	tokens map[string]string
}

func newAccess(t testing.TB, configs map[string]auth.TokenConfig) access {
	t.Helper()
	tokens := map[string]string{}
	for name, c := range configs {
		tokens[name] = auth.NewToken()
		c.Hash = auth.HashToken(tokens[name])
		configs[name] = c
	}
	return access{newTestServer(t, testConfig{opts: Options{Policy: newPolicy(t, configs)}}), tokens}
}

func (a access) dialAs(t testing.TB, name string) *testClient {
	t.Helper()
	c := a.dial(t)
	c.do("AUTH "+name+" "+a.tokens[name], "+OK\r\n")
	return c
}

func TestPermissions(t *testing.T) {
	srv := newAccess(t, map[string]auth.TokenConfig{
		"all":     {},
		"orders":  {Tags: []string{"ord*"}},
		"admin":   {Scopes: []string{"admin"}},
		"monitor": {Scopes: []string{"metrics"}},
	})
	const issue, show, list = "take numbers of the tag", "see the tag", "list tags"
	for _, tt := range []struct {
		who, command, denied string // denied: what the error says; empty: it is allowed
	}{
		{"all", "INCR x", ""},
		{"all", "HAPAX.TAGS", ""},
		{"orders", "INCR orders", ""},
		{"orders", "INCRBY orders 2", ""},
		{"orders", "HAPAX.NEXT orders", ""},
		{"orders", "GET orders", ""},
		{"orders", "PING", ""},
		{"orders", "HAPAX.PARSE 1", ""},
		{"orders", "INCR x", issue},
		{"orders", "INCRBY x 2", issue},
		{"orders", "HAPAX.NEXT x COUNT 2", issue},
		{"orders", "GET x", show},
		{"orders", "HAPAX.TAGS", list},
		{"admin", "INCR x", issue},
		{"admin", "INCRBY x 2", issue},
		{"admin", "GET x", ""},
		{"admin", "HAPAX.TAGS", ""},
		{"monitor", "INCR x", issue},
		{"monitor", "GET x", show},
		{"monitor", "HAPAX.TAGS", list},
		{"monitor", "PING", ""},
	} {
		t.Run(tt.who+" "+tt.command, func(t *testing.T) {
			c := srv.dialAs(t, tt.who)
			c.send(frame(strings.Fields(tt.command)...))
			got := c.line()
			denied := strings.HasPrefix(got, "-NOPERM permission_denied: ") && strings.Contains(got, tt.denied)
			if tt.denied == "" && strings.HasPrefix(got, "-") || tt.denied != "" && !denied {
				t.Error(got)
			}
		})
	}
}

// Every command that names a tag, or all of them, asks for a permission.
func TestEveryCommandAsks(t *testing.T) {
	for name, cmd := range commands {
		if asks := cmd.needs != auth.Nothing; asks != (cmd.key > 0 || name == "HAPAX.TAGS") {
			t.Errorf("%s asks for a permission: %t", name, asks)
		}
	}
}

// A pipeline is no way around the rate.
func TestRateLimit(t *testing.T) {
	srv := newAccess(t, map[string]auth.TokenConfig{"slow": {Rate: 1, Burst: 4}, "fast": {}})
	c := srv.dialAs(t, "slow") // AUTH comes before the token counts
	c.send(strings.Repeat(frame("INCR", "orders"), 5))
	c.expect(":1\r\n:2\r\n:3\r\n:4\r\n-LIMIT limit_exceeded: \"slow\" is limited to 1 requests a second\r\n")
	srv.dialAs(t, "fast").do("INCR orders", ":5\r\n")
}

// A pipeline gets what is left of the quota, in any form, and no more.
func TestQuotaOfNumbers(t *testing.T) {
	const limited = "-LIMIT limit_exceeded: \"poor\" is limited to 10 numbers a day\r\n"
	for name, tt := range map[string]struct{ send, expect string }{
		"a run":         {strings.Repeat(frame("INCR", "orders"), 12), ":1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n:10\r\n" + limited + limited},
		"in a row":      {frame("INCRBY", "orders", "8") + frame("INCRBY", "orders", "3") + frame("INCRBY", "orders", "2"), ":8\r\n" + limited + ":10\r\n"},
		"several":       {frame("HAPAX.NEXT", "orders", "COUNT", "11") + frame("HAPAX.NEXT", "orders", "COUNT", "2"), limited + "*2\r\n:1\r\n:2\r\n"},
		"a transaction": {frame("MULTI") + frame("INCRBY", "orders", "9") + strings.Repeat(frame("INCR", "orders"), 2) + frame("EXEC"), "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:9\r\n:10\r\n" + limited},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newAccess(t, map[string]auth.TokenConfig{"poor": {NumbersPerDay: 10}})
			c := srv.dialAs(t, "poor")
			c.send(tt.send)
			c.expect(tt.expect)
		})
	}
}

func TestConnectionLimit(t *testing.T) {
	srv := newAccess(t, map[string]auth.TokenConfig{"app": {Connections: 1}})
	one := srv.dialAs(t, "app")
	two := srv.dial(t)
	two.do("AUTH "+srv.tokens["app"], "-LIMIT limit_exceeded: \"app\" is limited to 1 connections\r\n")
	two.do("INCR orders", "-NOAUTH Authentication required.\r\n")
	one.do("AUTH "+srv.tokens["app"], "+OK\r\n") // it counts once
	one.do("QUIT", "+OK\r\n")
	one.expectEnd()
	patience.Await(t, "a place, as the first connection has ended", func() (string, error) {
		two.send(frame("AUTH", srv.tokens["app"]))
		return two.line(), nil
	}, func(got string) bool { return got == "+OK" })
}

// Over TLS an error still arrives before the end, and half a handshake is cut off
// by Shutdown.
func TestTLS(t *testing.T) {
	front := testservers.NewTLSFront(t, "127.0.0.1:1")
	pair, err := tls.LoadX509KeyPair(front.Cert, front.Key)
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	svc, err := service.New(t.Context(), memstore.New(), service.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Close(context.Background())
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	srv := New(svc, Options{Logger: logger})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience.Long)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, frame("INCR", "orders"), "*1\r\n$99999999\r\n")
	got := make([]byte, 0, 100)
	for buf := make([]byte, 100); ; {
		n, err := c.Read(buf)
		if got = append(got, buf[:n]...); err != nil {
			break
		}
	}
	if !strings.HasPrefix(string(got), ":1\r\n-ERR Protocol error") {
		t.Errorf("got %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_ = srv.Shutdown(ctx) // its error tells that the silent one was cut off
	if err := <-served; err != nil {
		t.Error(err)
	}
}
