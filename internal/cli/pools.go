package cli

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
)

func poolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pools",
		Short: "List, create and delete the worker pools of snowflake tags",
		Long: `Pools shows which worker pools there are: those that are configured, those that the
store knows, and the default pool.

A pool is made in the store when a number of one of its tags is first issued, with
the layout that the configuration gives it, and that layout is frozen then. FROZEN
tells whether this has happened, CONFIGURED whether the pool is in the
configuration.
` + targetHelp,
	}
	group(cmd, poolsListCommand(), poolsShowCommand(), poolsCreateCommand(), poolsDeleteCommand())
	return cmd
}

func poolsCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create POOL",
		Short: "Create a pool, or revive a deleted one",
		Long: `Create freezes a pool with a layout in the store, so that servers which do not have
it in their configuration know it, too. A deleted pool comes back only with the
layout that it had.
` + targetHelp,
		Example: `  hapax pools create events --layout uidgenerator-29-21-13`,
		Args:    arguments(1, 1),
	}
	layout := cmd.Flags().String("layout", hapax.LayoutLeaf, "name or spec of the layout")
	return changePool(cmd, creates, func(ctx context.Context, t target, pool string) (driver.Pool, error) {
		l, err := hapax.ParseLayout(*layout)
		if err != nil {
			return driver.Pool{}, err
		}
		return t.CreatePool(ctx, pool, l.String())
	})
}

func poolsDeleteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete POOL",
		Short: "Delete a pool",
		Long: `Delete removes a pool of which no worker ID was ever used. Of any other it leaves a
tombstone, which keeps what is granted: the pool issues nothing until it is created
anew, with the layout that it had. A server that issues from the pool refuses.
` + targetHelp,
		Args: arguments(1, 1),
	}
	return changePool(cmd, changes, func(ctx context.Context, t target, pool string) (driver.Pool, error) {
		p, err := t.DeletePool(ctx, pool)
		if errors.Is(err, hapax.ErrPoolNotFound) {
			err = notInStore(pool)
		}
		return p, err
	})
}

// changePool makes cmd call change with its argument, and print the pool.
func changePool(cmd *cobra.Command, u use, change func(context.Context, target, string) (driver.Pool, error)) *cobra.Command {
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	completeFirst(cmd, where, poolNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return where.with(cmd, u, func(ctx context.Context, t target) error {
			p, err := change(ctx, t, args[0])
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, "POOL", "LAYOUT", "STATE")
			state := "created"
			switch {
			// Without a tombstone there is no layout left to tell.
			case p.Deleted && p.Layout == "":
				state = "removed"
			case p.Deleted:
				state = "deleted"
			}
			shown := p.Layout
			if l, err := hapax.ParseLayout(p.Layout); err == nil {
				shown = service.LayoutName(l)
			}
			return errors.Join(out.add(struct {
				Pool   string `json:"pool"`
				Layout string `json:"layout,omitempty"`
				State  string `json:"state"`
			}{p.Name, shown, state}, p.Name, dash(shown), state), out.flush())
		})
	}
	return cmd
}

func poolsListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the pools, by name",
		Args:  arguments(0, 0),
	}
	return showPools(cmd, func(pools []api.PoolStatus, _ []string) ([]api.PoolStatus, error) { return pools, nil })
}

func poolsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show POOL",
		Short: "Show one pool",
		Args:  arguments(1, 1),
	}
	return showPools(cmd, func(pools []api.PoolStatus, args []string) ([]api.PoolStatus, error) {
		i := slices.IndexFunc(pools, func(p api.PoolStatus) bool { return p.Name == args[0] })
		if i < 0 {
			return nil, &hapax.ValueError{Field: "pool", Value: args[0], Allowed: "a pool that is configured or that the store knows", Err: hapax.ErrInvalidArgument}
		}
		return pools[i : i+1], nil
	})
}

// showPools makes cmd print those pools that choose returns.
func showPools(cmd *cobra.Command, choose func([]api.PoolStatus, []string) ([]api.PoolStatus, error)) *cobra.Command {
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	if cmd.Name() == "show" {
		completeFirst(cmd, where, poolNames)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return where.with(cmd, reads, func(ctx context.Context, t target) error {
			pools, err := t.PoolStatuses(ctx)
			if err == nil {
				pools, err = choose(pools, args)
			}
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, "POOL", "LAYOUT", "WORKERS", "CONFIGURED", "FROZEN")
			for _, p := range pools {
				err := out.add(p, p.Name, p.Layout, strconv.FormatInt(p.Workers, 10), yesNo(p.Configured), yesNo(p.Frozen))
				if err != nil {
					return err
				}
			}
			return out.flush()
		})
	}
	return cmd
}

func yesNo(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}
