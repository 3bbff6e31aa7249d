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
	"github.com/hapax-id/hapax/strategy"
)

func adoptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt [KEY]",
		Short: "Accept a store that went back, was replaced, copied or moved",
		Long: `The nodes of a store that went back heal it by themselves, once every node that may
know what was used has said so. Adopt decides what they cannot: the store is
another one than they know, heal is manual, an embedded store was copied or moved, or
a node that may know is missing. Speak for missing nodes with their witness files, or
with a floor above everything that they can have used; a floor below a known mark is
refused. Hapax nodes lists the missing nodes, and hapax nodes settle speaks for one
of them.

It says first what is wrong and what it would raise, and asks before it changes
anything; --yes answers yes. Where nothing is wrong it changes nothing, and
--dry-run accepts exactly what --yes would.

It works through a running server, given by --server or the data directory, or on a
data directory whose server is stopped; without either, and where there is no data
directory, through the server at 127.0.0.1:8080; on a file of a store that no server has,
given by --store bolt:FILE. Run it once, at any node. An embedded store
that was copied or moved is raised by the margins, which must exceed what the original
granted since; never use that original again.

With --foreign ` + strings.Join(server.Owners(), " or --foreign ") + ` it raises the row KEY of that system's table, or all
rows: above what this node's witness knows, and by the margin for what the system's own
nodes have issued. The server need not be stopped for that.`,
		Example: `  hapax adopt --server http://127.0.0.1:8080 --dry-run
  hapax adopt --data /var/lib/hapax --witness-file /mnt/other/witness --yes
  hapax adopt --data /var/lib/hapax --margin 50000000
  hapax adopt --store bolt:orders.db
  hapax adopt --foreign leaf orders --data /var/lib/hapax`,
		Args: arguments(0, 1),
	}
	d := addDeclaration(cmd)
	flags := cmd.Flags()
	flags.Int64Var(&d.margin.Numbers, "margin", 1_000_000, "how many numbers to skip in every tag of an embedded store that was copied or moved")
	flags.DurationVar(&d.margin.Time, "time-margin", 10*time.Minute, "how much time to skip on every worker ID of such a store")
	foreign := flags.String("foreign", "", strings.Join(server.Owners(), " or ")+": adopt its table instead, of which this node's witness refuses rows")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), declareTimeout)
		defer cancel()
		key, err := keyOfForeign(*foreign, args)
		if err != nil {
			return err
		}
		if *foreign != "" {
			return d.adoptForeign(ctx, cmd, *foreign, key)
		}
		return d.run(ctx, cmd, "")
	}
	return cmd
}

func settleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "settle NODE",
		Short: "Speak for a node that is missing",
		Long: `Settle speaks for a missing node that may know what was granted, given by its name or
row in hapax nodes: with the node's witness file, or with a floor above all that it
can have used. If no fence is raised, it ends the row of a node that no longer runs, so
that no other node waits for it. A node that comes back after that joins again.

It first says what it would do, and asks; --yes answers yes.`,
		Example: `  hapax nodes settle db-host-2:/var/lib/hapax --witness-file /mnt/host-2/witness
  hapax nodes settle db-host-2:/var/lib/hapax --floor 40000000 --yes`,
		Args: arguments(1, 1),
	}
	d := addDeclaration(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), declareTimeout)
		defer cancel()
		return d.run(ctx, cmd, args[0])
	}
	return cmd
}

// declareTimeout bounds what adopt and settle wait for: nodes that speak, and a store
// with many lines.
const declareTimeout = 3 * time.Minute

// A declaration is what adopt and settle are told.
type declaration struct {
	floor       int64
	witnesses   []string
	dryRun, yes bool
	address     string
	credentials *credentials
	asJSON      *bool
	settings    *settingFlags
	margin      server.Margin
}

func addDeclaration(cmd *cobra.Command) *declaration {
	d := &declaration{}
	flags := cmd.Flags()
	flags.Int64Var(&d.floor, "floor", 0, "above all that a missing node can have used: every segment tag is raised to it")
	flags.StringSliceVar(&d.witnesses, "witness-file", nil, "witness files of nodes that do not run")
	flags.BoolVar(&d.dryRun, "dry-run", false, "only say what is wrong, and what would be raised")
	flags.BoolVar(&d.yes, "yes", false, "do not ask")
	flags.StringVar(&d.address, "server", "", "URL of a running server to work through (or $"+serverEnv+")")
	d.credentials = addCredentials(flags)
	d.asJSON = jsonFlag(cmd)
	d.settings = addSettings(cmd, "data", "store", "witness")
	return d
}

// A declarer carries a statement out.
type declarer struct {
	declare func(context.Context, witness.Statement) (server.Adoption, error)
	close   func() error
}

// run says what a statement would do, asks, and makes it.
func (d *declaration) run(ctx context.Context, cmd *cobra.Command, node string) error {
	st := witness.Statement{Row: node, Floor: d.floor, DryRun: true}
	for _, path := range d.witnesses {
		t, err := witness.Read(path)
		if err != nil {
			return err
		}
		st.Witness = append(st.Witness, t)
	}
	to, err := d.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(d.carryOut(ctx, cmd, to, st), to.close())
}

func (d *declaration) carryOut(ctx context.Context, cmd *cobra.Command, to declarer, st witness.Statement) error {
	found, err := to.declare(ctx, st)
	// Even with an error, which may be that nodes are missing: these are named here.
	tellOfAdoption(cmd, found)
	if err != nil {
		return err
	}
	if found.Fence == nil && found.Other == "" && len(found.Differences)+len(found.Stated) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: nothing is wrong with store", found.StoreID+"; nothing was changed")
		return nil
	}
	if d.dryRun {
		return printRaised(cmd, found.Marks(), *d.asJSON)
	}
	if !d.yes {
		tellOfRaised(cmd, found.Marks())
	}
	if err := confirm(cmd, d.yes); err != nil {
		return err
	}
	st.DryRun = false
	// Judged anew: while the question stood the fleet may have healed, or somebody else have spoken.
	done, err := to.declare(ctx, st)
	if err != nil {
		return err
	}
	if done.Fence != nil || done.Other != "" || len(done.Differences) > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: store", done.StoreID, "is adopted")
	}
	if len(done.Differences) > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: never use its original again: nothing can check that, and two live copies issue the same numbers")
	}
	return printRaised(cmd, done.Marks(), *d.asJSON)
}

// server returns the URL of the server that is named: by the flag, or by the environment
// where no flag names a data directory or a store. Empty for none: where the data directory
// is not given and not there, the server at the configured address is meant, if it answers.
func (d *declaration) server(ctx context.Context) (address string, named bool, config server.Config, err error) {
	_, data := d.settings.given["data"]
	_, store := d.settings.given["store"]
	switch {
	case d.address != "" && data:
		return "", false, config, usagef("--server and --data exclude each other")
	case d.address != "":
		return d.address, true, config, nil
	case !data && !store && os.Getenv(serverEnv) != "":
		return os.Getenv(serverEnv), true, config, nil
	}
	if config, err = d.settings.load(); err != nil {
		return "", false, config, err
	}
	file := store && strings.HasPrefix(config.Store, "bolt:") // no other process may have it
	if !data && os.Getenv(dataEnv) == "" && !file && !exists(config.Data) && answers(ctx, config.URL()) {
		return config.URL(), d.settings.hasConfig() || os.Getenv(httpEnv) != "", config, nil
	}
	return "", false, config, nil
}

// open finds who carries a statement out: the server that is named, or that runs in the
// data directory, or else this process.
func (d *declaration) open(ctx context.Context) (declarer, error) {
	address, named, config, err := d.server(ctx)
	if err != nil {
		return declarer{}, err
	}
	if address == "" {
		a, err := server.OpenAdopter(config, d.margin)
		if err == nil {
			return declarer{a.Adopt, a.Close}, nil
		}
		// A lock alone tells that another process has the directory, which may answer.
		if !errors.Is(err, hapax.ErrStoreLocked) {
			return declarer{}, err
		}
		if address, named = server.Announced(config.Data); address == "" || !answers(ctx, address) {
			return declarer{}, err
		}
	}
	c, err := dial(ctx, address, d.credentials, named)
	if err != nil {
		return declarer{}, err
	}
	return declarer{func(ctx context.Context, st witness.Statement) (server.Adoption, error) {
		a, err := declareThrough(ctx, c.Client, st)
		return a, c.explain(err)
	}, c.Close}, nil
}

// tellOfAdoption says what is wrong.
func tellOfAdoption(cmd *cobra.Command, a server.Adoption) {
	out := cmd.ErrOrStderr()
	for _, d := range a.Differences {
		fmt.Fprintln(out, "hapax:", d)
	}
	if a.Other != "" {
		fmt.Fprintf(out, "hapax: the nodes know store %s, this is store %s\n", a.Other, a.StoreID)
	}
	if f := a.Fence; f != nil {
		fmt.Fprintf(out, "hapax: node %s found at %s: %s\n", f.Node, f.At.UTC().Format(time.RFC3339), f.Why)
		fmt.Fprintln(out, "hapax: processes that said what they used:", a.Spoke)
	}
	for _, n := range a.Stated {
		switch n.State {
		case "left":
			fmt.Fprintln(out, "hapax: has left already, nothing is to be done:", witness.Node(n))
		case "silent":
			fmt.Fprintln(out, "hapax: has fallen silent already, nothing is to be done:", witness.Node(n))
		case "settled":
			fmt.Fprintln(out, "hapax: is settled already, nothing is to be done:", witness.Node(n))
		default:
			fmt.Fprintln(out, "hapax: spoken for:", witness.Node(n))
		}
	}
	for _, n := range a.Missing {
		fmt.Fprintln(out, "hapax: missing:", witness.Node(n))
	}
}

// maxTold is how many marks are shown with the question; --dry-run shows all.
const maxTold = 20

// tellOfRaised says what is about to be raised.
func tellOfRaised(cmd *cobra.Command, all []client.Raised) {
	out := cmd.ErrOrStderr()
	for _, r := range all[:min(len(all), maxTold)] {
		fmt.Fprintf(out, "hapax: to be raised: %s from %d to %d\n", lineOf(r), r.From, r.To)
	}
	if len(all) > maxTold {
		fmt.Fprintf(out, "hapax: to be raised: %d lines in all, which --dry-run shows\n", len(all))
	}
}

// confirm asks on a terminal, and wants --yes elsewhere.
func confirm(cmd *cobra.Command, yes bool) error {
	if yes {
		return nil
	}
	in, ok := cmd.InOrStdin().(*os.File)
	// Of a nil file, Stat is an error and no panic.
	if info, err := in.Stat(); !ok || err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return usagef("%s changes marks; look at --dry-run, and give --yes", cmd.Name())
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Raise these marks and go on with this store? [y/N] ")
	line, err := bufio.NewReader(in).ReadString('\n')
	// An answer that ends before Enter is none: the terminal has gone.
	if answer := strings.ToLower(strings.TrimSpace(line)); err != nil || answer != "y" && answer != "yes" {
		return fmt.Errorf("%w: nothing was changed", strategy.ErrRejected)
	}
	return nil
}

// lineOf names the line of a mark.
func lineOf(r client.Raised) string {
	if r.Worker != nil {
		return "worker " + r.Pool + "/" + strconv.FormatInt(*r.Worker, 10)
	}
	return "tag " + r.Tag
}

// printRaised prints the marks that were raised, or would be.
func printRaised(cmd *cobra.Command, marks []client.Raised, asJSON bool) error {
	out := newOutput(cmd, asJSON, "LINE", "FROM", "TO")
	var errs []error
	for _, r := range marks {
		errs = append(errs, out.add(r, lineOf(r), strconv.FormatInt(r.From, 10), strconv.FormatInt(r.To, 10)))
	}
	return errors.Join(append(errs, out.flush())...)
}
