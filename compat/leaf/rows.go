package leaf

import (
	"bytes"
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
	"github.com/hapax-id/hapax/store/driver"
)

const (
	sessionTimeout = 6 * time.Second
	dialWithin     = 2 * time.Second
	silentFor      = 2 * sessionTimeout / 3 // pings come more often
	maxCalls       = 64                     // requests under way
	maxReply       = 8 << 20                // bytes
	maxRequest     = 256 << 10              // bytes
)

// A session is a connection to an ensemble, which renews itself.
type session struct {
	conn    *zk.Conn
	address string // of the ensemble, for messages
	timeout time.Duration
	slots   chan struct{}
	life    context.Context
	end     context.CancelFunc

	mu      sync.Mutex // guards closed, and starts of calls
	closed  bool
	running sync.WaitGroup
}

type silence struct{}

func (silence) Printf(string, ...any) {}

func newSession(hosts []string, user *url.Userinfo, timeout time.Duration) (*session, error) {
	s := &session{address: strings.Join(hosts, ","), timeout: timeout, slots: make(chan struct{}, maxCalls)}
	s.life, s.end = context.WithCancel(context.Background())
	conn, events, err := zk.Connect(hosts, sessionTimeout, zk.WithDialer(s.dial),
		zk.WithLogger(silence{}), zk.WithLogInfo(false), // errors are returned
		zk.WithMaxBufferSize(maxReply), zk.WithMaxConnBufferSize(maxRequest))
	if err != nil {
		return nil, fmt.Errorf("%w: ZooKeeper: %w", hapax.ErrStoreUnavailable, err)
	}
	s.conn = conn
	s.running.Go(func() {
		for range events { // closed when the library's goroutines have ended
		}
	})
	if user != nil {
		password, _ := user.Password()
		if !s.spawn(func() { _ = conn.AddAuth("digest", []byte(user.Username()+":"+password)) }) { // a failure shows at the first call
			return nil, s.closedError()
		}
	}
	return s, nil
}

// A socket is a connection that is given up when nothing comes for a while: the
// library would wait for a new session ten times as long.
type socket struct{ net.Conn }

// SetReadDeadline implements net.Conn.
func (c socket) SetReadDeadline(t time.Time) error {
	if most := time.Now().Add(silentFor); t.IsZero() || t.After(most) {
		t = most
	}
	return c.Conn.SetReadDeadline(t)
}

func (s *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.life, min(timeout, dialWithin))
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(s.life, func() { _ = raw.Close() }) // it may be closed already
	return socket{closer{raw, stop}}, nil
}

// A closer forgets a connection's end when it is closed before.
type closer struct {
	net.Conn
	forget func() bool
}

// Close implements net.Conn.
func (c closer) Close() error {
	c.forget()
	return c.Conn.Close()
}

func (s *session) closedError() error {
	return fmt.Errorf("%w: the tree in ZooKeeper at %s", hapax.ErrClosed, s.address)
}

// spawn runs f in a goroutine that close waits for.
func (s *session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// close ends the session and waits for all that it started.
func (s *session) close() {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return
	}
	s.end()
	s.conn.Close()
	s.running.Wait()
}

// call runs f, and returns when the context ends even if f does not. What f did
// is unknown then.
func call[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error)) (T, error) {
	var none T
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
	case <-limited.Done():
		return none, s.fail(ctx, limited.Err())
	}
	type result struct {
		value T
		err   error
	}
	out := make(chan result, 1)
	if !s.spawn(func() {
		defer func() { <-s.slots }()
		value, err := f(s.conn)
		out <- result{value, err}
	}) {
		<-s.slots
		return none, s.closedError()
	}
	select {
	case r := <-out:
		return r.value, r.err
	case <-limited.Done():
		return none, s.fail(ctx, limited.Err())
	}
}

// fail gives an error its sentinel, unless it has one.
func (s *session) fail(ctx context.Context, err error) error {
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

// A content is a node's data and its version; raw is nil where there is no node.
type content struct {
	raw     []byte
	version int32
}

// get reads a node, as the ensemble has it: a member that lags behind catches up
// first.
func (s *session) get(ctx context.Context, node string) (content, error) {
	c, err := call(ctx, s, func(conn *zk.Conn) (content, error) {
		if _, err := conn.Sync(node); err != nil {
			return content{}, err
		}
		raw, stat, err := conn.Get(node)
		if err != nil {
			return content{}, err
		}
		return content{append([]byte{}, raw...), stat.Version}, nil
	})
	if errors.Is(err, zk.ErrNoNode) {
		return content{}, nil
	}
	return c, s.fail(ctx, err)
}

// children lists a node's children; there are none where there is no node.
func (s *session) children(ctx context.Context, node string) ([]string, error) {
	names, err := call(ctx, s, func(conn *zk.Conn) ([]string, error) {
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
	return names, s.fail(ctx, err)
}

// create makes a node, and those above it. It returns zk.ErrNodeExists as it is.
func (s *session) create(ctx context.Context, node string, raw []byte, flags int32) (string, error) {
	try := func() (string, error) {
		return call(ctx, s, func(conn *zk.Conn) (string, error) { return conn.Create(node, raw, flags, zk.WorldACL(zk.PermAll)) })
	}
	made, err := try()
	if errors.Is(err, zk.ErrNoNode) && path.Dir(node) != "/" {
		if _, err := s.create(ctx, path.Dir(node), []byte{}, 0); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return "", err
		}
		made, err = try()
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return "", err
	}
	return made, s.fail(ctx, err)
}

// rows keep what hapax knows of the workers below a node of its own. A row that
// was removed stays as an empty node, so that versions only grow and a swap can
// not take one row for another.
type rows struct {
	*session
	base string
}

var _ driver.Rows = rows{}

func (r rows) node(table, name string) string {
	return r.base + "/" + url.PathEscape(table) + "/" + escape(name)
}

// escape returns a name as one element of a path.
func escape(name string) string {
	if strings.Trim(name, ".") == "" { // . and .. have a meaning of their own
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Shared implements driver.Rows.
func (r rows) Shared() bool { return true }

// Row implements driver.Rows.
func (r rows) Row(ctx context.Context, table, name string) ([]byte, error) {
	c, err := r.get(ctx, r.node(table, name))
	if len(c.raw) == 0 {
		return nil, err
	}
	return c.raw, err
}

// ListRows implements driver.Rows.
func (r rows) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	nodes, err := r.children(ctx, r.base+"/"+url.PathEscape(table))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, node := range nodes {
		name, err := url.PathUnescape(node)
		if err != nil || escape(name) != node {
			return nil, fmt.Errorf("%w: node %q below %s is not named as hapax names nodes", hapax.ErrStoreCorrupt, node, r.base)
		}
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var found []driver.Row
	for _, name := range names {
		if len(found) >= limit {
			break
		}
		value, err := r.Row(ctx, table, name)
		if err != nil {
			return nil, err
		}
		if value != nil {
			found = append(found, driver.Row{Name: name, Value: value})
		}
	}
	return found, nil
}

// SwapRow implements driver.Rows.
func (r rows) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	node := r.node(table, name)
	c, err := r.get(ctx, node)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(c.raw, old) {
		return false, nil
	}
	if c.raw == nil {
		_, err = r.create(ctx, node, next, 0)
	} else {
		_, err = call(ctx, r.session, func(conn *zk.Conn) (*zk.Stat, error) { return conn.Set(node, next, c.version) })
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode):
		return false, nil
	}
	return false, r.fail(ctx, err)
}
