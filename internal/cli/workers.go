package cli

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
)

var workerHeader = []string{"POOL", "WORKER", "GRANTED UNTIL", "EPOCH", "EXPIRES", "HOLDER"}

// addWorker adds a worker as a row under workerHeader.
func addWorker(out *output, layout hapax.Layout, w hapax.Worker) error {
	j := newWorkerJSON(layout, w)
	expires := "-"
	if !j.Expires.IsZero() {
		expires = j.Expires.Format(time.RFC3339)
	}
	return out.add(j, j.Pool, strconv.FormatInt(j.Worker, 10), j.Until.Format(time.RFC3339Nano), strconv.FormatInt(j.Epoch, 10), expires, dash(j.Holder))
}

func workersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show and retire the worker IDs of snowflake pools",
	}
	group(cmd, workersListCommand(), workersRetireCommand())
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
			out := newOutput(cmd, *asJSON, workerHeader...)
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
		if err := addWorker(out, layout, w); err != nil {
			return err
		}
	}
	return nil
}

func workersRetireCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retire POOL WORKER",
		Short: "Take a worker ID out of use until the clock passes its mark",
		Long: `Retire is the way out for a worker ID that a wrong clock has granted time years
ahead: its lease ends, its mark stays, and others are used until the clock gets
there. Whoever holds it finds its lease lost and takes another.
` + targetHelp,
		Args: arguments(2, 2),
	}
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil || id < 0 {
			return &hapax.ValueError{Field: "worker", Value: args[1], Allowed: "a worker ID from 0", Err: hapax.ErrInvalidArgument}
		}
		return where.with(cmd, func(ctx context.Context, t target) error {
			pools, err := t.Pools(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(pools, func(p hapax.Pool) bool { return p.Name == args[0] })
			if i < 0 {
				return &hapax.ValueError{Field: "pool", Value: args[0], Allowed: "a pool that was used", Err: hapax.ErrInvalidArgument}
			}
			layout, err := hapax.ParseLayout(pools[i].Layout)
			if err != nil {
				return err
			}
			w, err := t.RetireWorker(ctx, args[0], id)
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, workerHeader...)
			if err := addWorker(out, layout, w); err != nil {
				return err
			}
			return out.flush()
		})
	}
	return cmd
}
