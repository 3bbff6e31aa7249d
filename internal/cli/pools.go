package cli

import (
	"context"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// poolJSON is a pool as --json and servers show it.
type poolJSON struct {
	Name       string `json:"name"`
	Layout     string `json:"layout"` // the name, or else the spec
	Workers    int64  `json:"workers,omitempty"`
	Configured bool   `json:"configured"`
	Frozen     bool   `json:"frozen"`
}

func poolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pools",
		Short: "List and show the worker pools of snowflake tags",
		Long: `Pools shows which worker pools there are: those that are configured, those that the
store knows, and the default pool.

A pool is made in the store when a number of one of its tags is first issued, with
the layout that the configuration gives it, and that layout is frozen then. FROZEN
tells whether this has happened, CONFIGURED whether the pool is in the
configuration.
` + targetHelp,
	}
	group(cmd, poolsListCommand(), poolsShowCommand())
	return cmd
}

func poolsListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the pools, by name",
		Args:  arguments(0, 0),
	}
	return showPools(cmd, func(pools []service.PoolStatus, _ []string) ([]service.PoolStatus, error) { return pools, nil })
}

func poolsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show POOL",
		Short: "Show one pool",
		Args:  arguments(1, 1),
	}
	return showPools(cmd, func(pools []service.PoolStatus, args []string) ([]service.PoolStatus, error) {
		i := slices.IndexFunc(pools, func(p service.PoolStatus) bool { return p.Name == args[0] })
		if i < 0 {
			return nil, &hapax.ValueError{Field: "pool", Value: args[0], Allowed: "a pool that is configured or that the store knows", Err: hapax.ErrInvalidArgument}
		}
		return pools[i : i+1], nil
	})
}

// showPools makes cmd print those pools that choose returns.
func showPools(cmd *cobra.Command, choose func([]service.PoolStatus, []string) ([]service.PoolStatus, error)) *cobra.Command {
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	if cmd.Name() == "show" {
		completeFirst(cmd, where, poolNames)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return where.with(cmd, func(ctx context.Context, t target) error {
			pools, err := t.PoolStatuses(ctx)
			if err == nil {
				pools, err = choose(pools, args)
			}
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, "POOL", "LAYOUT", "WORKERS", "CONFIGURED", "FROZEN")
			for _, p := range pools {
				j := poolJSON{Name: p.Name, Layout: p.Layout, Configured: p.Configured, Frozen: p.Frozen}
				if l, err := hapax.ParseLayout(p.Layout); err == nil {
					j.Layout, j.Workers = service.LayoutName(l), l.Workers()
				}
				err := out.add(j, j.Name, j.Layout, strconv.FormatInt(j.Workers, 10), yesNo(j.Configured), yesNo(j.Frozen))
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
