package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	leafserve "github.com/hapax-id/hapax/compat/leaf/serve"
)

func leafCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leaf",
		Short: "Maintain the ZooKeeper tree of Meituan Leaf",
	}
	group(cmd, leafNodesCommand(), leafRetireCommand())
	return cmd
}

// treeFlags tell which tree a command works on.
type treeFlags struct {
	settings   *settingFlags
	tree, name string
}

const treeHelp = `
The tree is that of compat.leaf in the configuration, or of --tree and --name.`

func addTree(cmd *cobra.Command) *treeFlags {
	f := &treeFlags{settings: addSettings(cmd, "compat")}
	cmd.Flags().StringVar(&f.tree, "tree", "", "zk:// URL of the ZooKeeper with the tree")
	cmd.Flags().StringVar(&f.name, "name", "", "leaf.name: the service's part of the tree")
	return f
}

// with opens the tree without taking part in it, calls f, and closes it.
func (f *treeFlags) with(cmd *cobra.Command, do func(context.Context, *leaf.Tree) error) error {
	ctx := cmd.Context()
	if f.tree == "" {
		config, err := f.settings.load()
		if err != nil {
			return err
		}
		if l, ok := config.Mounts["leaf"].(*leafserve.Settings); ok {
			f.tree, f.name = l.Tree, cmp.Or(f.name, l.Name)
		}
	}
	if f.tree == "" || f.name == "" {
		return usagef("give --tree and --name, or a configuration with compat.leaf.tree and name")
	}
	tree, err := leaf.OpenTree(ctx, f.tree, leaf.TreeOptions{Name: f.name})
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, tree), tree.Close())
}

// leafNodeJSON is a node of the tree as --json prints it.
type leafNodeJSON struct {
	Node     string    `json:"node"`
	Address  string    `json:"address"`
	Worker   int64     `json:"worker"`
	Reported time.Time `json:"reported"`
	Action   string    `json:"action,omitempty"`
}

func newLeafNodeJSON(n leaf.Node, action string) leafNodeJSON {
	return leafNodeJSON{n.Name, n.Address, n.Worker, n.Reported.UTC(), action}
}

// silentFor returns how long ago a node reported.
func silentFor(n leaf.Node) time.Duration { return time.Since(n.Reported).Round(time.Second) }

func leafNodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the tree, by worker ID",
		Long: `Nodes lists the processes that have a worker ID, Leaf's and hapax's: a Leaf reports
every 3 s while it runs.
` + treeHelp,
		Example: "  hapax leaf nodes --tree zk://zk1:2181,zk2:2181 --name demo",
		Args:    arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	where := addTree(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return where.with(cmd, func(ctx context.Context, tree *leaf.Tree) error {
			nodes, err := tree.Nodes(ctx)
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, "WORKER", "ADDRESS", "REPORTED", "SILENT FOR", "NODE")
			for _, n := range nodes {
				if err := out.add(newLeafNodeJSON(n, ""), strconv.FormatInt(n.Worker, 10), n.Address,
					n.Reported.UTC().Format(time.RFC3339), silentFor(n).String(), n.Name); err != nil {
					return err
				}
			}
			return out.flush()
		})
	}
	return cmd
}

func leafRetireCommand() *cobra.Command {
	cmd := &cobra.Command{
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
		Args: arguments(0, 1024),
	}
	silent := cmd.Flags().Duration("silent-for", 0, "all nodes that have not reported for so long, 24h or more")
	apply := cmd.Flags().Bool("apply", false, "do it")
	asJSON := jsonFlag(cmd)
	where := addTree(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (*silent == 0) == (len(args) == 0) {
			return usagef("name the nodes to retire, or give --silent-for")
		}
		if len(args) == 0 && *silent < leaf.RetireAfter {
			return &hapax.ValueError{Field: "--silent-for", Value: *silent, Allowed: leaf.RetireAfter.String() + " or more", Err: hapax.ErrInvalidArgument}
		}
		return where.with(cmd, func(ctx context.Context, tree *leaf.Tree) error {
			nodes, err := tree.Nodes(ctx)
			if err == nil {
				nodes, err = chosenNodes(nodes, args, *silent)
			}
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, "ACTION", "WORKER", "SILENT FOR", "NODE")
			for _, n := range nodes {
				action := "would retire"
				if *apply {
					if err := tree.Retire(ctx, n.Name); err != nil {
						return errorAfter(out, err)
					}
					action = "retired"
				}
				if err := out.add(newLeafNodeJSON(n, action), action, strconv.FormatInt(n.Worker, 10), silentFor(n).String(), n.Name); err != nil {
					return err
				}
			}
			switch {
			case len(nodes) == 0:
				fmt.Fprintln(cmd.ErrOrStderr(), "hapax: no node has been silent for so long; nothing to retire")
			case !*apply:
				fmt.Fprintln(cmd.ErrOrStderr(), "hapax: nothing was changed; make sure that these processes have ended, and give --apply")
			}
			return out.flush()
		})
	}
	return cmd
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
			return nil, &hapax.ValueError{Field: "node", Value: name, Allowed: "a node of the tree; see hapax leaf nodes", Err: hapax.ErrInvalidArgument}
		case time.Since(nodes[i].Reported) < leaf.RetireAfter:
			return nil, &hapax.ValueError{Field: "node", Value: name, Allowed: fmt.Sprintf("a node that has not reported for %v; this one did %v ago", leaf.RetireAfter, silentFor(nodes[i])), Err: hapax.ErrInvalidArgument}
		}
		chosen = append(chosen, nodes[i])
	}
	return chosen, nil
}
