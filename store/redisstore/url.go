package redisstore

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Delays between attempts to connect double, with jitter. Connections end after
// a while, so that what was behind them is looked at again.
const (
	connLifetime   = 30 * time.Minute
	dialBackoffMin = 20 * time.Millisecond
	dialBackoffMax = time.Second
)

// A target is what a URL says, ready to connect; one of the three is set.
type target struct {
	opts     Options
	single   *redis.Options
	sentinel *redis.FailoverOptions
	cluster  *redis.ClusterOptions
}

// parseURL reads the URL over the options. Its errors never quote the URL,
// which may hold a password anywhere when it is mistyped.
func parseURL(raw string, opts Options) (target, error) {
	bad := func(detail string) (target, error) {
		return target{}, &hapax.ValueError{
			Field: "store", Value: "(a Redis URL with " + detail + ")",
			Allowed: "redis[s]://, redis[s]+sentinel://, redis[s]+cluster:// or unix://, with special characters in names and passwords percent-encoded",
			Err:     hapax.ErrInvalidArgument,
		}
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return bad("no scheme")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	hosts := authority
	var user *url.Userinfo
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		name, password, _ := strings.Cut(authority[:i], ":")
		name, err1 := url.PathUnescape(name)
		password, err2 := url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return bad("a user or password that is not percent-encoded")
		}
		user, hosts = url.UserPassword(name, password), authority[i+1:]
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return bad("parameters that are not percent-encoded")
	}
	if opts, err = opts.withQuery(q); err != nil {
		return target{}, err
	}
	t := target{opts: opts}
	addrs := strings.Split(hosts, ",")
	for _, a := range addrs {
		if !validHost(a) {
			return bad("an address that is not host or host:port")
		}
	}
	// A parameter addr would add servers that the checks above have not seen.
	if q.Del("addr"); len(addrs) > 1 {
		q["addr"] = withPorts(addrs[1:])
	}
	base := url.URL{Scheme: scheme, User: user, Host: addrs[0], Path: "/" + path}
	transport, mode, _ := strings.Cut(scheme, "+")
	switch {
	case scheme == "unix" || (scheme == "redis" || scheme == "rediss") && len(addrs) == 1:
		base.RawQuery = q.Encode()
		t.single, err = redis.ParseURL(base.String())
	case mode == "sentinel" && (transport == "redis" || transport == "rediss"):
		master, db, _ := strings.Cut(path, "/")
		master, unescapeErr := url.PathUnescape(master)
		if master == "" || unescapeErr != nil {
			return bad("no master name after the addresses")
		}
		sentinelUser, sentinelPassword := q.Get("sentinel_username"), q.Get("sentinel_password")
		q.Del("sentinel_username")
		q.Del("sentinel_password")
		q.Set("master_name", master)
		base.Scheme, base.Path, base.RawQuery = transport, "/"+db, q.Encode()
		if t.sentinel, err = redis.ParseFailoverURL(base.String()); err == nil {
			// From such a URL go-redis takes the user for the Sentinels themselves; here it is the server's, as
			// in other URLs.
			t.sentinel.Username, t.sentinel.Password = t.sentinel.SentinelUsername, t.sentinel.SentinelPassword
			t.sentinel.SentinelUsername, t.sentinel.SentinelPassword = sentinelUser, sentinelPassword
		}
	case mode == "cluster" && (transport == "redis" || transport == "rediss"):
		if path != "" && path != "0" {
			return bad("a database, which Cluster does not have")
		}
		base.Scheme, base.Path, base.RawQuery = transport, "", q.Encode()
		t.cluster, err = redis.ParseClusterURL(base.String())
	default:
		return bad("an unknown scheme, or several addresses without +sentinel or +cluster")
	}
	if err != nil {
		if db, ok := database(err, base, q); ok {
			return target{}, &hapax.ValueError{Field: "database of the Redis URL", Value: db, Allowed: "a number, as in redis://HOST:6379/0", Err: hapax.ErrInvalidArgument}
		}
		if err := refused(err); err != nil {
			return target{}, err
		}
		return bad("a parameter that go-redis does not accept")
	}
	return t, nil
}

// misread are the errors of go-redis about a parameter, which name it and quote its value.
var misread = regexp.MustCompile(`^redis: (?:unexpected option: |invalid )([a-z_]+)`)

// database returns the name of a database that go-redis does not accept as one.
func database(err error, u url.URL, q url.Values) (name string, ok bool) {
	text := err.Error()
	if !strings.HasPrefix(text, "redis: invalid database number") && !strings.HasPrefix(text, "redis: invalid URL path") {
		return "", false
	}
	if u.Scheme == "unix" {
		return q.Get("db"), true
	}
	return strings.Trim(u.Path, "/"), true
}

// parameters are the parameters that a URL may have, by the form of their values.
var parameters = []struct {
	form  string
	names []string
}{
	{"a duration with its unit, such as 5s", []string{"dial_timeout", "read_timeout", "write_timeout", "pool_timeout", "dialer_retry_timeout", "min_retry_backoff", "max_retry_backoff", "conn_max_idle_time", "conn_max_lifetime", "conn_max_lifetime_jitter", "route_by_latency_tolerance"}},
	{"a whole number", []string{"db", "protocol", "max_retries", "max_redirects", "dialer_retries", "pool_size", "min_idle_conns", "max_idle_conns", "max_active_conns", "max_concurrent_dials", "wait"}},
	{"true or false", []string{"pool_fifo", "skip_verify", "context_timeout_enabled", "route_by_latency", "route_randomly", "read_only"}},
	{"a text", []string{"client_name", "sentinel_username", "sentinel_password", "prefix"}},
}

// refused says what else go-redis does not accept, by name: a value may be a password where the
// URL is mistyped.
func refused(err error) error {
	text := err.Error()
	m := misread.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	var known []string
	for _, p := range parameters {
		if slices.Contains(p.names, m[1]) && !strings.HasPrefix(text, "redis: unexpected") && p.form != "a text" {
			return &hapax.ValueError{Field: "store URL parameter " + m[1], Value: "(not shown)", Allowed: p.form, Err: hapax.ErrInvalidArgument}
		}
		known = append(known, p.names...)
	}
	return driver.WrongParameter(m[1], known, "")
}

// withQuery takes the store's own parameters out of q, fills in the defaults and
// checks the options.
func (o Options) withQuery(q url.Values) (Options, error) {
	if q.Has("prefix") {
		o.Prefix = q.Get("prefix")
	}
	if q.Has("wait") {
		n, err := strconv.Atoi(q.Get("wait"))
		if err != nil {
			return o, &hapax.ValueError{Field: "wait", Value: q.Get("wait"), Allowed: "0 to 100 replicas", Err: hapax.ErrInvalidArgument}
		}
		o.Wait = n
	}
	for _, own := range []string{"prefix", "wait"} {
		q.Del(own)
	}
	return o.withDefaults()
}

// validHost reports whether a is a host with or without a port.
func validHost(a string) bool {
	if strings.ContainsAny(a, "@/?#%") {
		return false
	}
	if _, port, err := net.SplitHostPort(a); err == nil {
		_, err := strconv.ParseUint(port, 10, 16)
		return err == nil
	}
	return !strings.Contains(a, ":") || strings.HasPrefix(a, "[") && strings.HasSuffix(a, "]")
}

func withPorts(addrs []string) []string {
	full := slices.Clone(addrs)
	for i, a := range full {
		if _, _, err := net.SplitHostPort(a); err != nil {
			full[i] = net.JoinHostPort(strings.Trim(a, "[]"), "6379")
		}
	}
	return full
}

// connect makes the client, which connects at its first use. Scripts are never
// sent twice (see eval); reads and connecting are tried again with growing
// delays. What goes to replicas is switched off.
func (t target) connect() redis.UniversalClient {
	tlsFor := func(c *tls.Config) *tls.Config {
		switch {
		case c != nil && t.opts.TLS != nil:
			return t.opts.TLS.Clone()
		case c != nil && t.single == nil:
			c.ServerName = "" // of each address, not of the first
		}
		return c
	}
	backoff := redis.DialRetryBackoffExponential(dialBackoffMin, dialBackoffMax)
	poolSize := 10 * runtime.GOMAXPROCS(0)
	switch {
	case t.sentinel != nil:
		o := t.sentinel
		o.ContextTimeoutEnabled, o.DisableIdentity, o.DialerRetryBackoff = true, true, backoff
		o.ReplicaOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
		o.PoolSize, o.ReadTimeout, o.ConnMaxLifetime = cmp.Or(o.PoolSize, poolSize), cmp.Or(o.ReadTimeout, t.opts.Timeout), cmp.Or(o.ConnMaxLifetime, connLifetime)
		o.TLSConfig = tlsFor(o.TLSConfig)
		return redis.NewFailoverClient(o)
	case t.cluster != nil:
		o := t.cluster
		o.ContextTimeoutEnabled, o.DisableIdentity, o.DialerRetryBackoff = true, true, backoff
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
		o.DisableRoutingPolicies = true
		o.PoolSize, o.ReadTimeout, o.ConnMaxLifetime = cmp.Or(o.PoolSize, poolSize), cmp.Or(o.ReadTimeout, t.opts.Timeout), cmp.Or(o.ConnMaxLifetime, connLifetime)
		o.TLSConfig = tlsFor(o.TLSConfig)
		return redis.NewClusterClient(o)
	}
	o := t.single
	o.ContextTimeoutEnabled, o.DisableIdentity, o.DialerRetryBackoff = true, true, backoff
	o.PoolSize, o.ReadTimeout, o.ConnMaxLifetime = cmp.Or(o.PoolSize, poolSize), cmp.Or(o.ReadTimeout, t.opts.Timeout), cmp.Or(o.ConnMaxLifetime, connLifetime)
	o.TLSConfig = tlsFor(o.TLSConfig)
	return redis.NewClient(o)
}
