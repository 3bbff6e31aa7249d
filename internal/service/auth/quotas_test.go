package auth

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

func callerOf(t testing.TB, config TokenConfig) *Caller {
	t.Helper()
	token := NewToken()
	config.Hash = HashToken(token)
	p, err := NewPolicy(map[string]TokenConfig{"app": config})
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Caller(token)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantLimit checks that an error is a LimitError that tells when to try again.
func wantLimit(t *testing.T, what string, err error, after time.Duration) {
	t.Helper()
	limit, ok := errors.AsType[*LimitError](err)
	if !ok || !errors.Is(err, api.ErrLimitExceeded) || limit.After != after {
		t.Errorf("%s: %v, want a limit for %v", what, err, after)
	}
}

func TestNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := callerOf(t, TokenConfig{NumbersPerMinute: 100, NumbersPerDay: 250})
		take := func(n int64) error { return c.TakeNumbers(n) }
		for _, n := range []int64{60, 40, 0} {
			if err := take(n); err != nil {
				t.Errorf("%d: %v", n, err)
			}
		}
		time.Sleep(20 * time.Second)
		wantLimit(t, "one more", take(1), 40*time.Second)
		c.ReturnNumbers(30)
		wantLimit(t, "more than was returned", take(31), 40*time.Second)
		if err := take(30); err != nil {
			t.Error(err)
		}
		time.Sleep(40 * time.Second)
		if err := take(100); err != nil {
			t.Errorf("a minute later: %v", err)
		}
		time.Sleep(time.Minute)
		wantLimit(t, "above the day's", take(51), 24*time.Hour-2*time.Minute)
		if err := take(50); err != nil { // what was refused counts in neither window
			t.Error(err)
		}
		wantLimit(t, "the day is over", take(1), 24*time.Hour-2*time.Minute)
		time.Sleep(24 * time.Hour)
		c.ReturnNumbers(1 << 40) // what was taken yesterday is no credit today
		c.ReturnNumbers(-5)
		if err := take(100); err != nil {
			t.Error(err)
		}
		wantLimit(t, "with a credit", take(1), time.Minute)
		wantLimit(t, "more than ever", take(1<<62), time.Minute)
	})
}

// Whatever is taken and returned, no window yields more than its limit.
func TestNumbersNeverExceed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		const limit = 100
		c := callerOf(t, TokenConfig{NumbersPerDay: limit})
		held := int64(0)
		for range rapid.IntRange(1, 50).Draw(r, "steps") {
			n := rapid.Int64Range(0, 120).Draw(r, "n")
			if rapid.Bool().Draw(r, "return") {
				n = min(n, held)
				c.ReturnNumbers(n)
				held -= n
				continue
			}
			err := c.TakeNumbers(n)
			if fits := held+n <= limit; fits != (err == nil) {
				r.Fatalf("%d with %d of %d held: %v", n, held, limit, err)
			}
			if err == nil {
				held += n
			}
		}
	})
}

func TestNewTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := callerOf(t, TokenConfig{NewTags: 2})
		undo, err := c.TakeNewTag()
		if err != nil {
			t.Fatal(err)
		}
		undo()
		for range 2 {
			if _, err := c.TakeNewTag(); err != nil {
				t.Error(err)
			}
		}
		_, err = c.TakeNewTag()
		wantLimit(t, "a third", err, 24*time.Hour)
		time.Sleep(24 * time.Hour)
		if _, err := c.TakeNewTag(); err != nil {
			t.Error(err)
		}
		standard := callerOf(t, TokenConfig{})
		for range DefaultNewTags {
			if _, err := standard.TakeNewTag(); err != nil {
				t.Fatal(err)
			}
		}
		_, err = standard.TakeNewTag()
		wantLimit(t, "above the default", err, 24*time.Hour)
		admin := callerOf(t, TokenConfig{Scopes: []string{"admin"}, NewTags: 1})
		for range 3 {
			if _, err := admin.TakeNewTag(); err != nil {
				t.Errorf("an administrator: %v", err)
			}
		}
	})
}

func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := callerOf(t, TokenConfig{Scopes: []string{"lease"}, Leases: 2})
		lease := func(worker int64, length time.Duration) hapax.Lease {
			return hapax.Lease{Pool: "p", Worker: worker, Expires: time.Now().Add(length)}
		}
		ask := func() func(hapax.Lease, bool) {
			t.Helper()
			settle, err := c.AskLease()
			if err != nil {
				t.Fatal(err)
			}
			return settle
		}
		full := func(what string) {
			t.Helper()
			_, err := c.AskLease()
			wantLimit(t, what, err, time.Second)
		}
		first, second := ask(), ask()
		full("two are asked for")
		first(hapax.Lease{}, false)
		first = ask()
		first(lease(1, time.Minute), true)
		second(lease(2, time.Minute), true)
		full("two are held")
		c.EndLease(lease(1, 0))
		c.EndLease(lease(7, 0)) // is nobody's here
		ask()(lease(3, time.Hour), true)
		full("two again")
		time.Sleep(40 * time.Second)
		c.NoteLease(lease(2, time.Minute)) // extended
		time.Sleep(40 * time.Second)
		full("one was extended")
		time.Sleep(21 * time.Second)
		ask()(hapax.Lease{}, false) // the extension is over
		for range 10 {
			callerOf(t, TokenConfig{}).NoteLease(lease(1, time.Hour))
			if _, err := callerOf(t, TokenConfig{}).AskLease(); err != nil {
				t.Errorf("without a limit: %v", err)
			}
		}
	})
}

// What a child policy's callers use counts together with their parent's, also after a
// reload that leaves the token as it was.
func TestQuotasStay(t *testing.T) {
	token := NewToken()
	configs := map[string]TokenConfig{"app": {Hash: HashToken(token), NumbersPerDay: 10}}
	p := policyFor(t, configs)
	child := p.Without(ScopeAdmin)
	take := func(p *Policy, n int64) error {
		c, err := p.Caller(token)
		if err != nil {
			t.Fatal(err)
		}
		return c.TakeNumbers(n)
	}
	if err := take(p, 6); err != nil {
		t.Fatal(err)
	}
	if err := take(child, 5); !errors.Is(err, api.ErrLimitExceeded) {
		t.Errorf("over the other listener: %v", err)
	}
	if err := p.Replace(map[string]TokenConfig{"app": configs["app"], "other": {Hash: HashToken(NewToken())}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Policy{p, child} {
		if err := take(p, 5); !errors.Is(err, api.ErrLimitExceeded) {
			t.Errorf("after a reload: %v", err)
		}
	}
	if err := take(child, 4); err != nil {
		t.Error(err)
	}
}

// Nobody has quotas where nobody is asked.
func TestNobodysQuotas(t *testing.T) {
	var c *Caller
	c.ReturnNumbers(1)
	c.NoteLease(hapax.Lease{})
	c.EndLease(hapax.Lease{})
	undo, tagErr := c.TakeNewTag()
	settle, leaseErr := c.AskLease()
	if err := errors.Join(c.TakeNumbers(1<<62), tagErr, leaseErr); err != nil {
		t.Fatal(err)
	}
	undo()
	settle(hapax.Lease{}, true)
}
