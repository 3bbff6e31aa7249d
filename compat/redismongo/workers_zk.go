package redismongo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
)

// DefaultWorkersPath is the node below which the instances are.
const DefaultWorkersPath = "/hapax-workers"

const (
	zkSession = 6 * time.Second
	zkReply   = 8 << 20 // bytes
	zkServers = 32
)

var _ Registry = ZooKeeperRegistry{}

// A ZooKeeperRegistry keeps the instances in ZooKeeper:
//
//	PATH/names/NAME.PORT.IP   the worker ID
//	PATH/ids/ID               NAME.PORT.IP
//
// Both are made in one step, and stay.
type ZooKeeperRegistry struct {
	URL string // zk://[user:password@]host:port[,host:port…][/path]; without a path it is DefaultWorkersPath
}

// An ensemble is what a URL tells.
type ensemble struct {
	hosts []string
	user  *url.Userinfo // nil: none
	path  string
}

// parse takes the URL apart.
func (r ZooKeeperRegistry) parse() (e ensemble, err error) {
	bad := &hapax.ValueError{Field: "worker_registry", Value: "(not shown)", Allowed: "zk://[user:password@]host:port[,host:port…][/path]", Err: hapax.ErrInvalidArgument}
	rest, ok := strings.CutPrefix(r.URL, "zk://")
	authority, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		u, err := url.Parse("zk://" + authority[:i+1] + "h")
		if err != nil {
			return e, bad
		}
		e.user, authority = u.User, authority[i+1:]
	}
	for host := range strings.SplitSeq(authority, ",") {
		if host == "" || strings.ContainsAny(host, "?#@ ") || len(e.hosts) == zkServers {
			return e, bad
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, "2181")
		}
		e.hosts = append(e.hosts, host)
	}
	path = strings.TrimSuffix(path, "/")
	if path == "" {
		e.path = DefaultWorkersPath
		return e, check(ok, bad)
	}
	for part := range strings.SplitSeq(path, "/") {
		ok = ok && part != "" && strings.Trim(part, ".") != "" && !strings.ContainsAny(part, "?#%")
	}
	e.path = "/" + path
	return e, check(ok, bad)
}

func check(ok bool, err error) error {
	if ok {
		return nil
	}
	return err
}

// Validate checks the URL without connecting.
func (r ZooKeeperRegistry) Validate() error {
	_, err := r.parse()
	return err
}

type silence struct{}

func (silence) Printf(string, ...any) {}

// Register implements Registry. It connects for this one call.
func (r ZooKeeperRegistry) Register(ctx context.Context, key string, ids hapax.WorkerRange, wanted int64) (int64, error) {
	e, err := r.parse()
	if err != nil {
		return 0, err
	}
	conn, events, err := zk.Connect(e.hosts, zkSession, zk.WithLogger(silence{}), zk.WithLogInfo(false), zk.WithMaxBufferSize(zkReply))
	if err != nil {
		return 0, fmt.Errorf("%w: ZooKeeper: %w", hapax.ErrStoreUnavailable, err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer conn.Close() // ends what follows: calls in flight fail
	running.Go(func() {
		for range events { // closed with the connection
		}
	})
	type result struct {
		id  int64
		err error
	}
	done := make(chan result, 1)
	running.Go(func() {
		t := tree{conn, e.path, zk.WorldACL(zk.PermAll)}
		if e.user != nil {
			password, _ := e.user.Password()
			if err := conn.AddAuth("digest", []byte(e.user.Username()+":"+password)); err != nil {
				done <- result{0, err}
				return
			}
			t.acl = zk.AuthACL(zk.PermAll)
		}
		id, err := t.register(ctx, key, ids, wanted)
		done <- result{id, err}
	})
	select {
	case got := <-done:
		if got.err != nil && hapax.CodeOf(got.err) == hapax.ErrInternal.Code() { // not a word of ours
			got.err = fmt.Errorf("%w: ZooKeeper: %w", hapax.ErrStoreUnavailable, got.err)
		}
		return got.id, got.err
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: ZooKeeper did not answer: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

// A tree is the registry while there is a connection.
type tree struct {
	conn *zk.Conn
	path string
	acl  []zk.ACL
}

func (t tree) register(ctx context.Context, key string, ids hapax.WorkerRange, wanted int64) (int64, error) {
	if err := t.makeDirs(); err != nil {
		return 0, err
	}
	name := t.path + "/names/" + key
	for ctx.Err() == nil {
		// Before the name: who is not there afterwards has none of those that are taken.
		id, freeErr := t.free(ids, wanted)
		raw, _, err := t.conn.Get(name)
		if err == nil {
			id, err := strconv.ParseInt(string(raw), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%w: node %s holds %.100q; want a worker ID", hapax.ErrStoreCorrupt, name, raw)
			}
			return id, nil
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return 0, err
		}
		if freeErr != nil {
			return 0, freeErr
		}
		text := strconv.FormatInt(id, 10)
		_, err = t.conn.Multi(
			&zk.CreateRequest{Path: t.path + "/ids/" + text, Data: []byte(key), Acl: t.acl},
			&zk.CreateRequest{Path: name, Data: []byte(text), Acl: t.acl},
		)
		if err != nil && !errors.Is(err, zk.ErrNodeExists) { // else somebody was faster; look again
			return 0, err
		}
	}
	return 0, fmt.Errorf("%w: ZooKeeper: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
}

// free returns a worker ID that nobody has: the one that is wanted, or the lowest.
func (t tree) free(ids hapax.WorkerRange, wanted int64) (int64, error) {
	names, _, err := t.conn.Children(t.path + "/ids")
	if err != nil {
		return 0, err
	}
	if len(names) >= maxInstances {
		return 0, full(ids)
	}
	taken := make(map[string]bool, len(names))
	for _, n := range names {
		taken[n] = true
	}
	if wanted >= 0 && !taken[strconv.FormatInt(wanted, 10)] {
		return wanted, nil
	}
	for id := ids.Lo; id < ids.Hi; id++ {
		if !taken[strconv.FormatInt(id, 10)] {
			return id, nil
		}
	}
	return 0, full(ids)
}

// makeDirs makes the nodes above the instances.
func (t tree) makeDirs() error {
	for end := 1; end < len(t.path); end++ {
		if t.path[end] != '/' {
			continue
		}
		if err := t.makeDir(t.path[:end]); err != nil {
			return err
		}
	}
	if err := t.makeDir(t.path); err != nil {
		return err
	}
	return errors.Join(t.makeDir(t.path+"/names"), t.makeDir(t.path+"/ids"))
}

func (t tree) makeDir(path string) error {
	_, err := t.conn.Create(path, nil, 0, t.acl)
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
