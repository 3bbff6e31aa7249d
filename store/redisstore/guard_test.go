package redisstore

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
)

// TestJudge: what a server was seen as decides about the one that comes after it.
// Each case begins with a server that keeps everything.
func TestJudge(t *testing.T) {
	first := server{runID: "first", role: "master", connected: "0"}
	secret := first
	secret.risk, secret.secret = "appendonly and appendfsync are unknown", true
	second := server{runID: "second", role: "master", connected: "0"}
	promoted := second
	promoted.former = "the history of another"
	for _, c := range []struct {
		name string
		wait int
		then []server // one after the other; the last one is judged
		want error
	}{
		{"the same", 0, []server{first}, nil},
		{"restarted", 0, []server{second}, nil},
		{"promoted, where no grant waits for replicas", 0, []server{promoted}, hapax.ErrStoreUnsafe},
		{"promoted, where every grant waits for it", 1, []server{promoted}, nil},
		{"settings that are a secret now", 0, []server{secret}, nil},
		{"restarted after they were a secret", 0, []server{secret, second}, hapax.ErrStoreUnsafe},
		{"restarted after they were a secret for a while", 0, []server{secret, first, second}, hapax.ErrStoreUnsafe},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuard(Options{Wait: c.wait})
			if err := g.open([]server{first}, nil); err != nil {
				t.Fatal(err)
			}
			var err error
			for i, srv := range c.then {
				err = g.judge(srv, g.accepted[srv.node])
				if i < len(c.then)-1 && err != nil {
					t.Fatal(err)
				}
			}
			if !errors.Is(err, c.want) {
				t.Errorf("error is %v; want %v", err, c.want)
			}
		})
	}
}
