package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/store/witness"
)

// adoptForeign adopts the table of a foreign system.
func adoptForeign(ctx context.Context, cmd *cobra.Command, settings *settingFlags, system string, margin int64, dryRun, yes, asJSON bool) error {
	for _, flag := range []string{"server", "floor", "witness-file", "time-margin"} {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s is not for the table of a foreign system; stop the server, and give its --config and --data", flag)
		}
	}
	config, err := settings.load()
	if err != nil {
		return err
	}
	found, err := server.AdoptForeign(ctx, config, system, margin, true)
	if err != nil {
		return err
	}
	for _, why := range found.Skipped {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: skipped:", why)
	}
	if len(found.Why)+len(found.Raised) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "hapax: nothing is wrong with the table of %s; nothing was changed\n", system)
		return nil
	}
	for _, why := range found.Why {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: this node refuses a row:", why)
	}
	if dryRun {
		return printRaised(cmd, server.Adoption{Adoption: witness.Adoption{Raised: found.Raised}}, asJSON)
	}
	if err := confirm(cmd, yes); err != nil {
		return err
	}
	done, err := server.AdoptForeign(ctx, config, system, margin, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "hapax: the table of %s is adopted by this node; run it at each node that refuses\n", system)
	return printRaised(cmd, server.Adoption{Adoption: witness.Adoption{Raised: done.Raised}}, asJSON)
}
