// Package keeper is a small client of ZooKeeper for the nodes that foreign systems keep there: a
// session that renews itself, and calls that end with their context.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/zksession"
)

const (
	sessionTimeout = 6 * time.Second
	maxCalls       = 64      // requests under way
	maxReply       = 8 << 20 // bytes
)

// A Session is a session with an ensemble, which renews itself.
type Session struct {
	session *zksession.Session
	address string // of the ensemble, for messages
	timeout time.Duration
	login   sync.WaitGroup
}

// An Ensemble is what a URL tells.
type Ensemble struct {
	Hosts []string      // with their ports
	User  *url.Userinfo // nil: none
	Path  string        // without a slash at its end; "" or "/…"
}

// maxServers is how many servers a URL may name.
const maxServers = 32

// Parse reads zk://[user:password@]host:port[,host:port…][/path]. ok is false where the
// text is not of this form.
func Parse(rawURL string) (e Ensemble, ok bool) {
	rest, ok := strings.CutPrefix(rawURL, "zk://")
	authority, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		u, err := url.Parse("zk://" + authority[:i+1] + "h")
		if err != nil {
			return e, false
		}
		e.User, authority = u.User, authority[i+1:]
	}
	for host := range strings.SplitSeq(authority, ",") {
		if host == "" || strings.ContainsAny(host, "?#@ ") || len(e.Hosts) == maxServers {
			return e, false
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, "2181")
		}
		e.Hosts = append(e.Hosts, host)
	}
	if path = strings.TrimSuffix(path, "/"); path == "" {
		return e, ok
	}
	for part := range strings.SplitSeq(path, "/") {
		ok = ok && part != "" && strings.Trim(part, ".") != "" && !strings.ContainsAny(part, "?#%")
	}
	e.Path = "/" + path
	return e, ok
}

// Open begins a session. It connects in the background; no call takes longer than timeout.
func Open(e Ensemble, timeout time.Duration) (*Session, error) {
	session, err := zksession.Open(context.Background(), e.Hosts, zksession.Options{Timeout: sessionTimeout, MaxReply: maxReply, MaxCalls: maxCalls})
	if err != nil {
		return nil, fmt.Errorf("%w: ZooKeeper: %w", hapax.ErrStoreUnavailable, err)
	}
	s := &Session{session: session, address: strings.Join(e.Hosts, ","), timeout: timeout}
	if e.User != nil {
		password, _ := e.User.Password()
		s.login.Go(func() { _ = session.LogIn(context.Background(), e.User.Username()+":"+password) }) // a failure shows at the first call
	}
	return s, nil
}

// Close ends the session and waits for all that it started.
func (s *Session) Close() {
	s.session.Close(fmt.Errorf("%w: ZooKeeper at %s", hapax.ErrClosed, s.address))
	s.login.Wait()
}

// Call runs f, and returns when the context ends even if f does not. What f did
// is unknown then.
func Call[T any](ctx context.Context, s *Session, f func(*zk.Conn) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	value, err := zksession.Call(limited, s.session, f)
	if ended := context.Cause(limited); ended != nil && errors.Is(err, ended) {
		err = s.Fail(ctx, err)
	}
	return value, err
}

// Fail gives an error its sentinel, unless it has one.
func (s *Session) Fail(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: ZooKeeper at %s: %w", hapax.ErrStoreUnavailable, s.address, cause)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: ZooKeeper at %s: no answer within %v", hapax.ErrStoreUnavailable, s.address, s.timeout)
	}
	return fmt.Errorf("%w: ZooKeeper at %s: %w", hapax.ErrStoreUnavailable, s.address, err)
}

// A Content is a node's data and its version; Raw is nil where there is no node.
type Content struct {
	Raw     []byte
	Version int32
}

// Get reads a node, as the ensemble has it: a member that lags behind catches up
// first.
func (s *Session) Get(ctx context.Context, node string) (Content, error) {
	c, err := Call(ctx, s, func(conn *zk.Conn) (Content, error) {
		if _, err := conn.Sync(node); err != nil {
			return Content{}, err
		}
		raw, stat, err := conn.Get(node)
		if err != nil {
			return Content{}, err
		}
		// Not nil even where the node is empty: nil stands for no node.
		return Content{append([]byte{}, raw...), stat.Version}, nil
	})
	if errors.Is(err, zk.ErrNoNode) {
		return Content{}, nil
	}
	return c, s.Fail(ctx, err)
}

// Children lists a node's children; there are none where there is no node.
func (s *Session) Children(ctx context.Context, node string) ([]string, error) {
	names, err := Call(ctx, s, func(conn *zk.Conn) ([]string, error) {
		if _, err := conn.Sync(node); err != nil {
			return nil, err
		}
		names, _, err := conn.Children(node)
		return names, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	slices.Sort(names)
	return names, s.Fail(ctx, err)
}

// Create makes a node, and those above it. It returns zk.ErrNodeExists as it is.
func (s *Session) Create(ctx context.Context, node string, raw []byte, flags int32) (string, error) {
	try := func() (string, error) {
		return Call(ctx, s, func(conn *zk.Conn) (string, error) { return conn.Create(node, raw, flags, zk.WorldACL(zk.PermAll)) })
	}
	made, err := try()
	if errors.Is(err, zk.ErrNoNode) && path.Dir(node) != "/" {
		if _, err := s.Create(ctx, path.Dir(node), []byte{}, 0); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return "", err
		}
		made, err = try()
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return "", err
	}
	return made, s.Fail(ctx, err)
}
