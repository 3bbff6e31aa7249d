package leaf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
)

// closedName is a node below forever beside which no Leaf starts by the tree: it takes what
// follows the dash of every name for a number, and gives up at this one.
const closedName = "hapax-moved"

// A closedNode is what that node holds.
type closedNode struct {
	From int64  `json:"native_workers_from"`
	Note string `json:"note"`
}

const closedNote = "the worker IDs from there on are hapax's (hapax import leaf --apply); a Leaf that is started gives up at this node; hapax import leaf --undo removes it"

// CloseTree closes the tree for Leaf, and for a hapax that takes part in it, and returns the
// first worker ID that no node of the tree has: numbers that are issued natively have the
// worker IDs from there on. It can be repeated; ReopenTree is the way back.
//
// A Leaf that is started then finds a name that it cannot read and gives up, whatever its
// ip:port. Where a file workerID.properties of an earlier start is left, it starts with the
// worker ID in that instead, as it does with every failure of the tree. That is one of a
// node of the tree, and so none of those that are used natively: what it issues is nobody
// else's number. The same is true of a Leaf that has run all the time.
//
// ErrNoWorker where no such worker ID is left; then nothing is closed.
func CloseTree(ctx context.Context, t *Tree) (from int64, err error) {
	// Until one look finds it closed and nothing new: a Leaf that was starting may have made its node in
	// between.
	for {
		from, closed, err := TreeClosed(ctx, t)
		if err != nil {
			return 0, err
		}
		names, err := t.session.Children(ctx, t.forever)
		if err != nil {
			return 0, err
		}
		first := firstFree(names)
		if closed && first <= from {
			return from, nil
		}
		if first >= workerIDs {
			return 0, fmt.Errorf("%w: node %s/%s has the largest worker ID, so that there is none above those that Leaf had: retire that node with hapax leaf retire once its process has ended for good, or go on with the tree",
				hapax.ErrNoWorker, t.forever, names[slices.IndexFunc(names, func(name string) bool { _, w, ok := split(name); return ok && w == first-1 })])
		}
		if closed { // a Leaf that was starting just then has made a node
			if err := ReopenTree(ctx, t); err != nil {
				return 0, err
			}
		}
		raw, err := json.Marshal(closedNode{first, closedNote})
		if err != nil {
			return 0, err
		}
		if _, err := t.session.Create(ctx, t.forever+"/"+closedName, raw, 0); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return 0, err
		}
	}
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

// TreeClosed reports whether the tree is closed, and the first worker ID that is used
// natively then.
func TreeClosed(ctx context.Context, t *Tree) (from int64, closed bool, err error) {
	c, err := t.session.Get(ctx, t.forever+"/"+closedName)
	if err != nil || c.Raw == nil {
		return 0, false, err
	}
	var n closedNode
	if err := json.Unmarshal(c.Raw, &n); err != nil || n.From < 0 || n.From >= workerIDs {
		return 0, true, fmt.Errorf("%w: node %s/%s holds %.200q; want native_workers_from", hapax.ErrStoreCorrupt, t.forever, closedName, c.Raw)
	}
	return n.From, true, nil
}

// ReopenTree gives the tree back to Leaf. Its new nodes may be given worker IDs that were
// used natively: start them once the clock is past the time of the native numbers.
func ReopenTree(ctx context.Context, t *Tree) error {
	return t.remove(ctx, t.forever+"/"+closedName)
}

// errClosedTree is the error for a process that would take part in a tree that was moved.
func (t *Tree) errClosedTree() error {
	return fmt.Errorf("%w: the tree below %s was moved to native worker IDs (hapax import leaf --apply), and --undo opens it again", hapax.ErrLineExhausted, t.forever)
}
