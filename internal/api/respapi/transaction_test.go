package respapi

import (
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/prometheus/client_golang/prometheus"
)

func TestTransaction(t *testing.T) {
	const (
		ok, queued = "+OK\r\n", "+QUEUED\r\n"
		aborted    = "-EXECABORT Transaction discarded because of previous errors.\r\n"
	)
	srv := newTestServer(t, testConfig{})
	for _, tt := range []struct {
		name  string
		steps []string
	}{
		{"numbers", []string{"MULTI", ok, "INCR a", queued, "incr a", queued, "INCRBY a 10", queued, "HAPAX.NEXT a COUNT 2", queued, "EXEC", "*4\r\n:1\r\n:2\r\n:12\r\n*2\r\n:13\r\n:14\r\n"}},
		{"nothing", []string{"MULTI", ok, "EXEC", "*0\r\n", "INCR b", ":1\r\n"}},
		{"discarded", []string{"MULTI", ok, "INCR c", queued, "DISCARD", ok, "INCR c", ":1\r\n"}},
		{"unknown command", []string{"MULTI", ok, "INCR d", queued, "WATCH d", "-ERR unknown command 'WATCH': " + hints["WATCH"] + "\r\n", "INCR d", queued, "EXEC", aborted, "INCR d", ":1\r\n"}},
		{"too few arguments", []string{"MULTI", ok, "INCRBY e", "-ERR wrong number of arguments for 'incrby' command\r\n", "EXEC", aborted, "INCR e", ":1\r\n"}},
		{"an error at its time", []string{"MULTI", ok, "INCRBY f x", queued, "INCR f", queued, "EXEC", "*2\r\n-" + errNotInteger + "\r\n:1\r\n"}},
		{"nested", []string{"MULTI", ok, "MULTI", "-ERR MULTI calls can not be nested\r\n", "INCR g", queued, "EXEC", "*1\r\n:1\r\n"}},
		{"another protocol in it", []string{"MULTI", ok, "HELLO 3", "-ERR HELLO is not allowed between MULTI and EXEC\r\n", "EXEC", aborted}},
		{"reset", []string{"MULTI", ok, "INCR h", queued, "RESET", "+RESET\r\n", "INCR h", ":1\r\n"}},
		{"without a beginning", []string{"EXEC", "-ERR EXEC without MULTI\r\n", "DISCARD", "-ERR DISCARD without MULTI\r\n"}},
		{"quit", []string{"MULTI", ok, "INCR i", queued, "QUIT", ok}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := srv.dial(t)
			for step := range slices.Chunk(tt.steps, 2) {
				c.do(step[0], step[1])
			}
		})
	}
}

// What a transaction may make the server keep is bounded, and given back.
func TestTransactionIsBounded(t *testing.T) {
	srv := newTestServer(t, testConfig{pace: byHand})
	long := frame("ECHO", strings.Repeat("x", 60_000))
	c := srv.dial(t)
	fill := func() (queued int) {
		c.do("MULTI", "+OK\r\n")
		for {
			c.send(long)
			if line := c.line(); line != "+QUEUED" {
				if !strings.HasPrefix(line, "-LIMIT limit_exceeded: ") {
					t.Fatalf("after %d: %q", queued, line)
				}
				return queued
			}
			queued++
		}
	}
	if n := fill(); n != maxQueued/len(long) {
		t.Errorf("%d commands, want %d", n, maxQueued/len(long))
	}
	c.do("INCR a", "+QUEUED\r\n")
	c.do("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n")
	if n := srv.queued.Load(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
	srv.queued.Add(maxQueuedByAll - int64(len(long)))
	if n := fill(); n != 1 {
		t.Errorf("%d commands where others have taken the room", n)
	}
	c.do("DISCARD", "+OK\r\n")
	c.do("MULTI", "+OK\r\n")
	c.do("INCR a", "+QUEUED\r\n")
	c.Close()
	for len(srv.connections()) > 0 {
	}
	if n := srv.queued.Load(); n != maxQueuedByAll-int64(len(long)) {
		t.Errorf("%d bytes are counted after the end", n)
	}
}

// A transaction is no way around permissions or the rate.
func TestTransactionAsks(t *testing.T) {
	srv := newAccess(t, map[string]auth.TokenConfig{"app": {Tags: []string{"mine"}, Scopes: []string{"issue"}}, "slow": {Rate: 1, Burst: 3}})
	c := srv.dialAs(t, "app")
	c.do("MULTI", "+OK\r\n")
	c.do("INCR mine", "+QUEUED\r\n")
	c.send(frame("INCR", "yours") + frame("EXEC"))
	if line := c.line(); !strings.HasPrefix(line, "-NOPERM permission_denied: ") {
		t.Errorf("another's tag: %q", line)
	}
	if line := c.line(); !strings.HasPrefix(line, "-EXECABORT ") {
		t.Errorf("EXEC: %q", line)
	}
	c = srv.dialAs(t, "slow")
	c.send(frame("MULTI") + strings.Repeat(frame("INCR", "orders"), 3))
	c.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n")
	if line := c.line(); !strings.HasPrefix(line, "-LIMIT limit_exceeded: ") {
		t.Errorf("beyond the rate: %q", line)
	}
}

// Every error that a client is told is counted, from 0.
func TestErrorsAreCounted(t *testing.T) {
	srv := newTestServer(t, testConfig{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(srv.svc.Collector())
	count := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "hapax_errors_total" {
					counts[m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
		return counts
	}
	before := count()
	c := srv.dial(t)
	for _, in := range []string{"NOTHING", "CLIENT KILL", "INCR", "INCRBY a x", "SELECT 1", "HELLO 4", "EXEC", "HAPAX.PARSE x", "GET " + strings.Repeat("x", 200)} {
		c.send(frame(strings.Fields(in)...))
		if line := c.line(); !strings.HasPrefix(line, "-") {
			t.Fatalf("%s: %q", in, line)
		}
	}
	c.send("*x\r\n")
	c.expectEnd()
	after := count()
	for code, want := range map[hapax.Code]float64{
		codeUnknown: 2, codeProtocol: 1, hapax.ErrInvalidArgument.Code(): 5, hapax.ErrInvalidID.Code(): 1, hapax.ErrInvalidTag.Code(): 1, hapax.ErrInternal.Code(): 0,
	} {
		if was, ok := before[string(code)]; !ok || was != 0 || after[string(code)] != want {
			t.Errorf("%s went from %v (there: %t) to %v, want from 0 to %v", code, was, ok, after[string(code)], want)
		}
	}
}
