package leaf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/keeper"
	"github.com/hapax-id/hapax/store/driver"
)

// rows keep what hapax knows of the workers below a node of its own. A row that
// was removed stays as an empty node, so that versions only grow and a swap can
// not take one row for another.
type rows struct {
	*keeper.Session
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
	c, err := r.Get(ctx, r.node(table, name))
	if len(c.Raw) == 0 {
		return nil, err
	}
	return c.Raw, err
}

// ListRows implements driver.Rows.
func (r rows) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	nodes, err := r.Children(ctx, r.base+"/"+url.PathEscape(table))
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
	c, err := r.Get(ctx, node)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(c.Raw, old) {
		return false, nil
	}
	if c.Raw == nil {
		_, err = r.Create(ctx, node, next, 0)
	} else {
		_, err = keeper.Call(ctx, r.Session, func(conn *zk.Conn) (*zk.Stat, error) { return conn.Set(node, next, c.Version) })
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode):
		return false, nil
	}
	return false, r.Fail(ctx, err)
}
