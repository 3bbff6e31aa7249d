package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/server"
)

// A foreignAdopter adopts rows of a foreign system's table, with dryRun or for good.
type foreignAdopter func(ctx context.Context, dryRun bool) (client.ForeignAdoption, error)

// adoptForeign adopts a row, or all rows if the key is empty, of a foreign system's table.
func (d *declaration) adoptForeign(ctx context.Context, cmd *cobra.Command, system, key string) error {
	for _, flag := range []string{"floor", "witness-file", "time-margin"} {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s is not for the table of a foreign system", flag)
		}
	}
	adopt, end, err := d.foreignAdopter(ctx, system, key)
	if err != nil {
		return err
	}
	return errors.Join(d.carryOutForeign(ctx, cmd, system, adopt), end())
}

func (d *declaration) carryOutForeign(ctx context.Context, cmd *cobra.Command, system string, adopt foreignAdopter) error {
	found, err := adopt(ctx, true)
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
	if d.dryRun {
		return printRaised(cmd, found.Raised, *d.asJSON)
	}
	if !d.yes {
		tellOfRaised(cmd, found.Raised)
	}
	if err := confirm(cmd, d.yes); err != nil {
		return err
	}
	done, err := adopt(ctx, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "hapax: the table of %s is adopted by this node; run it at each node that refuses\n", system)
	return printRaised(cmd, done.Raised, *d.asJSON)
}

// foreignAdopter finds who carries it out: the server that is named, or that runs in the
// data directory, or else this process.
func (d *declaration) foreignAdopter(ctx context.Context, system, key string) (adopt foreignAdopter, end func() error, err error) {
	address, named, config, err := d.server(ctx)
	if err != nil {
		return nil, nil, err
	}
	if address == "" {
		adopt = func(ctx context.Context, dryRun bool) (client.ForeignAdoption, error) {
			return server.AdoptForeign(ctx, config, system, key, d.margin.Numbers, dryRun)
		}
		address, named = server.Announced(config.Data)
		if address == "" || !answers(ctx, address) {
			return adopt, func() error { return nil }, nil
		}
	}
	c, err := dial(ctx, address, d.credentials, named)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, dryRun bool) (client.ForeignAdoption, error) {
		a, err := c.AdoptForeign(ctx, system, key, d.margin.Numbers, dryRun)
		return a, c.explain(err)
	}, c.Close, nil
}

// keyOfForeign returns the argument of adopt, which is for --foreign alone.
func keyOfForeign(system string, args []string) (string, error) {
	switch {
	case len(args) == 0:
		return "", nil
	case system == "":
		return "", usagef("KEY %q is for --foreign", args[0])
	}
	return args[0], nil
}
