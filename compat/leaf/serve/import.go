package serve

import (
	"context"
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
The worker IDs of the tree's nodes are carried over to the native pool leaf-snowflake,
each above the node's timestamp and 5 s, so that no clock that is behind repeats a
number; a node that reports is a node that is alive.
`,
		Example: `  hapax import leaf leaf.properties --write-password /etc/hapax/leaf.password > hapax.yaml
  hapax import leaf leaf.properties --dry-run --data /var/lib/hapax
  hapax import leaf --table mysql://leaf@10.0.0.3/leaf --apply --server http://127.0.0.1:8080`,
		FileOptional: true, PasswordEnv: PasswordEnv,
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

// NativeYAML implements mount.Movable.
func (i imported) NativeYAML(context.Context) (string, error) { return i.Config.NativeYAML(), nil }

// openTree is what a move of a tree leaves open.
const openTree = "nothing in ZooKeeper keeps an old Leaf from starting again with its worker ID, which the pool " + Pool + " uses from now on: remove its workerID.properties, and its service, from the old machines"

// Move implements mount.Movable, for a table and a tree.
func (i imported) Move(ctx context.Context, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	var table *leaf.Table
	if i.Segment {
		if table, err = leaf.OpenTable(ctx, i.TableURL(), leaf.TableOptions{}); err != nil {
			return all, err
		}
		defer table.Close()
	}
	if o.Undo {
		return i.undo(ctx, table, to, o)
	}
	var tree *leaf.Tree
	if i.Snowflake {
		if tree, err = leaf.OpenTree(ctx, i.Tree, leaf.TreeOptions{Name: i.Name}); err != nil {
			return all, err
		}
		defer tree.Close()
		all.Notes = append(all.Notes, openTree)
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
	var workers []leaf.WorkerMove
	pool, mayLease := to.(leaf.PoolTarget)
	if tree != nil {
		if !mayLease {
			return all, fmt.Errorf("%w: worker IDs cannot be carried over there", hapax.ErrNotSupported)
		}
		if workers, err = leaf.PlanWorkers(ctx, tree, pool, Pool); err != nil {
			return all, err
		}
	}
	for _, w := range workers {
		all.Workers = append(all.Workers, mount.WorkerMove{Pool: Pool, Worker: w.Node.Worker, Node: w.Node.Name, Before: w.Before, Above: w.Above, Changes: w.Changes()})
	}
	if !o.Apply {
		return all, nil
	}
	progress, end := o.Bar("moving")
	defer end()
	total := len(all.Tags) + len(workers)
	opts.Progress = func(done, _ int) { progress(done, total) }
	err = leaf.ApplyMoves(ctx, table, to, all.Tags, opts)
	if err == nil && tree != nil {
		err = leaf.ApplyWorkers(ctx, pool, Pool, workers, func(done, _ int) { progress(len(all.Tags)+done, total) })
	}
	return all, err
}

// undo is the way back.
func (i imported) undo(ctx context.Context, table *leaf.Table, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	if i.Snowflake {
		all.Notes = append(all.Notes, "the worker IDs of the pool "+Pool+" stay as they are: start Leaf's nodes once the clock is past the time of the native numbers, or under other ip:ports")
	}
	if table == nil {
		return all, nil
	}
	if all.Tags, err = leaf.PlanReopen(ctx, table, to); err != nil || !o.Apply {
		return all, err
	}
	progress, end := o.Bar("opening")
	defer end()
	return all, leaf.Reopen(ctx, table, to, all.Tags, progress)
}
