package auth

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/strategy"
)

// A Scope is what a token is for.
type Scope uint8

// The scopes, which combine.
const (
	ScopeIssue   Scope = 1 << iota // numbers
	ScopeLease                     // stretches of numbers, and of workers' time
	ScopeAdmin                     // tags, pools and workers; it includes ScopeMetrics
	ScopeMetrics                   // what monitoring reads
	ScopeRead                      // to see all that administrators see, and change nothing; it includes ScopeMetrics

	everything = ScopeIssue | ScopeLease | ScopeAdmin | ScopeMetrics | ScopeRead
)

var scopeNames = map[string]Scope{
	"issue": ScopeIssue, "lease": ScopeLease, "admin": ScopeAdmin | ScopeMetrics, "metrics": ScopeMetrics, "read": ScopeRead | ScopeMetrics,
}

// A Permission is one kind of thing to do.
type Permission uint8

// The permissions. A name that goes with one is that of a tag unless it says
// otherwise.
const (
	Nothing     Permission = iota // what any token is good for; no name
	Issue                         // to take numbers
	LeaseTag                      // to lease numbers
	LeaseWorker                   // to lease a worker of a pool
	Show                          // to see one tag
	List                          // to see which tags there are; no name
	Define                        // to create, change or delete a tag
	Workers                       // to change the workers of a pool
	SeeWorkers                    // to see the workers of a pool
	ListPools                     // to see which pools there are; no name
	Watch                         // to see how a node stands with its store; no name
	Operate                       // to adopt a store, and to switch plugins; no name
	Metrics                       // no name
	Trace                         // to see the node and the caller of a number; no name
)

// permissions tell what each one takes: any of the scopes, and the right to the
// name.
var permissions = [...]struct {
	scopes Scope
	subject
	to string // for the error
}{
	Nothing:     {everything, noName, "do this"},
	Issue:       {ScopeIssue, aTag, "take numbers of the tag"},
	LeaseTag:    {ScopeLease, aTag, "lease numbers of the tag"},
	LeaseWorker: {ScopeLease, aNamedPool, "lease workers of the pool"},
	Show:        {ScopeIssue | ScopeAdmin | ScopeRead, aTag, "see the tag"},
	List:        {ScopeIssue | ScopeAdmin | ScopeRead, everyTag, "list tags"},
	Define:      {ScopeAdmin, aTag, "create, change or delete the tag"},
	Workers:     {ScopeAdmin, aPool, "change the workers of the pool"},
	SeeWorkers:  {ScopeAdmin | ScopeRead, aPool, "see the workers of the pool"},
	ListPools:   {ScopeAdmin | ScopeRead, everyPool, "list pools"},
	Watch:       {ScopeAdmin | ScopeRead, everyTagAndPool, "see how a node stands with its store"},
	Operate:     {ScopeAdmin, everyTagAndPool, "change how a node stands with its store"},
	Metrics:     {ScopeMetrics, noName, "see metrics"},
	Trace:       {ScopeAdmin | ScopeRead, everyTagAndPool, "trace numbers"},
}

// A subject is what the name that goes with a permission must be allowed as.
type subject uint8

const (
	noName subject = iota
	aTag
	aPool
	aNamedPool // a token that names no pools is for none
	everyTag
	everyPool
	everyTagAndPool
)

// A Caller is who makes a request. The nil *Caller may do everything. Its
// methods are safe for concurrent use.
type Caller struct {
	name        string
	digest      digest
	expires     time.Time // zero: never
	scopes      Scope
	tags, pools []string // patterns; nil: all
	*limits
}

func newCaller(name string, config TokenConfig) (*Caller, error) {
	field := "tokens." + name
	if err := hapax.ValidateName(field, name); err != nil {
		return nil, err
	}
	if isToken(name) {
		return nil, invalid("tokens", "(not shown)", "a name of your choice for each token, and its hash below the name; the name is a token itself")
	}
	c := &Caller{name: name, limits: &limits{}}
	var ok bool
	if c.digest, ok = parseHash(config.Hash); !ok && (config.Hash != "" || config.Certificate == "") {
		shown := "(not shown)" // it may be the token
		if config.Hash == "" {
			shown = ""
		}
		return nil, invalid(field+".hash", shown, "sha256: and 64 hexadecimal digits, as hapax token new prints them")
	}
	if config.Expires != "" {
		at, err := time.Parse(time.RFC3339, config.Expires)
		if err != nil {
			return nil, invalid(field+".expires", config.Expires, "a time in RFC 3339, such as 2030-01-31T00:00:00Z")
		}
		c.expires = at
	}
	if config.Scopes == nil {
		config.Scopes = []string{"issue"}
	}
	for _, s := range config.Scopes {
		if scopeNames[s] == 0 {
			return nil, invalid(field+".scopes", s, "one of issue, lease, admin, metrics, read")
		}
		c.scopes |= scopeNames[s]
	}
	var err error
	if c.tags, err = patterns(field+".tags", config.Tags); err != nil {
		return nil, err
	}
	if c.pools, err = patterns(field+".pools", config.Pools); err != nil {
		return nil, err
	}
	if c.tags != nil && c.pools == nil {
		c.pools = []string{}
	}
	return c, c.limits.set(field, config)
}

// patterns checks names and beginnings of names.
func patterns(field string, list []string) ([]string, error) {
	if len(list) > maxPatterns {
		return nil, invalid(field, len(list), fmt.Sprintf("up to %d names", maxPatterns))
	}
	for _, pattern := range list {
		if pattern == "*" {
			continue
		}
		if err := hapax.ValidateName(field, strings.TrimSuffix(pattern, "*")); err != nil {
			return nil, invalid(field, pattern, "names, or beginnings of names with * behind")
		}
	}
	return slices.Clone(list), nil
}

func matches(patterns []string, name string) bool {
	if patterns == nil {
		return true
	}
	for _, p := range patterns {
		if beginning, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(name, beginning) || p == name {
			return true
		}
	}
	return false
}

// isAll reports whether patterns match every name.
func isAll(patterns []string) bool { return patterns == nil || slices.Contains(patterns, "*") }

// without returns the caller without scopes.
func (c *Caller) without(scopes Scope) *Caller {
	if c == nil {
		return nil
	}
	// The copy shares the limits: both count together, and one word revokes both.
	less := *c
	less.scopes &^= scopes
	return &less
}

// Name returns the name of the caller's token in the configuration, for logs.
func (c *Caller) Name() string {
	if c == nil {
		return "anonymous"
	}
	return c.name
}

// Allow checks that the caller has a permission for a tag or pool.
// ErrPermissionDenied.
func (c *Caller) Allow(p Permission, name string) error {
	if c == nil {
		return nil
	}
	needs := permissions[p]
	if c.scopes&needs.scopes != 0 && c.mayUse(needs.subject, name) {
		return nil
	}
	return c.denied(p, name)
}

func (c *Caller) denied(p Permission, name string) error {
	needs := permissions[p]
	switch needs.subject {
	case aTag, aPool, aNamedPool:
		return fmt.Errorf("%w: %q may not %s %.140q", api.ErrPermissionDenied, c.name, needs.to, name)
	}
	return fmt.Errorf("%w: %q may not %s", api.ErrPermissionDenied, c.name, needs.to)
}

func (c *Caller) mayUse(s subject, name string) bool {
	switch s {
	case noName:
		return true
	case aTag:
		return matches(c.tags, name)
	case aPool:
		return matches(c.pools, name)
	case aNamedPool:
		return c.pools != nil && matches(c.pools, name)
	case everyTag:
		return isAll(c.tags)
	case everyPool:
		return isAll(c.pools)
	case everyTagAndPool:
		return isAll(c.tags) && isAll(c.pools)
	}
	return false
}

// MayIssue is Allow(Issue, tag) for a name in a buffer.
func (c *Caller) MayIssue(tag []byte) error {
	if c == nil || c.scopes&ScopeIssue != 0 && matches(c.tags, string(tag)) {
		return nil
	}
	return c.denied(Issue, string(tag))
}

// MayDefine reports whether what the caller says of a tag counts where the tag is
// created by its first use.
func (c *Caller) MayDefine(tag string) bool { return c.Allow(Define, tag) == nil }

// NamesLines reports whether a pattern of the caller's tags has the mark in which names
// of lines of a tag differ from others.
func (c *Caller) NamesLines(mark string) bool {
	return c == nil || slices.ContainsFunc(c.tags, func(p string) bool { return strings.Contains(p, mark) })
}

type callerKey struct{}

// An origin is a context that says where a request comes from.
type origin struct {
	context.Context
	caller  *Caller
	address string
}

// Value implements context.Context. It gives plugins the caller's name.
func (o *origin) Value(key any) any {
	switch key.(type) {
	case callerKey:
		return o
	case strategy.CallerKey:
		if name := o.name(); name != "" {
			return name
		}
	}
	return o.Context.Value(key)
}

// name returns the token's name, or the address of a request without one.
func (o *origin) name() string {
	if o.caller != nil {
		return o.caller.Name()
	}
	host, _, err := net.SplitHostPort(o.address)
	if err != nil {
		return ""
	}
	return host
}

// NewContext returns a context that carries the caller of a request, and the
// network address that it comes from.
func NewContext(ctx context.Context, c *Caller, address string) context.Context {
	return &origin{ctx, c, address}
}

// FromContext returns the caller that a context carries; nil if there is none.
func FromContext(ctx context.Context) *Caller {
	if o, ok := ctx.Value(callerKey{}).(*origin); ok {
		return o.caller
	}
	return nil
}

// AddressFrom returns the network address that a request comes from, empty if the
// context carries none.
func AddressFrom(ctx context.Context) string {
	if o, ok := ctx.Value(callerKey{}).(*origin); ok {
		return o.address
	}
	return ""
}
