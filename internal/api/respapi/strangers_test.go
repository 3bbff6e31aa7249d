package respapi

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/testservers"
)

func (s testServer) isOpen(n int) func() bool {
	return func() bool { return len(s.connections()) == n }
}

// A full server tells nobody so in a handshake: a client who never begins one keeps
// neither others out nor the server from stopping.
func TestSilentClientsOfTLS(t *testing.T) {
	front := testservers.NewTLSFront(t, "127.0.0.1:1")
	pair, err := tls.LoadX509KeyPair(front.Cert, front.Key)
	if err != nil {
		t.Fatal(err)
	}
	const places = 20
	srv := newTestServer(t, testConfig{
		opts: Options{MaxConnections: places},
		tls:  &tls.Config{Certificates: []tls.Certificate{pair}},
	})
	dial := func() *tls.Conn {
		t.Helper()
		nc, err := tls.DialWithDialer(&net.Dialer{Timeout: patience.Long}, "tcp", srv.addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.NetConn().Close() })
		_ = nc.SetDeadline(time.Now().Add(patience.Long))
		return nc
	}
	ping := func(nc net.Conn) {
		t.Helper()
		reply := make([]byte, 7)
		if _, err := io.WriteString(nc, "PING\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(nc, reply); err != nil || string(reply) != "+PONG\r\n" {
			t.Fatalf("%q, %v", reply, err)
		}
	}
	silent := func(n int) {
		for range n {
			_ = srv.dial(t)
		}
	}
	silent(3 * places)
	var known []net.Conn
	for range places {
		nc := dial()
		ping(nc)
		known = append(known, nc)
	}
	silent(places) // one too many, each
	for _, nc := range known {
		ping(nc)
		_ = nc.Close()
	}
	silent(places)
	ping(dial())
	patience.Until(t, "the known ones leave", func() bool { return srv.gate.Len() <= places })
	silent(1)
	ctx, cancel := context.WithTimeout(t.Context(), handshakeTimeout/2)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Errorf("silent clients held up the end: %v", err)
	}
}

// Whoever has shown no token has little room and little time, whatever he sends.
func TestStrangersHaveLittle(t *testing.T) {
	start := func(t *testing.T) access {
		srv := access{tokens: map[string]string{"app": auth.NewToken()}}
		srv.testServer = newTestServer(t, testConfig{
			opts: Options{Policy: newPolicy(t, map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(srv.tokens["app"])}})},
			pace: byHand,
		})
		return srv
	}
	t.Run("room", func(t *testing.T) {
		srv := start(t)
		c := srv.dial(t)
		c.send("*2\r\n$4\r\nAUTH\r\n$60000\r\n" + strings.Repeat("a", 2*maxStranger))
		if got := c.expectEnd(); !strings.Contains(got, "before AUTH") {
			t.Errorf("it was told %q", got)
		}
		known := srv.dialAs(t, "app")
		known.send("*2\r\n$4\r\nECHO\r\n$60000\r\n" + strings.Repeat("a", 60000) + "\r\n")
		known.expect("$60000\r\n")
	})
	t.Run("time", func(t *testing.T) {
		srv := start(t)
		c, known := srv.dial(t), srv.dialAs(t, "app")
		for range srv.pace.join + 1 {
			c.send("\r\nNOPE\r\n")
			c.expect("-NOAUTH Authentication required.\r\n")
			srv.look()
		}
		_ = c.expectEnd()
		known.do("PING", "+PONG\r\n")
	})
	t.Run("guesses", func(t *testing.T) {
		srv := start(t)
		c := srv.dial(t)
		c.send(strings.Repeat(frame("AUTH", auth.NewToken()), 50))
		if got := c.expectEnd(); strings.Count(got, "-WRONGPASS") != maxGuesses {
			t.Errorf("answered were %d guesses: %.200s", strings.Count(got, "-WRONGPASS"), got)
		}
	})
}

// Empty lines are no commands, and keep no connection open.
func TestEmptyLinesKeepNothingOpen(t *testing.T) {
	srv := newTestServer(t, testConfig{opts: Options{IdleTimeout: 10 * time.Second}, pace: byHand})
	c := srv.dial(t)
	patience.Until(t, "it is open", srv.isOpen(1))
	for range srv.pace.idle + 1 {
		c.do("ECHO x", "$1\r\nx\r\n")
		srv.look()
	}
	// The end of the last command may be noted any number of looks later.
	patience.Until(t, "empty lines do not keep it open", func() bool {
		_, _ = io.WriteString(c, "\r\n") // it may be closed
		srv.look()
		return srv.isOpen(0)()
	})
	_ = c.expectEnd()
}

// All that connections keep of commands whose end has not come is bounded.
func TestHalfCommandsOfAll(t *testing.T) {
	srv := newTestServer(t, testConfig{pace: byHand, setup: func(s *Server) { s.halves.Store(maxHalvesByAll - 100) }})
	one := srv.dial(t)
	one.send("*2\r\n$4\r\nECHO\r\n$50\r\n")
	patience.Until(t, "it is kept", func() bool { return srv.halves.Load() > maxHalvesByAll-100 })
	two := srv.dial(t)
	two.send("*2\r\n$4\r\nECHO\r\n$200\r\n" + strings.Repeat("a", 150))
	if got := two.expectEnd(); !strings.Contains(got, "half a command") {
		t.Errorf("it was told %q", got)
	}
	one.send(strings.Repeat("b", 50) + "\r\n")
	one.expect("$50\r\n" + strings.Repeat("b", 50) + "\r\n")
	patience.Until(t, "all is given back", func() bool { return srv.halves.Load() == maxHalvesByAll-100 })
}

// The request of a client that has left is given up, however large it is.
func TestGoneClientsPipeline(t *testing.T) {
	for _, name := range []string{"commands", "transaction"} {
		t.Run(name, func(t *testing.T) {
			srv := newTestServer(t, testConfig{service: service.Options{MaxWait: time.Hour, NoAutoCreate: false}})
			srv.store.Down()
			defer srv.store.Up()
			var pipeline strings.Builder
			for i := range 1500 {
				pipeline.WriteString(frame("INCR", "orders"+strings.Repeat("x", i%2)))
			}
			text := pipeline.String()
			if name == "transaction" {
				text = frame("MULTI") + text + frame("EXEC")
			}
			const clients = 49
			var gone []*testClient
			for range clients {
				c := srv.dial(t)
				c.send(text)
				gone = append(gone, c)
			}
			if name == "transaction" {
				for _, c := range gone {
					c.expect("+OK\r\n")
				}
			}
			patience.Until(t, "they wait", func() bool {
				busy := 0
				for _, conn := range srv.connections() {
					if conn.state.Load()&(1<<phaseBits-1) == phaseBusy {
						busy++
					}
				}
				return busy == clients
			})
			for _, c := range gone {
				_ = c.Close()
			}
			patience.Until(t, "they are given up", srv.isOpen(0))
		})
	}
}

// A connection whose token was revoked may show another.
func TestNewTokenAfterRevocation(t *testing.T) {
	old, next := auth.NewToken(), auth.NewToken()
	policy := newPolicy(t, map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(old)}})
	srv := newTestServer(t, testConfig{opts: Options{Policy: policy}})
	c := srv.dial(t)
	c.do("AUTH "+old, "+OK\r\n")
	if err := policy.Replace(map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(next)}}); err != nil {
		t.Fatal(err)
	}
	c.do("INCR orders", "-NOAUTH Authentication required.\r\n")
	c.do("AUTH "+next, "+OK\r\n")
	c.do("INCR orders", ":1\r\n")
}
