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

// ReopenLate is ReopenTree of a command that was held up after it had looked at the tree.
func (t *Tree) ReopenLate(ctx context.Context, store string, meanwhile func()) error {
	at, err := t.closedFor(ctx, store)
	if err != nil {
		return err
	}
	meanwhile()
	return t.reopen(ctx, at)
}
