package leaf

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
)

// importCommand is hapax import leaf.
func importCommand() *mount.Import {
	var given leaf.Config
	var table string
	return &mount.Import{
		Use:   "leaf [FILE]",
		Short: "Read Leaf's properties, and move its table and tree to native tags",
		Long: `Leaf reads leaf.properties, of the server or of the starter, or --table, --tree, --name
and --port instead, and prints the block "compat: leaf:" of a server that serves from
the same table and tree. FILE is - for standard input.
`,
		More: `
The tree is closed, too, by a node that no Leaf can read: one that is started gives up.
One that starts by its local file instead repeats nothing, because the native pool
leaf-snowflake has the worker IDs above those of all nodes from then on; --native prints
them. Those of the nodes are in the pool, each above the node's timestamp and 5 s. A node
that reports is a node that is alive.
`,
		Example: `  hapax import leaf leaf.properties --write-password /etc/hapax/leaf.password > hapax.yaml
  hapax import leaf leaf.properties --dry-run --data /var/lib/hapax
  hapax import leaf --table mysql://leaf@10.0.0.3/leaf --apply --server http://127.0.0.1:8080`,
		FileOptional: true, PasswordEnv: PasswordEnv, Closes: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&table, "table", "", "mysql:// URL of the database with leaf_alloc")
			flags.StringVar(&given.Tree, "tree", "", "zk:// URL of the ZooKeeper with the tree")
			flags.StringVar(&given.Name, "name", "", "leaf.name")
			flags.IntVar(&given.Port, "port", 0, "leaf.snowflake.port")
		},
		Read: func(_ context.Context, open mount.Files, args []string) (mount.Imported, error) {
			c, err := readConfig(open, args, given, table)
			if err == nil && c.Password == "" {
				c.Password = leaf.Secret(os.Getenv(PasswordEnv))
			}
			return imported{c}, err
		},
	}
}

// readConfig reads a file, or flags.
func readConfig(open mount.Files, args []string, given leaf.Config, table string) (leaf.Config, error) {
	byFlags := table != "" || given.Tree != ""
	if (len(args) == 1) == byFlags {
		return given, mount.Errorf(nil, "give FILE, or --table or --tree instead")
	}
	if byFlags {
		given.Snowflake = given.Tree != ""
		if table != "" {
			if err := given.SetTable(table); err != nil {
				return given, err
			}
		}
		if given.Snowflake && given.Name == "" {
			return given, mount.Errorf(nil, "--tree needs --name, and --port unless it is for a move")
		}
		return given, nil
	}
	in, err := open(args[0])
	if err != nil {
		return given, err
	}
	defer in.Close()
	if given, err = leaf.ReadProperties(in); err != nil {
		return given, fmt.Errorf("%s: %w", args[0], err)
	}
	return given, nil
}

type imported struct{ leaf.Config }

// Passwords implements mount.Movable.
func (i imported) Passwords() string { return i.Password.Reveal() }

// NativeYAML implements mount.Movable. It has the worker IDs that the tree has left free.
func (i imported) NativeYAML(ctx context.Context) (string, error) {
	if !i.Snowflake {
		return i.Config.NativeYAML(0), nil
	}
	tree, err := leaf.OpenTree(ctx, i.Tree, leaf.TreeOptions{Name: i.Name})
	if err != nil {
		return "", err
	}
	from, closed, err := leaf.TreeClosed(ctx, tree)
	if err == nil && !closed {
		err = mount.Errorf(nil, "the tree is open for Leaf's nodes: give --apply first, which closes it and tells which worker IDs are free")
	}
	return i.Config.NativeYAML(from), errors.Join(err, tree.Close())
}

// treeClosed is what closes a tree.
const treeClosed = "the tree, by a node hapax-moved, at which a Leaf that is started gives up, unless it has a local file workerID.properties; the worker ID in that is not used natively"

// Move implements mount.Movable, for a table and a tree.
func (i imported) Move(ctx context.Context, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	var table *leaf.Table
	if i.Segment {
		if table, err = leaf.OpenTable(ctx, i.TableURL(), leaf.TableOptions{}); err != nil {
			return all, err
		}
		defer table.Close()
	}
	var tree *leaf.Tree
	if i.Snowflake {
		if tree, err = leaf.OpenTree(ctx, i.Tree, leaf.TreeOptions{Name: i.Name}); err != nil {
			return all, err
		}
		defer tree.Close()
		all.Closes = treeClosed
	}
	store, err := to.StoreID(ctx)
	if err == nil && tree != nil { // before the table is changed
		err = leaf.CheckClosed(ctx, tree, store)
	}
	if err != nil {
		return all, err
	}
	if o.Undo {
		return i.undo(ctx, table, tree, to, o)
	}
	opts := leaf.MoveOptions{
		Margin: o.Margin, Watch: o.Watch, IgnoreLiving: o.IgnoreLiving, Tree: tree,
		Note: func(text string) { all.Notes = append(all.Notes, text) },
	}
	var end func()
	opts.Progress, end = o.Bar("comparing")
	all.Tags, err = leaf.PlanMoves(ctx, table, to, opts)
	end()
	if err != nil {
		return all, err
	}
	// After the watch for living nodes, which may refuse: a Leaf that is started at a closed tree gives up.
	if tree != nil {
		if all.Workers, err = moveTree(ctx, tree, to, o); err != nil {
			return all, err
		}
	}
	if o.Apply {
		opts.Progress, end = o.Bar("moving")
		err = leaf.ApplyMoves(ctx, table, to, all.Tags, opts)
		end()
	}
	return all, err
}

// moveTree tells what becomes of the worker IDs of a tree, and closes it and carries them
// over if that is asked for.
func moveTree(ctx context.Context, tree *leaf.Tree, to moves.Target, o mount.MoveOptions) (all []mount.WorkerMove, err error) {
	pool, mayLease := to.(leaf.PoolTarget)
	if !mayLease {
		return nil, fmt.Errorf("%w: worker IDs cannot be carried over there", hapax.ErrNotSupported)
	}
	store := ""
	if o.Apply { // first, so that the nodes are all that there will be
		if store, err = to.StoreID(ctx); err != nil {
			return nil, err
		}
		if _, err := leaf.CloseTree(ctx, tree, store); err != nil {
			return nil, err
		}
	}
	workers, err := leaf.PlanWorkers(ctx, tree, pool, Pool)
	for _, w := range workers {
		all = append(all, mount.WorkerMove{Pool: Pool, Worker: w.Node.Worker, Node: w.Node.Name, Before: w.Before, Above: w.Above, Changes: w.Changes()})
	}
	if err != nil || !o.Apply {
		return all, err
	}
	progress, end := o.Bar("carrying worker IDs over")
	defer end()
	if err = leaf.ApplyWorkers(ctx, pool, Pool, workers, progress); err == nil {
		err = leaf.CheckStillClosed(ctx, tree, store)
	}
	return all, err
}

// undo is the way back.
func (i imported) undo(ctx context.Context, table *leaf.Table, tree *leaf.Tree, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	// Tags are deleted, which keeps a server from them; worker IDs are not taken from their holders.
	if pool, leases := to.(leaf.PoolTarget); tree != nil && leases && !o.IgnoreLiving {
		if err := leaf.CheckIdle(ctx, pool, Pool); err != nil {
			return all, err
		}
	}
	if table != nil {
		if all.Tags, err = leaf.PlanReopen(ctx, table, to); err != nil {
			return all, err
		}
	}
	if table != nil && o.Apply {
		progress, end := o.Bar("opening")
		err = leaf.Reopen(ctx, table, to, all.Tags, progress)
		end()
	}
	if tree == nil || err != nil {
		return all, err
	}
	all.Closes = treeClosed
	all.Notes = append(all.Notes, "new nodes of Leaf's tree may be given worker IDs that were used natively: start them once the clock is past the time of the native numbers")
	if o.Apply {
		var store string
		if store, err = to.StoreID(ctx); err == nil {
			err = leaf.ReopenTree(ctx, tree, store)
		}
	}
	return all, err
}
