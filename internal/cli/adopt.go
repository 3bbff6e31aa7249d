package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/internal/server"
)

func adoptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Accept a copied, moved, restored or replaced store",
		Long: `Adopt makes a data directory usable again whose store was copied, moved to another
machine, restored from a backup or replaced, and which is refused since.

It skips numbers: the mark of every tag and worker of an embedded store is raised
by the margins, which must exceed what the original granted since the copy was
made. See to it that the original is never used again: nothing can check that,
and two live copies issue the same numbers.`,
		Example: `  hapax adopt --data /var/lib/hapax --margin 50000000`,
		Args:    arguments(0, 0),
	}
	numbers := cmd.Flags().Int64("margin", 1_000_000, "how many numbers to skip in every tag of an embedded store")
	ahead := cmd.Flags().Duration("time-margin", 10*time.Minute, "how much time to skip on every worker ID of an embedded store")
	asJSON := jsonFlag(cmd)
	settings := addSettings(cmd, "data", "store")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config, err := settings.load()
		if err != nil {
			return err
		}
		adoption, err := server.Adopt(cmd.Context(), config, server.Margin{Numbers: *numbers, Time: *ahead})
		if err != nil {
			return err
		}
		return printAdoption(cmd, adoption, *asJSON)
	}
	return cmd
}

// raised is a mark that was raised.
type raised struct {
	Tag    string `json:"tag,omitempty"`
	Pool   string `json:"pool,omitempty"`
	Worker *int64 `json:"worker,omitempty"`
	From   int64  `json:"from,string"`
	To     int64  `json:"to,string"`
}

func printAdoption(cmd *cobra.Command, a server.Adoption, asJSON bool) error {
	for _, d := range a.Differences {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: adopted although", d)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "hapax: store", a.StoreID, "is adopted; never use its original again")
	out := newOutput(cmd, asJSON, "LINE", "FROM", "TO")
	for _, r := range a.Raised {
		line, value := "tag "+r.Tag, raised{Tag: r.Tag, From: r.From, To: r.To}
		if r.Pool != "" {
			line = "worker " + r.Pool + "/" + strconv.FormatInt(r.Worker, 10)
			value = raised{Pool: r.Pool, Worker: &r.Worker, From: r.From, To: r.To}
		}
		if err := out.add(value, line, strconv.FormatInt(r.From, 10), strconv.FormatInt(r.To, 10)); err != nil {
			return err
		}
	}
	return out.flush()
}
