package leaf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/mount"
)

// treeFlags tell which tree a command works on.
type treeFlags struct{ tree, name string }

const treeHelp = `
The tree is that of compat.leaf in the configuration, or of --tree and --name.`

func (f *treeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.tree, "tree", "", "zk:// URL of the ZooKeeper with the tree")
	flags.StringVar(&f.name, "name", "", "leaf.name: the service's part of the tree")
}

// with opens the tree without taking part in it, calls f, and closes it.
func (f *treeFlags) with(ctx context.Context, c mount.Called, do func(*leaf.Tree) error) error {
	if f.tree == "" {
		settings, err := c.Settings()
		if err != nil {
			return err
		}
		if l, ok := settings.(*Settings); ok {
			f.tree, f.name = l.Tree, cmp.Or(f.name, l.Name)
		}
	}
	if f.tree == "" || f.name == "" {
		return wrong("--tree", "", "a zk:// URL, beside --name, or a configuration with compat.leaf.tree and name")
	}
	tree, err := leaf.OpenTree(ctx, f.tree, leaf.TreeOptions{Name: f.name})
	if err != nil {
		return err
	}
	return errors.Join(do(tree), tree.Close())
}

func wrong(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// nodeJSON is a node of the tree as --json prints it.
type nodeJSON struct {
	Node     string    `json:"node"`
	Address  string    `json:"address"`
	Worker   int64     `json:"worker"`
	Reported time.Time `json:"reported"`
	Action   string    `json:"action,omitempty"`
}

func newNodeJSON(n leaf.Node, action string) nodeJSON {
	return nodeJSON{n.Name, n.Address, n.Worker, n.Reported.UTC(), action}
}

// silentFor returns how long ago a node reported. One of hapax has the end of the time that it was
// granted, which is ahead of the clock.
func silentFor(n leaf.Node) time.Duration { return max(0, time.Since(n.Reported).Round(time.Second)) }

func nodesCommand() *mount.Command {
	var where treeFlags
	return &mount.Command{
		Use:   "nodes",
		Short: "List the nodes of the tree, by worker ID",
		Long: `Nodes lists the processes that have a worker ID, Leaf's and hapax's. A Leaf reports
every 3 s while it runs; of one of hapax the end of what it was granted is shown.
` + treeHelp,
		Example: "  hapax leaf nodes --tree zk://zk1:2181,zk2:2181 --name demo",
		Header:  []string{"WORKER", "ADDRESS", "REPORTED", "SILENT FOR", "NODE"},
		Flags:   where.add,
		Run: func(ctx context.Context, c mount.Called) error {
			return where.with(ctx, c, func(tree *leaf.Tree) error {
				nodes, err := tree.Nodes(ctx)
				for _, n := range nodes {
					if err := c.Print(newNodeJSON(n, ""), strconv.FormatInt(n.Worker, 10), n.Address,
						n.Reported.UTC().Format(time.RFC3339), silentFor(n).String(), n.Name); err != nil {
						return err
					}
				}
				return err
			})
		},
	}
}

func retireCommand() *mount.Command {
	var (
		where  treeFlags
		silent time.Duration
		apply  bool
	)
	return &mount.Command{
		Use:   "retire [NODE...]",
		Short: "Free the worker IDs of nodes whose processes have ended",
		Long: `Retire removes nodes from the tree, so that their worker IDs can be used again, above
the time for which they were used. Use it when all 1,024 are used up. It prints what
it would do; with --apply it does so.

A node that has reported within 24 h is refused. A Leaf that is cut off from ZooKeeper
reports nothing and goes on issuing: make sure that the process of each node has ended.
` + treeHelp,
		Example: `  hapax leaf retire 10.0.0.4:8080-0000000017 --tree zk://zk1:2181 --name demo
  hapax leaf retire --silent-for 720h --apply --config hapax.yaml`,
		Most:   1024,
		Header: []string{"ACTION", "WORKER", "SILENT FOR", "NODE"},
		Flags: func(flags *pflag.FlagSet) {
			flags.DurationVar(&silent, "silent-for", 0, "all nodes that have not reported for so long, 24h or more")
			flags.BoolVar(&apply, "apply", false, "do it")
			where.add(flags)
		},
		Run: func(ctx context.Context, c mount.Called) error {
			if (silent == 0) == (len(c.Args) == 0) {
				return wrong("node", "", "the nodes to retire, or --silent-for")
			}
			if len(c.Args) == 0 && silent < leaf.RetireAfter {
				return wrong("--silent-for", silent, leaf.RetireAfter.String()+" or more")
			}
			return where.with(ctx, c, func(tree *leaf.Tree) error { return retire(ctx, c, tree, silent, apply) })
		},
	}
}

func retire(ctx context.Context, c mount.Called, tree *leaf.Tree, silent time.Duration, apply bool) error {
	nodes, err := tree.Nodes(ctx)
	if err == nil {
		// All names are judged before the first node goes.
		nodes, err = chosenNodes(nodes, c.Args, silent)
	}
	if err != nil {
		return err
	}
	for _, n := range nodes {
		action := "would retire"
		if apply {
			// It reads the node once more, and removes it only as it was read: one that reports now stays.
			if err := tree.Retire(ctx, n.Name); err != nil {
				return err
			}
			action = "retired"
		}
		if err := c.Print(newNodeJSON(n, action), action, strconv.FormatInt(n.Worker, 10), silentFor(n).String(), n.Name); err != nil {
			return err
		}
	}
	switch {
	case len(nodes) == 0:
		c.Say("no node has been silent for so long; nothing to retire")
	case !apply:
		c.Say("nothing was changed; make sure that these processes have ended, and give --apply")
	}
	return nil
}

// chosenNodes returns the nodes that are named, or have been silent for so long.
func chosenNodes(nodes []leaf.Node, names []string, silent time.Duration) ([]leaf.Node, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(nodes, func(n leaf.Node) bool { return time.Since(n.Reported) < silent }), nil
	}
	var chosen []leaf.Node
	for _, name := range names {
		i := slices.IndexFunc(nodes, func(n leaf.Node) bool { return n.Name == name })
		switch {
		case i < 0:
			return nil, wrong("node", name, "a node of the tree; see hapax leaf nodes")
		case time.Since(nodes[i].Reported) < leaf.RetireAfter:
			return nil, wrong("node", name, fmt.Sprintf("a node that has not reported for %v; this one did %v ago", leaf.RetireAfter, silentFor(nodes[i])))
		}
		chosen = append(chosen, nodes[i])
	}
	return chosen, nil
}
