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
		Short: "Decide that a restored, replaced, copied or moved store is to be used",
		Long: `Adopt is the way out when hapax refuses its store: because it was restored from a
backup, replaced, copied or moved to another machine. It raises every mark of the
store above what the living nodes, this data directory and the given witnesses
know to be used, and then lifts the fence that keeps all nodes from issuing.

It says first what is wrong and what it would raise, and asks before it changes
anything; --yes answers for you. Where nothing is wrong it changes nothing.

With --server it works through a running server, and without, on a data directory
whose server is stopped. Run it once, at any node: the others hear of it. An
embedded store that was copied or moved is raised by the margins, which must
exceed what the original granted since; never use that original again.

With --foreign leaf or --foreign tinyid it raises the rows of that system's table: above
what this node's witness knows, and by the margin for what the system's own nodes
have issued.`,
		Example: `  hapax adopt --server http://127.0.0.1:8080 --dry-run
  hapax adopt --data /var/lib/hapax --witness-file /mnt/other/witness --yes
  hapax adopt --data /var/lib/hapax --margin 50000000`,
		Args: arguments(0, 0),
	}
	flags := cmd.Flags()
	numbers := flags.Int64("margin", 1_000_000, "how many numbers to skip in every tag of an embedded store that was copied or moved")
	ahead := flags.Duration("time-margin", 10*time.Minute, "how much time to skip on every worker ID of such a store")
	floor := flags.Int64("floor", 0, "raise every segment tag to this number at least")
	without := flags.Bool("without-missing", false, "go on although nodes that the store knows have not said what they used; needs --floor")
	noOthers := flags.Bool("no-others", false, "state that no node has used the store but those that are heard; a store that was replaced needs that, or --floor")
	witnesses := flags.StringSlice("witness-file", nil, "witness files of nodes that do not live")
	dryRun := flags.Bool("dry-run", false, "only say what is wrong, and what would be raised")
	yes := flags.Bool("yes", false, "do not ask")
	address := flags.String("server", "", "URL of a running server to work through (or $"+serverEnv+")")
	credentials := addCredentials(flags)
	foreign := flags.String("foreign", "", "leaf or tinyid: adopt its table instead, which this node's witness refuses")
	asJSON := jsonFlag(cmd)
	settings := addSettings(cmd, "data", "store", "witness")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), adoptTimeout)
		defer cancel()
		if *foreign != "" {
			return adoptForeign(ctx, cmd, settings, *foreign, *numbers, *dryRun, *yes, *asJSON)
		}
		var adopt func(dryRun bool) (server.Adoption, error)
		if *address != "" {
			c, err := dial(ctx, *address, credentials, true)
			if err != nil {
				return err
			}
			defer c.Close()
			adopt = func(dryRun bool) (server.Adoption, error) {
				a, err := adoptThrough(ctx, c.Client, *witnesses, client.AdoptRequest{DryRun: dryRun, Floor: *floor, WithoutMissing: *without, NoOthers: *noOthers})
				return a, c.explain(err)
			}
		} else {
			config, err := settings.load()
			if err != nil {
				return err
			}
			adopt = func(dryRun bool) (server.Adoption, error) {
				return server.Adopt(ctx, config, server.AdoptRequest{
					AdoptRequest: witness.AdoptRequest{DryRun: dryRun, Floor: *floor, WithoutMissing: *without, NoOthers: *noOthers},
					Margin:       server.Margin{Numbers: *numbers, Time: *ahead}, Witnesses: *witnesses,
				})
			}
		}
		found, err := adopt(true)
		if err != nil {
			tellOfAdoption(cmd, found)
			return err
		}
		if found.Fence == nil && len(found.Raised) == 0 && len(found.Differences) == 0 && !found.Replaced {
			fmt.Fprintln(cmd.ErrOrStderr(), "hapax: nothing is wrong with store", found.StoreID+"; nothing was changed")
			return nil
		}
		tellOfAdoption(cmd, found)
		if *dryRun {
			return printRaised(cmd, found, *asJSON)
		}
		if err := confirm(cmd, *yes); err != nil {
			return err
		}
		done, err := adopt(false)
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: store", done.StoreID, "is adopted")
		if len(done.Differences) > 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "hapax: never use its original again: nothing can check that, and two live copies issue the same numbers")
		}
		return printRaised(cmd, done, *asJSON)
	}
	return cmd
}

// adoptThrough has a running server adopt its store.
func adoptThrough(ctx context.Context, c *client.Client, files []string, req client.AdoptRequest) (server.Adoption, error) {
	var a server.Adoption
	req.Lines = map[string]int64{}
	for _, path := range files {
		lines, err := witness.Read(path)
		if err != nil {
			return a, err
		}
		for line, mark := range lines {
			req.Lines[line] = max(req.Lines[line], mark)
		}
	}
	res, err := c.Adopt(ctx, req)
	if req.DryRun && !errors.Is(err, hapax.ErrFenced) && (errors.Is(err, hapax.ErrStoreReplaced) || errors.Is(err, hapax.ErrStoreUnsafe)) {
		a.Differences = []string{hapax.Message(err)} // it cannot be opened before that is accepted
		return a, nil
	}
	if err != nil {
		return a, err
	}
	a.StoreID, a.Spoke, a.Missing, a.Unheard, a.Replaced = res.StoreID, res.Spoke, res.Missing, res.Unheard, res.Replaced
	if f := res.Fence; f != nil {
		a.Fence = &witness.Fence{ID: f.ID, Name: f.Name, At: f.At, Why: f.Why}
	}
	for _, r := range res.Raised {
		a.Raised = append(a.Raised, witness.Raised(r))
	}
	return a, nil
}

// tellOfAdoption says what is wrong.
func tellOfAdoption(cmd *cobra.Command, a server.Adoption) {
	out := cmd.ErrOrStderr()
	for _, d := range a.Differences {
		fmt.Fprintln(out, "hapax:", d)
	}
	if f := a.Fence; f != nil {
		fmt.Fprintf(out, "hapax: node %s found at %s: %s\n", f.Name, f.At.UTC().Format(time.RFC3339), f.Why)
	}
	if len(a.Spoke) > 0 {
		fmt.Fprintln(out, "hapax: nodes that reported what they used:", strings.Join(a.Spoke, ", "))
	}
	if len(a.Missing) > 0 {
		fmt.Fprintln(out, "hapax: nodes that have not reported:", strings.Join(a.Missing, ", "))
	}
	if len(a.Unheard) > 0 {
		fmt.Fprintln(out, "hapax: nodes that were seen before and have not reported:", strings.Join(a.Unheard, ", "))
	}
	if a.Replaced {
		fmt.Fprintln(out, "hapax: the store is not the one that was used before: give --floor, or all --witness-file of nodes that do not run and --no-others")
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
