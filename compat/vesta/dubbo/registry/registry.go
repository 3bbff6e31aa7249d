// Package registry registers a Dubbo provider with ZooKeeper, where consumers look
// for it: as an ephemeral node, named by the provider's URL, below
// /dubbo/INTERFACE/providers. ZooKeeper removes the node with the session that it
// belongs to; the provider is registered anew with the next session.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/zksession"
)

// Defaults of Options.
const (
	DefaultRoot    = "/dubbo"
	DefaultSession = 10 * time.Second
)

const (
	maxServers = 32
	retryAfter = time.Second // when ZooKeeper refused
	maxReply   = 1 << 20     // bytes
)

// errClosed is why a session has ended whose registration was closed.
var errClosed = errors.New("the registration was closed")

// methods are those of IdService, as a provider's URL lists them.
const methods = "expId,genId,makeId,transTime"

// Options tune a registration. The zero value suits most uses.
type Options struct {
	// Root is the node that holds the registry; default "/dubbo". Registry settings
	// of Dubbo call it the group.
	Root string

	// Application is the provider's application; default "hapax".
	Application string

	// Group and Version are the service's; a consumer that asks for others does not
	// find it. Default none.
	Group, Version string

	// Session is how long ZooKeeper keeps the provider registered without hearing
	// from it: 1 s to 1 min, default 10 s.
	Session time.Duration
}

// A Registration keeps a provider registered until it is closed.
type Registration struct {
	session *zksession.Session
	loops   sync.WaitGroup
	first   chan error // one for each interface: its first outcome
}

// Register registers a provider of interfaces at address, which is the IP address and
// port that consumers reach, and returns when that is done. The registry is
// "zk://HOST:PORT,HOST:PORT", or a Dubbo registry's own
// "zookeeper://HOST:PORT?backup=HOST:PORT". Until the context ends it waits for
// ZooKeeper. Errors are a *hapax.ValueError, or match hapax.ErrStoreUnavailable.
func Register(ctx context.Context, registry string, interfaces []string, address string, opts Options) (*Registration, error) {
	servers, err := parseRegistry(registry)
	if err != nil {
		return nil, err
	}
	opts, err = opts.withDefaults()
	if err != nil {
		return nil, err
	}
	nodes := make([]node, 0, len(interfaces))
	for _, name := range interfaces {
		n, err := newNode(name, address, opts)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	// Not under ctx, which bounds the first registration alone.
	session, err := zksession.Open(context.Background(), servers, zksession.Options{Timeout: opts.Session, MaxReply: maxReply, MaxCalls: len(nodes)})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	r := &Registration{session: session, first: make(chan error, len(nodes))}
	for _, n := range nodes {
		r.loops.Go(func() { r.keep(n) })
	}
	for range nodes {
		select {
		case err := <-r.first:
			if err != nil {
				r.Close()
				return nil, fmt.Errorf("%w: registry %s: %w", hapax.ErrStoreUnavailable, registry, err)
			}
		case <-ctx.Done():
			r.Close()
			return nil, &hapax.WaitError{Cause: fmt.Errorf("%w: registry %s did not answer", hapax.ErrStoreUnavailable, registry), Context: ctx.Err()}
		}
	}
	return r, nil
}

// Close takes the provider off the registry, and waits until that is done or ZooKeeper
// has not answered for a second: then its node goes with the session.
func (r *Registration) Close() {
	r.session.Close(errClosed)
	r.loops.Wait()
}

// A node is what stands in the registry for one interface.
type node struct {
	dir  string
	path string
}

func newNode(name, address string, opts Options) (node, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil || addr.Addr().IsUnspecified() || addr.Port() == 0 {
		return node{}, &hapax.ValueError{Field: "address", Value: address, Allowed: "the IP address and port that consumers reach, such as 10.0.0.5:20880", Err: hapax.ErrInvalidArgument}
	}
	if name == "" || strings.ContainsAny(name, "/?#% ") {
		return node{}, &hapax.ValueError{Field: "interface", Value: name, Allowed: "the full name of a Java interface", Err: hapax.ErrInvalidArgument}
	}
	query := url.Values{
		"anyhost": {"true"}, "application": {opts.Application}, "category": {"providers"}, "dubbo": {"2.0.2"},
		"dynamic": {"true"}, "interface": {name}, "methods": {methods}, "serialization": {"hessian2"}, "side": {"provider"},
	}
	for key, value := range map[string]string{"group": opts.Group, "version": opts.Version} {
		if value != "" {
			query.Set(key, value)
		}
	}
	u := url.URL{Scheme: "dubbo", Host: addr.String(), Path: "/" + name, RawQuery: query.Encode()}
	dir := opts.Root + "/" + name + "/providers"
	return node{dir, dir + "/" + url.QueryEscape(u.String())}, nil
}

// keep registers a node, and again whenever it is gone.
func (r *Registration) keep(n node) {
	var session int64 // that the node was taken over for
	for registered := false; r.session.Cause() == nil; {
		gone, err := r.ensure(n, &session)
		if !registered && (err == nil || !zksession.IsLost(err)) {
			registered = true
			r.first <- err // has room for each node's
		}
		wait := time.After(retryAfter)
		if err == nil {
			wait = nil
		}
		select {
		case <-gone: // never, after an error
		case <-wait:
		case <-r.session.Done():
		}
	}
}

// ensure sees to it that the node is there, and returns a channel that says when it
// may be gone. A node of another session is one that a previous run of this provider
// left: it is replaced once for each session. If another provider says that it has the
// same address, the two do not replace each other for ever.
func (r *Registration) ensure(n node, session *int64) (<-chan zk.Event, error) {
	if err := r.mkdir(n.dir); err != nil {
		return nil, err
	}
	found, stat, gone, err := r.session.Conn.ExistsW(n.path)
	if err != nil {
		return nil, err
	}
	own := r.session.Conn.SessionID()
	if found && (stat.EphemeralOwner == own || *session == own) {
		*session = own
		return gone, nil
	}
	if found {
		if err := r.session.Conn.Delete(n.path, stat.Version); err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrBadVersion) {
			return nil, err
		}
	}
	// Whether it is there now is what the next round finds: the watch fires.
	_, err = r.session.Conn.Create(n.path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	if err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return nil, err
	}
	*session = own
	return gone, nil
}

// mkdir creates a directory and those above it.
func (r *Registration) mkdir(path string) error {
	found, _, err := r.session.Conn.Exists(path)
	if found || err != nil {
		return err
	}
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		if _, err := r.session.Conn.Create(path[:i], nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}

func (o Options) withDefaults() (Options, error) {
	if o.Root == "" {
		o.Root = DefaultRoot
	}
	if o.Root[0] != '/' || strings.HasSuffix(o.Root, "/") || strings.Contains(o.Root, "//") {
		return o, &hapax.ValueError{Field: "root", Value: o.Root, Allowed: "a path such as /dubbo", Err: hapax.ErrInvalidArgument}
	}
	if o.Application == "" {
		o.Application = "hapax"
	}
	if o.Session == 0 {
		o.Session = DefaultSession
	}
	if o.Session < time.Second || o.Session > time.Minute {
		return o, &hapax.ValueError{Field: "session", Value: o.Session, Allowed: "1s to 1m", Err: hapax.ErrInvalidArgument}
	}
	return o, nil
}

func parseRegistry(text string) ([]string, error) {
	refused := &hapax.ValueError{
		Field: "registry", Value: text,
		Allowed: fmt.Sprintf("zk://HOST:PORT,HOST:PORT with up to %d servers", maxServers), Err: hapax.ErrInvalidArgument,
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "zk" && scheme != "zookeeper" {
		return nil, refused
	}
	rest, query, _ := strings.Cut(rest, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, refused
	}
	list := strings.Split(strings.TrimSuffix(rest, "/"), ",")
	for _, backup := range values["backup"] {
		list = append(list, strings.Split(backup, ",")...)
	}
	if len(list) > maxServers {
		return nil, refused
	}
	for _, server := range list {
		host, port, err := net.SplitHostPort(server)
		if err != nil || host == "" || port == "" || strings.ContainsAny(server, "/@") {
			return nil, refused
		}
	}
	return list, nil
}
