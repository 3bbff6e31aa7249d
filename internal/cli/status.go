package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/witness"
)

// withServer dials the server of a command and calls f.
func withServer(cmd *cobra.Command, f func(context.Context, *remote) error) {
	cmd.Long += serverHelp
	settings := addSettings(cmd, "data")
	server := cmd.Flags().String("server", "", "URL of the server to ask (or $"+serverEnv+")")
	credentials := addCredentials(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		address, named, err := settings.server(ctx, *server)
		if err != nil {
			return err
		}
		c, err := dial(ctx, address, credentials, named)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.explain(f(ctx, c))
	}
}

// fleetStatus is a server's status, and what all nodes together can do without their store.
type fleetStatus struct {
	client.Status
	Fleet *fleet `json:"fleet,omitempty"`
}

type fleet struct {
	Budget     *client.Budget `json:"outage_budget,omitempty"` // the least of all that answered
	Node       string         `json:"node,omitempty"`          // whose that is
	Answered   int            `json:"answered"`
	Unanswered []string       `json:"unanswered,omitempty"`
	why        []string       // each of these did not answer
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether a server is granted numbers, and what to do if not",
		Long: `Status asks a server for its state. If the store grants it nothing, status also shows
why, which node found it and when, which nodes are missing, and the command to run, if
you have to act. The exit code is then 1.

STORE is the store's ID; "(split)" where a step of it is several writes, each of one row
by itself, as in MongoDB.

BUDGET is for how long the server could issue without the store at the present rate, and
by which tag or pool that is limited; "-" where no time is the limit. With --fleet the
server asks the other nodes, too, at the addresses that they told the store: BUDGET is the
least of all then. Nodes on other machines answer it with a fleet_key, or over TLS. Each alarm that is up is told on standard error,
with where the runbook tells what to do.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	inFleet := cmd.Flags().Bool("fleet", false, "ask the other nodes for their budgets, too")
	withServer(cmd, func(ctx context.Context, c *remote) error {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		all, least := fleetStatus{Status: shortRows(st)}, st.Budget
		var unasked error // what is known of this server is shown all the same
		if *inFleet {
			if all.Fleet, unasked = askFleet(ctx, c, st.Budget); unasked == nil {
				least = all.Fleet.Budget
			}
		}
		out := newOutput(cmd, *asJSON, "STATE", "STORE", "NODES", "MISSING", "FOUND BY", "AT", "WHY", "DO", "BUDGET", "ALARMS")
		store, by, at := dash(st.StoreID), "", ""
		if st.Split {
			store += " (split)"
		}
		if f := st.Fence; f != nil {
			by, at = f.Node, f.At.UTC().Format(time.RFC3339)
		}
		if err := out.add(all, st.State, store, fmt.Sprint(st.Live), fmt.Sprint(len(st.Missing)), dash(by), dash(at), dash(st.Why), dash(st.Command), budgetText(least), fmt.Sprint(len(st.Alarms))); err != nil {
			return err
		}
		for _, n := range st.Missing {
			tellOfMissing(cmd, c.address, n)
		}
		tellOfEnds(cmd, all)
		err = out.flush()
		for _, f := range st.Foreign {
			if f.Code != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "hapax: %s is %s: %s: %s\n", f.Name, f.State, f.Code, f.Why)
			}
			if f.Command != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "hapax: to do:", f.Command)
			}
		}
		return errors.Join(err, notServing(st), unasked)
	})
	return cmd
}

// shortRows returns a status with the rows as people see them.
func shortRows(st client.Status) client.Status {
	st.Missing = slices.Clone(st.Missing)
	for i, n := range st.Missing {
		st.Missing[i].Row = shortRow(n.Row)
	}
	return st
}

// budgetText returns a budget for a table.
func budgetText(b *client.Budget) string {
	if b == nil {
		return "-"
	}
	return fmt.Sprintf("%s by %s %s", b.Lasts().Round(100*time.Millisecond), b.Kind, b.Name)
}

// tellOfEnds tells of alarms, and of nodes that were asked in vain.
func tellOfEnds(cmd *cobra.Command, j fleetStatus) {
	for _, a := range j.Alarms {
		name := a.Name
		if a.About != "" {
			name += " (" + a.About + ")"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "hapax: alarm: %s: %s; see %s\n", name, a.Detail, a.See)
	}
	if j.See != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: see", j.See)
	}
	if j.Fleet == nil {
		return
	}
	for i, name := range j.Fleet.Unanswered {
		fmt.Fprintf(cmd.ErrOrStderr(), "hapax: the budget of %s is not known: %s\n", name, j.Fleet.why[i])
	}
}

// askFleet has the server ask the other nodes that live for their budgets.
func askFleet(ctx context.Context, c *remote, own *client.Budget) (*fleet, error) {
	nodes, err := c.FleetStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s has not told how the other nodes stand, which a server of an earlier build cannot: %w", c.address, err)
	}
	all := &fleet{Answered: 1, Budget: own}
	if own != nil {
		all.Node = c.address
	}
	for _, n := range nodes {
		switch budget := n.Status.Budget; {
		case n.Self:
		case n.Err != "":
			all.Unanswered = append(all.Unanswered, n.Name)
			all.why = append(all.why, n.Err)
		default:
			all.Answered++
			// None stands for no limit, and so is never the least.
			if budget != nil && (all.Budget == nil || budget.Seconds < all.Budget.Seconds) {
				all.Budget, all.Node = budget, n.Name
			}
		}
	}
	return all, nil
}

// notServing is the error of a server that is granted nothing.
func notServing(st client.Status) error {
	if st.Code != "" {
		return fmt.Errorf("%w: the server is %s", hapax.ErrorOf(st.Code), st.State)
	}
	for _, f := range st.Foreign {
		if f.Code != "" {
			return fmt.Errorf("%w: %s is %s", hapax.ErrorOf(f.Code), f.Name, f.State)
		}
	}
	return nil
}

// tellOfStatus says why a server is granted nothing, and with which commands that ends.
func tellOfStatus(cmd *cobra.Command, address string, st client.Status) {
	if st.Code == "" {
		return
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "hapax: the server is %s: %s: %s\n", st.State, st.Code, st.Why)
	if st.Command != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: to do:", st.Command)
	}
	for _, n := range st.Missing {
		tellOfMissing(cmd, address, n)
	}
}

// tellOfMissing names a process that can know what was granted and has not said so, and
// the commands that speak for it.
func tellOfMissing(cmd *cobra.Command, address string, n client.Node) {
	name := n.Name
	if name == "" {
		name = shortRow(n.Row)
	}
	settle := "hapax nodes settle " + signals.Word(name) + " --server " + signals.Word(address)
	fmt.Fprintf(cmd.ErrOrStderr(), "hapax: missing: %s\nhapax:   start it again, or run %s --witness-file FILE\nhapax:   or, without its data directory, %[2]s --floor NUMBER --dry-run\n", witness.Node(n), settle)
}

// shortRow leaves out the zeros before the number in a row's name.
func shortRow(row string) string { return strings.TrimSuffix(strings.TrimLeft(row, "0"), "-") }

// mournFor is how long a node that fell silent is told of.
const mournFor = 24 * time.Hour

// lost returns the nodes that fell silent of late, and of which no later start is known.
func lost(all []client.Node) (lost []client.Node) {
	later := map[string]bool{}
	// From the latest start down: a node that came back under its name is not mourned.
	for _, n := range slices.Backward(slices.SortedFunc(slices.Values(all), func(a, b client.Node) int { return cmp.Compare(a.Row, b.Row) })) {
		if n.State == "silent" && n.Seen > 0 && n.Seen <= mournFor && !later[n.Name] {
			lost = append(lost, n)
		}
		later[n.Name] = true
	}
	return lost
}

// listed returns an error where the list of nodes is not the store's: those that are missing are known without it.
func listed(st client.Status) error {
	if st.StoreID == "" || slices.ContainsFunc(st.Nodes, func(n client.Node) bool { return n.State != "missing" }) {
		return nil
	}
	return fmt.Errorf("%w: the server cannot read now which nodes there are, or has not joined them: hapax status tells why", hapax.ErrStoreUnavailable)
}

func nodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the processes that share a store, and which are missing",
		Long: `Nodes lists the processes that a shared store knows, as the server that you ask sees
them: each start of a node has its own row. While nothing is granted it says why. A row
marked as missing is a node that may know what was granted and has not said so: start
that node, or speak for it with hapax nodes settle. Nodes that fell silent within the last
day and have not come back are told on standard error. The exit code is 1 if the server
cannot read the list.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	all := cmd.Flags().Bool("all", false, "also those that have left or fallen silent")
	withServer(cmd, func(ctx context.Context, c *remote) error {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		tellOfStatus(cmd, c.address, st)
		out := newOutput(cmd, *asJSON, "ROW", "NAME", "ADDRESS", "STATE", "GRANTS", "SEEN")
		for _, n := range st.Nodes {
			if !*all && !n.IsLive() {
				continue
			}
			seen := "-"
			switch {
			case n.Self:
				seen = "itself"
			case n.Seen > 0 && n.State == "silent": // whoever says so has written to its row
				seen = "over " + n.Seen.Round(100*time.Millisecond).String() + " ago"
			case n.Seen > 0:
				seen = n.Seen.Round(100*time.Millisecond).String() + " ago"
			}
			n.Row = shortRow(n.Row)
			if err := out.add(n, n.Row, dash(n.Name), dash(n.Address), n.State, fmt.Sprint(n.Grants), seen); err != nil {
				return err
			}
		}
		if !*all {
			for _, n := range lost(st.Nodes) {
				fmt.Fprintf(cmd.ErrOrStderr(), "hapax: fell silent, and has not come back: %s at %s\n", n.Name, dash(n.Address))
			}
		}
		return errors.Join(out.flush(), listed(st))
	})
	cmd.AddCommand(settleCommand())
	return cmd
}

// declareThrough has a running server carry a statement out.
func declareThrough(ctx context.Context, c *client.Client, st witness.Statement) (server.Adoption, error) {
	said := client.Statement{DryRun: st.DryRun, Floor: st.Floor, Ahead: st.Ahead}
	for _, t := range st.Witness {
		said.Witness = append(said.Witness, t.Encode())
	}
	declare := func() (client.Adoption, error) { return c.Adopt(ctx, said) }
	if st.Row != "" {
		declare = func() (client.Adoption, error) { return c.SettleNode(ctx, st.Row, said) }
	}
	a, err := declare()
	return server.Adoption{Adoption: a}, err
}
