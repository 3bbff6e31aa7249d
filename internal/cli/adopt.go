package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/store/witness"
)

const adoptTimeout = time.Minute

func adoptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Speak for nodes that are missing, so that a store that went back can be used",
		Long: `Nodes heal a store that went back by themselves where all who can know what was used
have said so. Adopt is an operator's word where somebody is missing: that witness files
tell all, or that no number above the floor was used. It is also how a store that
replaces another one, was copied or moved to another machine is accepted, and how a
fleet is healed whose nodes wait for a person.

It says first what is wrong and what it would raise, and asks before it changes
anything; --yes answers for you. Where nothing is wrong it changes nothing. A floor
below a number that is known to be used is not accepted.

With --server it works through a running server, and without, on a data directory
whose server is stopped, by the same rules: nodes that live are heard. An embedded
store that was copied or moved is raised by the margins, which must exceed what the
original granted since; never use that original again.

With --foreign leaf or --foreign tinyid it raises the rows of that system's table: above
what this node's witness knows, and by the margin for what the system's own nodes
have issued.`,
		Example: `  hapax adopt --server http://127.0.0.1:8080 --dry-run
  hapax adopt --data /var/lib/hapax --witness-file /mnt/other/witness --yes
  hapax adopt --server http://127.0.0.1:8080 --floor 90000000`,
		Args: arguments(0, 0),
	}
	flags := cmd.Flags()
	numbers := flags.Int64("margin", 1_000_000, "how many numbers to skip in every tag of an embedded store that was copied or moved")
	ahead := flags.Duration("time-margin", 10*time.Minute, "how much time to skip on every worker ID of such a store")
	foreign := flags.String("foreign", "", "leaf or tinyid: adopt its table instead, of which this node's witness refuses rows")
	declare(cmd, func(ctx context.Context, o declaring) error {
		if *foreign != "" {
			return adoptForeign(ctx, cmd, o.settings, *foreign, *numbers, o.dryRun, o.yes, o.asJSON)
		}
		o.margin = server.Margin{Numbers: *numbers, Time: *ahead}
		return o.run(ctx, cmd)
	})
	return cmd
}

func settleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "settle NAME",
		Short: "Speak for one node that is missing",
		Long: `Settle is hapax adopt for one node: by its name, or the name of its row, as hapax nodes
lists them. Give its witness file, or a floor above all that it can have used. Where the
store is sound, it ends the row of a node that is dead, so that nobody waits for it.`,
		Example: `  hapax nodes settle app-3 --witness-file /mnt/app-3/witness
  hapax nodes settle app-3 --floor 90000000 --dry-run`,
		Args: arguments(1, 1),
	}
	declare(cmd, func(ctx context.Context, o declaring) error {
		o.node = cmd.Flags().Arg(0)
		return o.run(ctx, cmd)
	})
	return cmd
}

// declaring is an operator's word on its way to a node.
type declaring struct {
	node        string
	floor       int64
	witnesses   []string
	margin      server.Margin
	dryRun, yes bool
	asJSON      bool
	address     string
	credentials *credentials
	settings    *settingFlags
}

// declare adds the flags of a statement to a command, which f carries out.
func declare(cmd *cobra.Command, f func(context.Context, declaring) error) {
	flags := cmd.Flags()
	floor := flags.Int64("floor", 0, "a number above all that the missing can have used: every segment tag is raised to it")
	witnesses := flags.StringSlice("witness-file", nil, "witness files of nodes that do not run")
	dryRun := flags.Bool("dry-run", false, "only say what is wrong, and what would be raised")
	yes := flags.Bool("yes", false, "do not ask")
	address := flags.String("server", "", "URL of a running server to work through (or $"+serverEnv+")")
	credentials := addCredentials(flags)
	asJSON := jsonFlag(cmd)
	settings := addSettings(cmd, "data", "store", "witness")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), adoptTimeout)
		defer cancel()
		return f(ctx, declaring{
			floor: *floor, witnesses: *witnesses, dryRun: *dryRun, yes: *yes, asJSON: *asJSON,
			address: *address, credentials: credentials, settings: settings,
		})
	}
}

// run says what is wrong, asks, and makes the statement.
func (o declaring) run(ctx context.Context, cmd *cobra.Command) error {
	var adopt func(dryRun bool) (server.Adoption, error)
	if o.address != "" {
		c, err := dial(ctx, o.address, o.credentials, true)
		if err != nil {
			return err
		}
		defer c.Close()
		adopt = func(dryRun bool) (server.Adoption, error) {
			a, err := adoptThrough(ctx, c.Client, o.witnesses, client.AdoptRequest{DryRun: dryRun, Floor: o.floor, Node: o.node})
			return a, c.explain(err)
		}
	} else {
		config, err := o.settings.load()
		if err != nil {
			return err
		}
		adopt = func(dryRun bool) (server.Adoption, error) {
			return server.Adopt(ctx, config, server.AdoptRequest{
				Statement: witness.Statement{Row: o.node, DryRun: dryRun, Floor: o.floor},
				Margin:    o.margin, Witnesses: o.witnesses,
			})
		}
	}
	found, err := adopt(true)
	if err != nil {
		tellOfAdoption(cmd, found)
		return err
	}
	if found.Fence == nil && len(found.Stated) == 0 && len(found.Differences) == 0 && found.Other == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: nothing is wrong with store", found.StoreID+"; nothing was changed")
		return nil
	}
	tellOfAdoption(cmd, found)
	if o.dryRun {
		return printRaised(cmd, found, o.asJSON)
	}
	if err := confirm(cmd, o.yes); err != nil {
		return err
	}
	done, err := adopt(false)
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "hapax: store", done.StoreID, "is used from now on")
	if len(done.Differences) > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: never use its original again: nothing can check that, and two live copies issue the same numbers")
	}
	return printRaised(cmd, done, o.asJSON)
}

// adoptThrough has a running server take the statement.
func adoptThrough(ctx context.Context, c *client.Client, files []string, req client.AdoptRequest) (server.Adoption, error) {
	var a server.Adoption
	for _, path := range files {
		said, err := witness.Read(path)
		if err != nil {
			return a, err
		}
		req.Witnesses = append(req.Witnesses, said.Encode())
	}
	res, err := c.Adopt(ctx, req)
	if err != nil {
		return a, err
	}
	a.StoreID, a.Other, a.Spoke, a.Proposed = res.StoreID, res.Other, int(res.Spoke), res.Proposed
	a.Missing, a.Stated = nodesFrom(res.Missing), nodesFrom(res.Stated)
	if f := res.Fence; f != nil {
		a.Fence = &witness.Fence{ID: f.ID, Node: f.Name, At: f.At, Why: f.Why}
	}
	for _, r := range res.Raised {
		a.Raised = append(a.Raised, witness.Raised(r))
	}
	return a, nil
}

func nodesFrom(list []client.Node) []witness.Node {
	var nodes []witness.Node
	for _, n := range list {
		nodes = append(nodes, witness.Node{Row: n.Row, Name: n.Name, Address: n.Address, State: n.State, Grants: n.Grants})
	}
	return nodes
}

// tellOfAdoption says what is wrong.
func tellOfAdoption(cmd *cobra.Command, a server.Adoption) {
	out := cmd.ErrOrStderr()
	for _, d := range a.Differences {
		fmt.Fprintln(out, "hapax:", d)
	}
	if f := a.Fence; f != nil {
		fmt.Fprintf(out, "hapax: node %s found at %s: %s\n", f.Node, f.At.UTC().Format(time.RFC3339), f.Why)
		fmt.Fprintf(out, "hapax: %d nodes have said what they used\n", a.Spoke)
	}
	for _, n := range a.Stated {
		fmt.Fprintln(out, "hapax: spoken for:", n)
	}
	for _, n := range a.Missing {
		fmt.Fprintln(out, "hapax: missing:", n)
	}
	if a.Other != "" {
		fmt.Fprintf(out, "hapax: this is store %s, and the node knows store %s: is the URL right?\n", a.StoreID, a.Other)
	}
}

// confirm asks on a terminal, and wants --yes elsewhere.
func confirm(cmd *cobra.Command, yes bool) error {
	if yes {
		return nil
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if info, err := in.Stat(); !ok || err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return usagef("adopt changes marks; look at --dry-run, and give --yes")
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Raise these marks and go on with this store? [y/N] ")
	line, err := bufio.NewReader(in).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); err != nil || answer != "y" && answer != "yes" {
		return fmt.Errorf("%w: nothing was changed", hapax.ErrRejected)
	}
	return nil
}

// raised is a mark that was raised.
type raised struct {
	Tag    string `json:"tag,omitempty"`
	Pool   string `json:"pool,omitempty"`
	Worker *int64 `json:"worker,omitempty"`
	From   int64  `json:"from,string"`
	To     int64  `json:"to,string"`
}

func printRaised(cmd *cobra.Command, a server.Adoption, asJSON bool) error {
	out := newOutput(cmd, asJSON, "LINE", "FROM", "TO")
	add := func(tag, pool string, worker, from, to int64) error {
		line, value := "tag "+tag, raised{Tag: tag, From: from, To: to}
		if pool != "" {
			line = "worker " + pool + "/" + strconv.FormatInt(worker, 10)
			value = raised{Pool: pool, Worker: &worker, From: from, To: to}
		}
		return out.add(value, line, strconv.FormatInt(from, 10), strconv.FormatInt(to, 10))
	}
	var errs []error
	for _, r := range a.Moved {
		errs = append(errs, add(r.Tag, r.Pool, r.Worker, r.From, r.To))
	}
	for _, r := range a.Raised {
		errs = append(errs, add(r.Tag, r.Pool, r.Worker, r.From, r.To))
	}
	return errors.Join(append(errs, out.flush())...)
}
