package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// The clock jumps an hour, while the server runs or while it is down, and is set
// right again. With the embedded store the server goes by its own clock; a shared
// one has a clock to compare with.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	const issues = hapax.Code("")
	rollback, skew := hapax.ErrClockRollback.Code(), hapax.ErrClockSkew.Code()
	redis := testservers.Redis(t)
	tests := []struct {
		store, policy, jump string
		down                bool
		wrong, right        hapax.Code // what comes of a request while the clock is wrong, and after it
	}{
		{"bolt", "continue", "-1h", false, issues, issues},
		{"bolt", "continue", "1h", false, issues, issues},
		{"bolt", "refuse", "-1h", false, rollback, issues},
		{"bolt", "refuse", "1h", false, issues, rollback}, // an hour's numbers are used
		{"bolt", "continue", "-1h", true, issues, issues},
		{"bolt", "continue", "1h", true, issues, issues},
		{"bolt", "refuse", "-1h", true, issues, issues}, // with another worker
		{"bolt", "refuse", "1h", true, issues, rollback},
		{"redis", "continue", "-1h", false, issues, issues}, // with an alarm
		{"redis", "continue", "1h", false, skew, issues},
		{"redis", "refuse", "-1h", false, rollback, issues},
		{"redis", "refuse", "1h", false, skew, rollback},
		{"redis", "continue", "-1h", true, issues, issues},
		{"redis", "continue", "1h", true, skew, issues},
		{"redis", "refuse", "-1h", true, skew, issues},
		{"redis", "refuse", "1h", true, skew, issues},
	}
	for _, test := range tests {
		name := fmt.Sprintf("%s/%s/%s/down=%v", test.store, test.policy, test.jump, test.down)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, pool := t.TempDir(), unusedName("clock")
			file := filepath.Join(dir, "offset")
			set := func(offset string) {
				if err := os.WriteFile(file, []byte(offset), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			set("0s")
			env := []string{"HAPAX_TEST_CLOCK_OFFSET=@" + file}
			args := short(redis.URL, pool, "0-7, on_rollback: "+test.policy)
			if test.store == "bolt" {
				args = append(args, "--store", "bolt:")
			}
			c := clockTest{t: t, s: serve(t, dir, env, args...), tag: pool + "-events", pool: pool}
			c.expect("at first", issues)
			if test.down {
				c.s.kill()
			}
			set(test.jump)
			if test.down {
				c.s = serve(t, dir, env, args...)
			}
			c.expect("with the wrong clock", test.wrong)
			switch test.wrong {
			case rollback:
				c.s.await(`"event":"rollback"`)
			case skew:
				c.s.await(`"event":"clock_skew"`)
				c.s.await("allowed is 10s: set the clock that is wrong")
			}
			set("0s")
			c.expect("with the right clock", test.right)
			if code := c.s.stop(); code != 0 {
				t.Errorf("the exit code is %d: %s", code, c.s.logged())
			}
			c.s = serve(t, dir, env, args...)
			c.expect("after a restart", issues)
			distinct(t, c.tag, c.taken)
		})
	}
}

// clockTest takes numbers of a server whose clock is wrong.
type clockTest struct {
	t         *testing.T
	s         *serving
	tag, pool string
	taken     []hapax.ID
}

// expect asks until the server has issued for two more grants of a second, or
// until what it says is the given code. It may say in between that it waits.
func (c *clockTest) expect(when string, want hapax.Code) {
	c.t.Helper()
	grants := func() float64 {
		return c.s.metric(fmt.Sprintf(`hapax_refills_total{pool=%q,tag=""}`, c.pool))
	}
	enough := grants() + 2
	last := hapax.Code("")
	over := time.Now().Add(2 * patience.Long)
	for ; time.Now().Before(over); patience.Slow(50 * time.Millisecond) {
		ids, err := take(patient, c.s.url, c.tag, 100)
		c.taken = append(c.taken, ids...)
		if last = refused(err); err != nil && last == "" {
			c.t.Fatalf("%s: %v", when, err)
		}
		if want != "" && last == want || want == "" && err == nil && grants() >= enough {
			return
		}
		switch last {
		case "", hapax.ErrRefillPending.Code(), hapax.ErrNoWorker.Code(), hapax.ErrTickExhausted.Code(),
			hapax.ErrClockSkew.Code(), hapax.ErrClockRollback.Code(),
			hapax.ErrStoreUnavailable.Code(): // slower than the second it is given
		default:
			c.t.Fatalf("%s: %v", when, err)
		}
	}
	c.t.Fatalf("%s: the answers end with %q, want %q: %s", when, last, want, c.s.logged())
}
