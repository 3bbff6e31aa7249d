package redismongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/keeper"
)

// DefaultWorkersPath is the node below which the instances are.
const DefaultWorkersPath = "/hapax-workers"

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

// parse takes the URL apart.
func (r ZooKeeperRegistry) parse() (keeper.Ensemble, error) {
	e, ok := keeper.Parse(r.URL)
	if !ok {
		return e, &hapax.ValueError{Field: "worker_registry", Value: "(not shown)", Allowed: "zk://[user:password@]host:port[,host:port…][/path]", Err: hapax.ErrInvalidArgument}
	}
	e.Path = cmp.Or(e.Path, DefaultWorkersPath)
	return e, nil
}

// Validate checks the URL without connecting.
func (r ZooKeeperRegistry) Validate() error {
	_, err := r.parse()
	return err
}

// registerWithin bounds one registration.
const registerWithin = time.Minute

// Register implements Registry. It connects for this one call.
func (r ZooKeeperRegistry) Register(ctx context.Context, key string, ids hapax.WorkerRange, wanted int64) (int64, error) {
	e, err := r.parse()
	if err != nil {
		return 0, err
	}
	user := e.User
	e.User = nil // what is created belongs to the user, so the login has to come first, below
	s, err := keeper.Open(e, registerWithin)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	id, err := keeper.Call(ctx, s, func(conn *zk.Conn) (int64, error) {
		t := tree{conn, e.Path, zk.WorldACL(zk.PermAll)}
		if user != nil {
			password, _ := user.Password()
			if err := conn.AddAuth("digest", []byte(user.Username()+":"+password)); err != nil {
				return 0, err
			}
			t.acl = zk.AuthACL(zk.PermAll)
		}
		return t.register(ctx, key, ids, wanted)
	})
	return id, s.Fail(ctx, err)
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
		// Before the name: an instance whose name is not there afterwards has none of the taken ones.
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
		// Both or neither: it is the node of the ID that only one instance can make.
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
