package leaf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/keeper"
	"github.com/hapax-id/hapax/internal/moves"
)

// closedName is a node below forever beside which no Leaf starts by the tree: it takes what
// follows the dash of every name for a number, and gives up at this one.
const closedName = "hapax-moved"

// A closedNode is what that node holds.
type closedNode struct {
	From  int64  `json:"native_workers_from"`
	Store string `json:"store"` // the ID of the hapax store whose pool has them
	Note  string `json:"note"`
}

const closedNote = "the worker IDs from there on are hapax's (hapax import leaf --apply); a Leaf that is started gives up at this node; hapax import leaf --undo removes it"

// CloseTree closes the tree for Leaf, and for a hapax that takes part in it, and returns the
// first worker ID that no node of the tree has: numbers that are issued natively have the
// worker IDs from there on, in the pool of the store with that ID alone. A tree that is closed
// for another one is refused (ErrInvalidArgument). It can be repeated; ReopenTree is the way
// back.
//
// A Leaf that is started then finds a name that it cannot read and gives up, whatever its
// ip:port. Where a file workerID.properties of an earlier start is left, it starts with the
// worker ID in that instead, as it does with every failure of the tree. That is one of a
// node of the tree, and so none of those that are used natively: what it issues is nobody
// else's number. The same is true of a Leaf that has run all the time.
//
// ErrNoWorker where no such worker ID is left; then nothing is closed.
func CloseTree(ctx context.Context, t *Tree, store string) (from int64, err error) {
	// Until one look finds it closed and nothing new: a Leaf that was starting may have made its node in
	// between.
	for {
		at, err := t.closedFor(ctx, store)
		if err != nil {
			return 0, err
		}
		names, err := t.session.Children(ctx, t.forever)
		if err != nil {
			return 0, err
		}
		first := firstFree(names)
		if at.closed && first <= at.From {
			return at.From, nil
		}
		if first >= workerIDs {
			return 0, fmt.Errorf("%w: node %s/%s has the largest worker ID, so that there is none above those that Leaf had: retire that node with hapax leaf retire once its process has ended for good, or go on with the tree",
				hapax.ErrNoWorker, t.forever, names[slices.IndexFunc(names, func(name string) bool { _, w, ok := split(name); return ok && w == first-1 })])
		}
		if at.closed { // a Leaf that was starting just then has made a node
			if err := t.reopen(ctx, at); err != nil {
				return 0, err
			}
		}
		raw, err := json.Marshal(closedNode{first, store, closedNote})
		if err != nil {
			return 0, err
		}
		if err := t.close(ctx, raw); err != nil {
			return 0, err
		}
	}
}

// close makes the node that closes the tree, unless there is one. Its own version begins anew with each,
// so that forever's, which nobody else writes, tells one from another.
func (t *Tree) close(ctx context.Context, raw []byte) error {
	if _, err := t.session.Create(ctx, t.forever, []byte{}, 0); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return err
	}
	above, err := t.session.Get(ctx, t.forever)
	if err != nil {
		return err
	}
	_, err = keeper.Call(ctx, t.session, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		return conn.Multi(&zk.SetDataRequest{Path: t.forever, Data: above.Raw, Version: above.Version},
			&zk.CreateRequest{Path: t.forever + "/" + closedName, Data: raw, Acl: zk.WorldACL(zk.PermAll)})
	})
	if errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrBadVersion) {
		return nil
	}
	return t.session.Fail(ctx, err)
}

// firstFree returns the first worker ID above those of all nodes.
func firstFree(names []string) (first int64) {
	for _, name := range names {
		if _, worker, ok := split(name); ok && worker < workerIDs {
			first = max(first, worker+1)
		}
	}
	return first
}

// A closing is the node that closes a tree, as it was read.
type closing struct {
	closedNode

	closed         bool
	version, above int32 // of the node, and of forever
}

func (t *Tree) closing(ctx context.Context) (at closing, err error) {
	above, err := t.session.Get(ctx, t.forever) // first: if another node is there by now, it is older
	if err != nil {
		return at, err
	}
	c, err := t.session.Get(ctx, t.forever+"/"+closedName)
	if err != nil || c.Raw == nil {
		return at, err
	}
	at.closed, at.version, at.above = true, c.Version, above.Version
	if err := json.Unmarshal(c.Raw, &at.closedNode); err != nil || at.From < 0 || at.From >= workerIDs {
		return at, fmt.Errorf("%w: node %s/%s holds %.200q; want native_workers_from", hapax.ErrStoreCorrupt, t.forever, closedName, c.Raw)
	}
	return at, nil
}

// closedFor refuses a tree that is closed for another store: two of them would use the same worker IDs.
func (t *Tree) closedFor(ctx context.Context, store string) (closing, error) {
	at, err := t.closing(ctx)
	switch {
	case err != nil || !at.closed:
		return at, err
	case at.Store == "":
		return at, fmt.Errorf("%w: node %s/%s names no hapax store: a build that noted none has closed the tree: give --undo of that build, and repeat", hapax.ErrInvalidArgument, t.forever, closedName)
	}
	return at, moves.NotOurs("the tree below "+t.forever, at.Store, store)
}

// CheckClosed returns the error of CloseTree and ReopenTree for a tree that is closed for another
// store, and writes nothing.
func CheckClosed(ctx context.Context, t *Tree, store string) error {
	_, err := t.closedFor(ctx, store)
	return err
}

// TreeClosed reports whether the tree is closed, and the first worker ID that is used
// natively then.
func TreeClosed(ctx context.Context, t *Tree) (from int64, closed bool, err error) {
	at, err := t.closing(ctx)
	if err != nil {
		return 0, at.closed, err
	}
	return at.From, at.closed, nil
}

// ReopenTree gives the tree back to Leaf, if it is closed for the store with that ID. Its new nodes
// may be given worker IDs that were used natively: start them once the clock is past the time of the
// native numbers.
func ReopenTree(ctx context.Context, t *Tree, store string) error {
	at, err := t.closedFor(ctx, store)
	if err != nil || !at.closed {
		return err
	}
	return t.reopen(ctx, at)
}

// reopen removes the node that closes the tree, if it is the one that was read: the tree may have been
// opened and closed again since, also for another store.
func (t *Tree) reopen(ctx context.Context, at closing) error {
	_, err := keeper.Call(ctx, t.session, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		return conn.Multi(&zk.CheckVersionRequest{Path: t.forever, Version: at.above}, &zk.DeleteRequest{Path: t.forever + "/" + closedName, Version: at.version})
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case errors.Is(err, zk.ErrBadVersion):
		return fmt.Errorf("%w: the tree below %s was closed anew since it was looked at: repeat this if it is still to be opened", hapax.ErrInvalidArgument, t.forever)
	}
	return t.session.Fail(ctx, err)
}

// CheckStillClosed refuses a tree that is not closed any more for the store with that ID: another command
// has opened it.
func CheckStillClosed(ctx context.Context, t *Tree, store string) error {
	at, err := t.closedFor(ctx, store)
	if err == nil && !at.closed {
		err = fmt.Errorf("%w: the tree below %s was opened by another command, such as --undo, meanwhile: repeat this if it is still to be moved", hapax.ErrInvalidArgument, t.forever)
	}
	return err
}

// errClosedTree is the error for a process that would take part in a tree that was moved.
func (t *Tree) errClosedTree() error {
	return fmt.Errorf("%w: the tree below %s was moved to native worker IDs (hapax import leaf --apply), and --undo opens it again", hapax.ErrLineExhausted, t.forever)
}
