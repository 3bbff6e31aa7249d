package auth

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

// policyOf returns the policy of one token with the given rights, and its caller.
func policyOf(t testing.TB, config TokenConfig) (*Policy, *Caller) {
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
	return p, c
}

func TestTokens(t *testing.T) {
	one, two := NewToken(), NewToken()
	p, err := NewPolicy(map[string]TokenConfig{"one": {Hash: HashToken(one)}, "two": {Hash: HashToken(two)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		header []string
		want   string // the caller; empty: ErrUnauthenticated
	}{
		{"one", []string{"Bearer " + one}, "one"},
		{"two, in another case", []string{"bearer  " + two}, "two"},
		{"none", nil, ""},
		{"empty", []string{""}, ""},
		{"no token", []string{"Bearer "}, ""},
		{"another scheme", []string{"Basic " + one}, ""},
		{"twice", []string{"Bearer " + one, "Bearer " + one}, ""},
		{"unknown", []string{"Bearer " + NewToken()}, ""},
		{"shortened", []string{"Bearer " + one[:len(one)-1]}, ""},
		{"its own hash", []string{"Bearer " + HashToken(one)}, ""},
		{"huge", []string{"Bearer " + strings.Repeat("x", 1<<20)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := p.Bearer(tt.header)
			switch {
			case tt.want == "" && !errors.Is(err, api.ErrUnauthenticated):
				t.Errorf("got %v, %v; want ErrUnauthenticated", c, err)
			case tt.want != "" && (err != nil || c.Name() != tt.want):
				t.Errorf("got %v, %v; want %s", c, err, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), one) || strings.Contains(err.Error(), two)) {
				t.Errorf("the error tells the token: %v", err)
			}
		})
	}
}

// A digest that agrees with a known one only where tokens are looked up by is
// that of another token.
func TestWholeDigestCounts(t *testing.T) {
	token := NewToken()
	p, c := policyOf(t, TokenConfig{})
	d, _ := parseHash(HashToken(token))
	near := *c
	near.digest = d
	near.digest[31] ^= 1
	(*p.callers.Load())[digestKey(d[:])] = &near
	if got, err := p.Caller(token); err == nil {
		t.Errorf("taken for %s", got.Name())
	}
}

func TestNoTokensNoQuestions(t *testing.T) {
	p, err := NewPolicy(nil)
	if err != nil || p != nil {
		t.Fatalf("got %v, %v", p, err)
	}
	c, err := p.Bearer([]string{"Basic whatever"})
	if err != nil || c != nil {
		t.Fatalf("got %v, %v", c, err)
	}
	for perm := range permissions {
		if err := c.Allow(Permission(perm), "x"); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(c.MayIssue([]byte("x")), c.Begin(), c.Spend(), c.Wait(t.Context()), new(Conn).Use(c)); err != nil {
		t.Error(err)
	}
	c.End()
}

func TestAllow(t *testing.T) {
	all := []Permission{Nothing, Issue, LeaseTag, LeaseWorker, Show, List, Define, Workers, SeeWorkers, ListPools, Watch, Operate, Metrics, Trace}
	lease := []string{"lease"}
	for _, tt := range []struct {
		name    string
		config  TokenConfig
		subject string // name of a tag and of a pool
		want    []Permission
	}{
		{"default", TokenConfig{}, "x", []Permission{Nothing, Issue, Show, List}},
		{"lease", TokenConfig{Scopes: lease}, "x", []Permission{Nothing, LeaseTag}},
		{"lease of one pool", TokenConfig{Scopes: lease, Pools: []string{"x"}}, "x", []Permission{Nothing, LeaseTag, LeaseWorker}},
		{"lease of another pool", TokenConfig{Scopes: lease, Pools: []string{"y"}}, "x", []Permission{Nothing, LeaseTag}},
		{"lease of one tag", TokenConfig{Scopes: lease, Tags: []string{"x"}}, "x", []Permission{Nothing, LeaseTag}},
		{"lease of another tag", TokenConfig{Scopes: lease, Tags: []string{"y"}, Pools: []string{"*"}}, "x", []Permission{Nothing, LeaseWorker}},
		{"admin", TokenConfig{Scopes: []string{"admin"}}, "x", []Permission{Nothing, Show, List, Define, Workers, SeeWorkers, ListPools, Watch, Operate, Metrics, Trace}},
		{"read", TokenConfig{Scopes: []string{"read"}}, "x", []Permission{Nothing, Show, List, SeeWorkers, ListPools, Watch, Metrics, Trace}},
		{"read of a tag", TokenConfig{Scopes: []string{"read"}, Tags: []string{"x"}}, "x", []Permission{Nothing, Show, Metrics}},
		{"all", TokenConfig{Scopes: []string{"issue", "lease", "admin"}, Pools: []string{"*"}}, "x", all},
		{"metrics", TokenConfig{Scopes: []string{"metrics"}}, "x", []Permission{Nothing, Metrics}},
		{"one tag", TokenConfig{Tags: []string{"x"}}, "x", []Permission{Nothing, Issue, Show}},
		{"another tag", TokenConfig{Tags: []string{"xy"}}, "x", []Permission{Nothing}},
		{"beginning", TokenConfig{Tags: []string{"a", "or*"}}, "orders", []Permission{Nothing, Issue, Show}},
		{"beginning alone", TokenConfig{Tags: []string{"or*"}}, "or", []Permission{Nothing, Issue, Show}},
		{"star", TokenConfig{Tags: []string{"*"}}, "x", []Permission{Nothing, Issue, Show, List}},
		{"issue in a pool", TokenConfig{Pools: []string{"x"}}, "x", []Permission{Nothing, Issue, Show, List}},
		{"one tag and pools", TokenConfig{Scopes: []string{"issue", "lease"}, Tags: []string{"x"}, Pools: []string{"*"}}, "x", []Permission{Nothing, Issue, LeaseTag, LeaseWorker, Show}},
		{"admin of tags", TokenConfig{Scopes: []string{"admin"}, Tags: []string{"x"}}, "x", []Permission{Nothing, Show, Define, Metrics}},
		{"no scopes", TokenConfig{Scopes: []string{}}, "x", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, c := policyOf(t, tt.config)
			granted := map[Permission]bool{}
			for _, perm := range tt.want {
				granted[perm] = true
			}
			if len(permissions) != len(all) {
				t.Fatalf("%d permissions, %d in this test", len(permissions), len(all))
			}
			for _, perm := range all {
				err := c.Allow(perm, tt.subject)
				if (err == nil) != granted[perm] || err != nil && !errors.Is(err, api.ErrPermissionDenied) {
					t.Errorf("permission %d: %v", perm, err)
				}
			}
			if (c.MayIssue([]byte(tt.subject)) == nil) != granted[Issue] {
				t.Error("MayIssue and Allow differ")
			}
		})
	}
}

func TestMatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-c]{1,4}`).Draw(t, "name")
		pattern := rapid.StringMatching(`[a-c]{0,4}\*?`).Draw(t, "pattern")
		want := name == pattern
		if n := len(pattern) - 1; n >= 0 && pattern[n] == '*' {
			want = len(name) >= n && name[:n] == pattern[:n]
		}
		if got := matches([]string{pattern}, name); got != want {
			t.Errorf("%q matches %q: %t", pattern, name, got)
		}
	})
}

func TestWithout(t *testing.T) {
	token := NewToken()
	full, err := NewPolicy(map[string]TokenConfig{"app": {Hash: HashToken(token), Scopes: []string{"issue", "admin"}, Connections: 1}})
	if err != nil {
		t.Fatal(err)
	}
	less := full.Without(ScopeAdmin | ScopeMetrics)
	of := func(p *Policy) *Caller {
		t.Helper()
		c, err := p.Caller(token)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if of(less).Allow(Define, "x") == nil || of(less).Allow(Metrics, "") == nil || of(less).Allow(Issue, "x") != nil || of(full).Allow(Define, "x") != nil {
		t.Error("the wrong scopes were taken")
	}
	var one, two Conn
	if one.Use(of(full)) != nil || two.Use(of(less)) == nil {
		t.Error("the limits do not count together")
	}
	var none *Policy
	c, err := none.Without(ScopeAdmin).Caller("")
	if err != nil || c.Allow(Issue, "x") != nil || c.Allow(Define, "x") == nil {
		t.Errorf("without tokens: %v, %v", c, err)
	}
	if none.Without(ScopeAdmin).HasTokens() || !less.HasTokens() {
		t.Error("HasTokens is wrong")
	}
}

func TestReplace(t *testing.T) {
	kept, changed, gone, added := NewToken(), NewToken(), NewToken(), NewToken()
	p, err := NewPolicy(map[string]TokenConfig{
		"kept": {Hash: HashToken(kept), Tags: []string{"x"}, Requests: 2}, "changed": {Hash: HashToken(changed)}, "gone": {Hash: HashToken(gone)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, policy := range map[string]*Policy{"itself": p, "without admin": p.Without(ScopeAdmin)} {
		for i, token := range []string{kept, changed, gone} {
			if _, err := policy.Caller(token); err != nil {
				t.Errorf("%s, token %d: %v", name, i, err)
			}
		}
	}
	child := p.Without(ScopeMetrics)
	before := map[string]*Caller{}
	for _, token := range []string{kept, changed, gone} {
		c, err := child.Caller(token)
		if err = errors.Join(err, c.Begin()); err != nil {
			t.Fatal(err)
		}
		before[token] = c
	}
	for name, tokens := range map[string]map[string]TokenConfig{"none": nil, "a wrong one": {"kept": {}}} {
		if err := p.Replace(tokens); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	err = p.Replace(map[string]TokenConfig{
		"kept": {Hash: HashToken(kept), Tags: []string{"x"}, Requests: 2}, "changed": {Hash: HashToken(changed), Tags: []string{"x"}}, "added": {Hash: HashToken(added)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, token string
		begun, new  bool // whether what was begun goes on, and whether it can be begun
	}{{"kept", kept, true, true}, {"changed", changed, false, true}, {"gone", gone, false, false}, {"added", added, true, true}} {
		if c := before[tt.token]; c != nil && (c.Begin() == nil) != tt.begun || c != nil && (c.Wait(t.Context()) == nil) != tt.begun {
			t.Errorf("%s: what was begun goes on: %t", tt.name, !tt.begun)
		}
		c, err := child.Caller(tt.token)
		if (err == nil) != tt.new || err != nil && !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.name == "kept" && c.Begin() == nil {
			t.Error("the requests in flight were forgotten")
		}
		if tt.name == "changed" && c.Allow(Issue, "y") == nil {
			t.Error("the change does not count")
		}
	}
}

func TestRate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config TokenConfig
		burst  int
	}{
		{"burst is the rate", TokenConfig{Rate: 10}, 10},
		{"own burst", TokenConfig{Rate: 10, Burst: 3}, 3},
		{"burst of one", TokenConfig{Rate: 2, Burst: 1}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c := policyOf(t, tt.config)
				time.Sleep(time.Hour) // saves up no more than the burst
				for range tt.burst {
					if err := c.Spend(); err != nil {
						t.Fatal(err)
					}
				}
				err := c.Begin()
				limit, ok := errors.AsType[*LimitError](err)
				interval := time.Second / time.Duration(tt.config.Rate)
				if !ok || !errors.Is(err, api.ErrLimitExceeded) || limit.After != interval {
					t.Fatalf("got %v, want to be told to wait %v", err, interval)
				}
				began := time.Now()
				for range 10 {
					if err := c.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(began); took != 10*interval {
					t.Errorf("10 more took %v, want %v", took, 10*interval)
				}
				ctx, cancel := context.WithTimeout(t.Context(), interval/2)
				defer cancel()
				if err := c.Wait(ctx); !errors.Is(err, api.ErrLimitExceeded) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestRequestsInFlight(t *testing.T) {
	_, c := policyOf(t, TokenConfig{Requests: 2})
	for range 3 {
		if err := errors.Join(c.Begin(), c.Begin()); err != nil {
			t.Fatal(err)
		}
		if err := c.Begin(); !errors.Is(err, api.ErrLimitExceeded) {
			t.Fatalf("the third: %v", err)
		}
		c.End()
		c.End()
	}
}

func TestConnections(t *testing.T) {
	_, c := policyOf(t, TokenConfig{Connections: 2})
	var one, two, three Conn
	for range 3 {
		if err := errors.Join(one.Use(c), one.Use(c), two.Use(c)); err != nil {
			t.Fatal(err)
		}
		if err := three.Use(c); !errors.Is(err, api.ErrLimitExceeded) {
			t.Fatalf("the third: %v", err)
		}
		two.Close()
		if err := three.Use(c); err != nil {
			t.Fatal(err)
		}
		one.Close()
		three.Close()
		one, two, three = Conn{}, Conn{}, Conn{}
	}
	if n := c.connected.Load(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestBadConfig(t *testing.T) {
	secret := NewToken()
	good := HashToken(secret)
	for _, tt := range []struct {
		name   string
		config TokenConfig
		want   string
	}{
		{"the token itself", TokenConfig{Hash: secret}, "tokens.app.hash"},
		{"no hash", TokenConfig{}, "tokens.app.hash"},
		{"short hash", TokenConfig{Hash: good[:len(good)-2]}, "tokens.app.hash"},
		{"not hexadecimal", TokenConfig{Hash: good[:len(good)-1] + "x"}, "tokens.app.hash"},
		{"another hash", TokenConfig{Hash: strings.Replace(good, "sha256", "md5", 1)}, "tokens.app.hash"},
		{"scope", TokenConfig{Hash: good, Scopes: []string{"root"}}, `invalid tokens.app.scopes "root": want one of issue, lease, admin, metrics, read`},
		{"tag", TokenConfig{Hash: good, Tags: []string{"a", ""}}, "tokens.app.tags"},
		{"pool", TokenConfig{Hash: good, Pools: []string{"\x00*"}}, "tokens.app.pools"},
		{"too many", TokenConfig{Hash: good, Tags: make([]string, maxPatterns+1)}, "tokens.app.tags"},
		{"rate", TokenConfig{Hash: good, Rate: -1}, "tokens.app.rate"},
		{"burst", TokenConfig{Hash: good, Burst: 1}, "tokens.app.burst"},
		{"requests", TokenConfig{Hash: good, Requests: maxLimit + 1}, "tokens.app.requests"},
		{"connections", TokenConfig{Hash: good, Connections: -1}, "tokens.app.connections"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewPolicy(map[string]TokenConfig{"app": tt.config})
			if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want it to tell %s", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error tells the token: %v", err)
			}
		})
	}
	if _, err := NewPolicy(map[string]TokenConfig{secret: {Hash: good}}); !errors.Is(err, hapax.ErrInvalidArgument) || strings.Contains(err.Error(), secret) {
		t.Errorf("a token in the place of a name: %v", err)
	}
	_, err := NewPolicy(map[string]TokenConfig{"a": {Hash: good}, "b": {Hash: good}})
	if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "tokens.b.hash") {
		t.Errorf("twice the same: %v", err)
	}
}

func TestNewToken(t *testing.T) {
	a, b := NewToken(), NewToken()
	if a == b || len(a) != 32 || !strings.HasPrefix(a, "hapax_") || !strings.HasPrefix(HashToken(a), "sha256:") {
		t.Errorf("%q, %q", a, b)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	_, c := policyOf(t, TokenConfig{Tags: []string{"a*", "orders"}, Rate: maxLimit, Requests: 10})
	var none *Policy
	tag := []byte("orders")
	for name, f := range map[string]func(){
		"no policy": func() {
			anyone, _ := none.Bearer(nil)
			_ = anyone.Begin()
			_ = anyone.Allow(Issue, "orders")
			anyone.End()
		},
		"a policy": func() { _ = c.Begin(); _ = c.Allow(Issue, "orders"); c.End() },
		"buffer":   func() { _ = c.MayIssue(tag) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkCaller(b *testing.B) {
	token := NewToken()
	p, err := NewPolicy(map[string]TokenConfig{"app": {Hash: HashToken(token)}})
	if err != nil {
		b.Fatal(err)
	}
	header := []string{"Bearer " + token}
	b.ReportAllocs()
	for b.Loop() {
		c, err := p.Bearer(header)
		if err != nil || c.Begin() != nil || c.Allow(Issue, "orders") != nil {
			b.Fatal(err)
		}
		c.End()
	}
}
