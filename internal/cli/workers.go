package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/store/driver"
)

func workersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show and repair the worker IDs of snowflake pools",
	}
	group(cmd, workersListCommand(), workersShowCommand(), workersRetireCommand(), workersFixCommand())
	return cmd
}

const stateHelp = `
The states of a worker ID:

  free      any instance may take it
  held      an instance has a lease on it
  waiting   no instance holds it, but its granted time is not over
  retired   out of use until the clock passes its granted time
  poisoned  its granted time is more than a day ahead: a clock is or was wrong
`

var workerHeader = []string{"POOL", "WORKER", "PARTS", "STATE", "GRANTED UNTIL", "FREE", "TOKEN", "HOLDER"}

func addWorker(out *output, w api.WorkerStatus) error {
	parts, until, free := "", "-", "-"
	for i, p := range w.Parts {
		if i > 0 {
			parts += ","
		}
		parts += fmt.Sprintf("%s=%d", p.Name, p.Value)
	}
	if w.Token > 0 {
		until = w.Until.Format(time.RFC3339Nano)
	}
	if !w.Free.IsZero() {
		free = w.Free.UTC().Format(time.RFC3339)
	}
	return out.add(w, w.Pool, strconv.FormatInt(w.ID, 10), dash(parts), string(w.State),
		until, free, strconv.FormatInt(w.Token, 10), dash(w.Holder))
}

// eachWorker calls f for the worker IDs that were ever used, of one pool or of
// all.
func eachWorker(ctx context.Context, t target, args []string, f func(api.WorkerStatus) error) error {
	// A misspelt pool would otherwise look like one of which no worker ID was ever used.
	if len(args) == 1 {
		if err := wasUsed(ctx, t, args[0]); err != nil {
			return err
		}
	}
	pools, err := t.Pools(ctx)
	if err != nil {
		return err
	}
	for _, pool := range pools {
		if len(args) == 1 && pool.Name != args[0] {
			continue
		}
		workers, err := t.WorkerStatuses(ctx, pool.Name)
		if err != nil {
			return err
		}
		for _, w := range workers {
			if err := f(w); err != nil {
				return err
			}
		}
	}
	return nil
}

func workersListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [POOL]",
		Short: "List the worker IDs that were ever used, of one pool or of all",
		Long: `List shows each worker ID with its parts where the pool's split is configured, its
state, the time up to which numbers were granted to it, when others may have it,
and the instance that holds it or held it last.
` + stateHelp + targetHelp,
		Args: arguments(0, 1),
	}
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	completeFirst(cmd, where, poolNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return where.with(cmd, reads, func(ctx context.Context, t target) error {
			out := newOutput(cmd, *asJSON, workerHeader...)
			err := eachWorker(ctx, t, args, func(w api.WorkerStatus) error { return addWorker(out, w) })
			if err != nil {
				return errorAfter(out, err)
			}
			return out.flush()
		})
	}
	return cmd
}

func workersShowCommand() *cobra.Command {
	return oneWorker(reads, "show", "Show one worker ID, whether it was used or not",
		"Show prints one worker ID as list does.\n"+stateHelp+targetHelp,
		func(context.Context, target, string, int64) error { return nil })
}

// oneWorker returns a command that acts on one worker ID of a pool that was used, and
// prints it afterwards.
func oneWorker(u use, name, short, long string, act func(ctx context.Context, t target, pool string, id int64) error) *cobra.Command {
	cmd := &cobra.Command{Use: name + " POOL WORKER", Short: short, Long: long, Args: arguments(2, 2)}
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	completeFirst(cmd, where, poolNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseWorkerID(args[1])
		if err != nil {
			return err
		}
		return where.with(cmd, u, func(ctx context.Context, t target) error {
			err := wasUsed(ctx, t, args[0])
			if err == nil {
				err = act(ctx, t, args[0], id)
			}
			if err != nil {
				return err
			}
			return printWorker(ctx, newOutput(cmd, *asJSON, workerHeader...), t, args[0], id)
		})
	}
	return cmd
}

func parseWorkerID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 0 {
		return 0, &hapax.ValueError{Field: hapax.FieldWorker, Value: text, Allowed: "a worker ID, which is 0 or more", Err: hapax.ErrInvalidArgument}
	}
	return id, nil
}

func printWorker(ctx context.Context, out *output, t target, pool string, id int64) error {
	w, err := t.WorkerStatus(ctx, pool, id)
	if err == nil {
		err = addWorker(out, w)
	}
	if err != nil {
		return err
	}
	return out.flush()
}

func workersRetireCommand() *cobra.Command {
	return oneWorker(changes, "retire", "Take a worker ID out of use until the clock passes its mark",
		`Use retire for a worker ID that was granted time years ahead because of a wrong clock.
Its lease ends, its mark stays, and others are used until the clock reaches the mark.
An instance that holds it finds its lease lost and takes another. Fix finds such
worker IDs, and retires them.
`+targetHelp,
		func(ctx context.Context, t target, pool string, id int64) error {
			_, err := t.RetireWorker(ctx, pool, id)
			return err
		})
}

// wasUsed refuses a pool that the store does not know.
func wasUsed(ctx context.Context, t target, name string) error {
	pools, err := t.Pools(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(pools, func(p driver.Pool) bool { return p.Name == name }) {
		return notInStore(name)
	}
	return nil
}

// notInStore tells why a pool that may be configured, as the default pool is, has nothing
// to show or to delete.
func notInStore(pool string) error {
	return fmt.Errorf("%w: %q is not in the store, which gets it when one of its tags first issues, or from hapax pools create", hapax.ErrPoolNotFound, pool)
}

// fixJSON is what fix does, or would do, to a worker ID.
type fixJSON struct {
	Pool    string    `json:"pool"`
	Worker  int64     `json:"worker"`
	Action  string    `json:"action"` // always "retire"
	Applied bool      `json:"applied"`
	Free    time.Time `json:"free"` // when the clock passes the mark
	Holder  string    `json:"holder,omitempty"`
}

func workersFixCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fix [POOL]",
		Short: "Retire worker IDs that a wrong clock has poisoned",
		Long: `Fix finds worker IDs whose granted time lies more than a day ahead, which every
instance refuses, and prints what it would do: retire each of them, which ends its
lease and keeps it out of use until the clock passes that time, printed as the last
column. With --apply it does so. No mark is lowered: numbers up to it may have been
issued.

First set the clocks right, here and on the instance that held the worker ID. If
this machine's clock is the one that is behind, set it, and nothing needs a fix.
` + targetHelp,
		Example: "  hapax workers fix\n  hapax workers fix --apply",
		Args:    arguments(0, 1),
	}
	apply := cmd.Flags().Bool("apply", false, "do it")
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	completeFirst(cmd, where, poolNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return where.with(cmd, changes, func(ctx context.Context, t target) error {
			out := newOutput(cmd, *asJSON, "ACTION", "POOL", "WORKER", "HOLDER", "FREE")
			found := 0
			err := eachWorker(ctx, t, args, func(w api.WorkerStatus) error {
				if w.State != api.WorkerPoisoned {
					return nil
				}
				found++
				return fix(ctx, t, out, w, *apply)
			})
			if err != nil {
				return errorAfter(out, err)
			}
			switch {
			case found == 0:
				fmt.Fprintln(cmd.ErrOrStderr(), "hapax: no worker ID is poisoned; nothing to fix")
			case !*apply:
				fmt.Fprintln(cmd.ErrOrStderr(), "hapax: nothing was changed; --apply does it")
			}
			return out.flush()
		})
	}
	return cmd
}

func fix(ctx context.Context, t target, out *output, w api.WorkerStatus, apply bool) error {
	action := "would retire"
	if apply {
		if _, err := t.RetireWorker(ctx, w.Pool, w.ID); err != nil {
			return err
		}
		action = "retired"
	}
	return out.add(fixJSON{w.Pool, w.ID, "retire", apply, w.Until, w.Holder},
		action, w.Pool, strconv.FormatInt(w.ID, 10), dash(w.Holder), w.Until.Format(time.RFC3339))
}
