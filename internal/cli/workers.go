package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
)

func workersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the worker IDs of snowflake pools",
	}
	group(cmd, workersListCommand())
	return cmd
}

func workersListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [POOL]",
		Short: "List the worker IDs that were ever used, of one pool or of all",
		Long: `List shows each worker ID with the instance that holds it, the time up to which
numbers were granted to it, and when its lease can be recycled.
` + targetHelp,
		Args: arguments(0, 1),
	}
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return where.with(cmd, func(ctx context.Context, t target) error {
			pools, err := t.Pools(ctx)
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, "POOL", "WORKER", "GRANTED UNTIL", "EPOCH", "EXPIRES", "HOLDER")
			for _, pool := range pools {
				if len(args) == 1 && pool.Name != args[0] {
					continue
				}
				if err := listWorkers(ctx, out, t, pool); err != nil {
					return errorAfter(out, err)
				}
			}
			return out.flush()
		})
	}
	return cmd
}

func listWorkers(ctx context.Context, out *output, t target, pool hapax.Pool) error {
	layout, err := hapax.ParseLayout(pool.Layout)
	if err != nil {
		return err
	}
	workers, err := t.Workers(ctx, pool.Name)
	if err != nil {
		return err
	}
	for _, w := range workers {
		expires := "-"
		if !w.Expires.IsZero() {
			expires = w.Expires.UTC().Format(time.RFC3339)
		}
		err := out.add(newWorkerJSON(layout, w), w.Pool, strconv.FormatInt(w.ID, 10), layout.TimeOf(w.Mark).Format(time.RFC3339Nano),
			strconv.FormatInt(w.Epoch, 10), expires, dash(w.Holder))
		if err != nil {
			return err
		}
	}
	return nil
}
