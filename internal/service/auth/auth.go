// Package auth decides who may do what, for every protocol. A protocol finds a
// token among what its clients send, asks the Policy for the Caller behind it,
// and asks that before it does anything. HTTP and gRPC ask whether the request is
// allowed before they count it, the Redis protocol counts each command first:
//
//	        Policy.Caller            Caller.Allow             Caller.Begin
//	token ----------------> Caller ---------------> allowed -------------> done, End
//	           |                        |                        |
//	           v                        v                        v
//	    ErrUnauthenticated       ErrPermissionDenied       ErrLimitExceeded
//
// A nil *Policy is one that asks for nothing and has the nil *Caller for
// everybody, whose methods cost a comparison and always agree.
//
// The configuration holds tokens as their SHA-256. A token from NewToken has 130
// random bits, so that its digest can neither be inverted nor be guessed; a slow
// hash, which protects passwords that people choose, would only make every
// request slow.
package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"maps"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

// Limits on a configuration.
const (
	maxTokens   = 10_000
	maxPatterns = 1000
	maxLimit    = 1_000_000
)

// A TokenConfig is what the configuration says of one token. The zero value of
// all but Hash suits a program that issues numbers.
type TokenConfig struct {
	// Hash is the token's digest, as HashToken returns it. It may be missing where
	// there is a Certificate.
	Hash string `yaml:"hash"`

	// Certificate is a name in the certificate that a client shows: a URI, DNS
	// name or e-mail address, or the common name. A client with such a one needs no
	// token to be this caller.
	Certificate string `yaml:"certificate"`

	// Expires is when the token ends to be good, in RFC 3339; default never.
	Expires string `yaml:"expires"`

	// Scopes are what the token is for: "issue" (the default), "lease", "admin",
	// "metrics", "read".
	Scopes []string `yaml:"scopes"`

	// Tags and Pools are which ones the token is for: names, or the beginnings of
	// names with * behind. Without Tags it is for all tags, and without both an
	// administrator's is for all pools. Workers are leased only of pools that are
	// named here.
	Tags  []string `yaml:"tags"`
	Pools []string `yaml:"pools"`

	// Rate is how many requests a second the token is good for; default no limit.
	// Burst is how many may come at once before the rate counts; default Rate.
	Rate  int `yaml:"rate"`
	Burst int `yaml:"burst"`

	// Requests is how many requests may be in flight, and Connections how many
	// connections may use the token, at the same time; default no limit.
	Requests    int `yaml:"requests"`
	Connections int `yaml:"connections"`

	// NumbersPerMinute and NumbersPerDay are how many numbers may be taken or
	// leased, and Leases how many workers may be leased at a time; default no
	// limit. NewTags is how many tags first use may create in a day; default
	// DefaultNewTags, and no limit for administrators. All count on each server.
	NumbersPerMinute int64 `yaml:"numbers_per_minute"`
	NumbersPerDay    int64 `yaml:"numbers_per_day"`
	Leases           int   `yaml:"leases"`
	NewTags          int   `yaml:"new_tags"`
}

// A Policy knows the tokens. Its methods are safe for concurrent use.
type Policy struct {
	attempts  *attempts             // with wrong tokens; nil without tokens
	callers   atomic.Pointer[table] // read by every request, written under mu; nil without tokens
	anonymous *Caller               // who comes without a token; nil if there are tokens

	mu       sync.Mutex // serializes Replace and Without, and guards the fields below
	configs  map[string]TokenConfig
	children []child
}

// table finds callers by their tokens. It does not change.
type table map[digestKey]*Caller

// A child is a policy that Without made.
type child struct {
	*Policy
	lacks Scope
}

type digest [sha256.Size]byte

// digestKey is the part of a digest that tokens are found by.
type digestKey [8]byte

// NewPolicy returns the policy of the tokens, by name: nil if there are none. A
// *hapax.ValueError names what is wrong, and never repeats what stands where a
// digest should.
func NewPolicy(tokens map[string]TokenConfig) (*Policy, error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	if len(tokens) > maxTokens {
		return nil, invalid("tokens", len(tokens), fmt.Sprintf("up to %d tokens", maxTokens))
	}
	callers, err := newTable(tokens, nil, nil)
	if err != nil {
		return nil, err
	}
	p := &Policy{configs: maps.Clone(tokens), attempts: newAttempts()}
	p.callers.Store(&callers)
	return p, nil
}

// newTable makes the callers of tokens. Of those that are as they were, the
// callers stay.
func newTable(tokens, old map[string]TokenConfig, kept table) (table, error) {
	callers := table{}
	for _, name := range slices.Sorted(maps.Keys(tokens)) {
		c, err := newCaller(name, tokens[name])
		if err != nil {
			return nil, err
		}
		keys := c.keys(tokens[name])
		for _, key := range keys {
			if other := callers[key]; other != nil {
				return nil, invalid("tokens."+name+".hash", "(not shown)", fmt.Sprintf("another digest, and another certificate, than that of tokens.%s", other.name))
			}
		}
		// What it has used of its limits, and its open connections, stay with it.
		if was, ok := old[name]; ok && reflect.DeepEqual(was, tokens[name]) {
			c = kept[keys[0]]
		}
		for _, key := range keys {
			callers[key] = c
		}
	}
	return callers, nil
}

// Replace puts other tokens in the place of those that there are. What was begun
// with a token that is gone, or is good for something else now, fails from then
// on with ErrUnauthenticated, on connections that exist, too. Errors are those of
// NewPolicy, and change nothing.
func (p *Policy) Replace(tokens map[string]TokenConfig) error {
	if !p.HasTokens() || len(tokens) == 0 || len(tokens) > maxTokens {
		return invalid("tokens", len(tokens), fmt.Sprintf("1 to %d tokens, where there were some", maxTokens))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.callers.Load()
	callers, err := newTable(tokens, p.configs, old)
	if err != nil {
		return err
	}
	p.configs = maps.Clone(tokens)
	p.callers.Store(&callers)
	for _, c := range p.children {
		c.callers.Store(callers.without(c.lacks))
	}
	// With the new tokens in place: a client that is turned away may come again at once.
	for key, c := range old {
		if callers[key] != c {
			c.revoked.Store(true)
		}
	}
	return nil
}

// Without returns a policy in which nobody has the scopes. The limits of its
// callers count together with those of p, whose tokens it has at all times.
func (p *Policy) Without(scopes Scope) *Policy {
	if p == nil {
		return &Policy{anonymous: &Caller{name: "anonymous", scopes: everything &^ scopes, pools: []string{"*"}, limits: &limits{}}}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &Policy{anonymous: p.anonymous.without(scopes), attempts: p.attempts}
	if callers := p.callers.Load(); callers != nil {
		q.callers.Store(callers.without(scopes))
	}
	p.children = append(p.children, child{q, scopes})
	return q
}

func (t table) without(scopes Scope) *table {
	less := table{}
	for key, c := range t {
		less[key] = c.without(scopes)
	}
	return &less
}

// HasTokens reports whether callers must show a token.
func (p *Policy) HasTokens() bool { return p != nil && p.callers.Load() != nil }

// Caller returns who holds a token; an empty one stands for none.
// ErrUnauthenticated.
func (p *Policy) Caller(token string) (*Caller, error) {
	switch {
	case p == nil:
		return nil, nil
	case !p.HasTokens():
		return p.anonymous, nil
	case token == "":
		return nil, fmt.Errorf("%w: a token is needed", api.ErrUnauthenticated)
	}
	if c := p.find(token); c != nil {
		return c, c.expired()
	}
	return nil, fmt.Errorf("%w: the token is not known", api.ErrUnauthenticated)
}

// find looks a token up by a part of its digest, and compares all of it in
// constant time. What a look-up could tell by its time is of no use: nobody can
// choose tokens by their digest.
func (p *Policy) find(token string) *Caller {
	if !isToken(token) {
		return nil
	}
	d := digest(sha256.Sum256([]byte(token)))
	c := (*p.callers.Load())[digestKey(d[:])]
	if c == nil || subtle.ConstantTimeCompare(c.digest[:], d[:]) != 1 {
		return nil
	}
	return c
}

// Bearer returns who the values of an Authorization header stand for, as Caller
// does.
func (p *Policy) Bearer(authorization []string) (*Caller, error) {
	if !p.HasTokens() || len(authorization) == 0 {
		return p.Caller("")
	}
	scheme, token, _ := strings.Cut(authorization[0], " ")
	if token = strings.TrimSpace(token); len(authorization) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, fmt.Errorf("%w: the Authorization header must be: Bearer TOKEN", api.ErrUnauthenticated)
	}
	return p.Caller(token)
}

// tokenPrefix lets people and scanners of secrets know a token when they see it.
const tokenPrefix = "hapax_"

// minLetters is how many different ones of its 26 letters a random token has, but for
// one of some ten billion.
const minLetters = 8

// NewToken returns a new random token of 32 letters, digits and an underscore.
func NewToken() string {
	for {
		if token := tokenPrefix + rand.Text(); isToken(token) {
			return token
		}
	}
}

// isToken reports whether NewToken may have made a text. What people make up is no
// token, even if its hash is configured.
func isToken(text string) bool {
	text, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) != 26 {
		return false
	}
	var seen uint64
	for _, c := range []byte(text) {
		switch {
		case 'A' <= c && c <= 'Z':
			seen |= 1 << (c - 'A')
		case '2' <= c && c <= '7':
			seen |= 1 << (c - '2' + 26)
		default:
			return false
		}
	}
	return bits.OnesCount64(seen) >= minLetters
}

const hashPrefix = "sha256:"

// HashToken returns a token's digest as configurations hold it.
func HashToken(token string) string {
	d := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(d[:])
}

func parseHash(text string) (d digest, ok bool) {
	text, ok = strings.CutPrefix(text, hashPrefix)
	if !ok || hex.DecodedLen(len(text)) != len(d) {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(text))
	return d, err == nil
}

func invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
