package leaf

import "context"

// JoinLate makes the node of an address, as a process does that looked at the tree before t did
// anything, found no node of its own, and was held up since.
func (t *Tree) JoinLate(ctx context.Context, address string) (worker int64, err error) {
	t.opts.Address = address
	err = t.makeNode(ctx)
	return t.worker, err
}

// ReuseLate is JoinLate of a process that has also seen that ZooKeeper's numbers are used up.
func (t *Tree) ReuseLate(ctx context.Context, address string, names []string) (worker int64, err error) {
	t.opts.Address = address
	err = t.reuse(ctx, names)
	return t.worker, err
}
