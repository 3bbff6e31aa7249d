package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/supervise"
)

// workerVariable always has the worker ID.
const workerVariable = "HAPAX_WORKER_ID"

func workerExecCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command with its own worker ID, for as long as it may use the ID",
		Long: `Exec takes a worker ID from the servers, puts it into the environment, as
$HAPAX_WORKER_ID and as --env or --for say, and runs the command directly, without a
shell. It extends the lease while the command runs, passes signals on, gives the worker
ID back when the command ends, and exits with its exit code, or with 128 plus the number
of the signal that killed it.

The command starts once this host's clock is past all that the last holder of the worker
ID may have used. If no more time is granted, the command and all that it started get
SIGTERM, and SIGKILL after --grace, in any case before the time is over. A second process
keeps that deadline in case the first one is killed or frozen.

A generator that reads the clock repeats numbers when the clock is set back while it runs:
the command is then killed at once, unless --on-clock-step=warn.

Exec ends all that the command starts, and not what a daemon starts for it, such as the
container of docker run: put exec into the container.

Uniqueness is per pool: give all processes of one generator the same pool, and no other.
See docs/worker-ids.md.
` + supervise.Limits + execExitHelp,
		Example: `  hapax worker exec --pool shop --for mybatis-plus -- java -jar shop.jar
  hapax worker exec --workers 0-31 --env 'NODE_ID={worker}' -- ./orders
  hapax worker exec --list-known`,
		Args: cobra.ArbitraryArgs,
	}
	f := addWorkerFlags(cmd)
	onStep := cmd.Flags().String("on-clock-step", "kill", "what to do when the clock is set back: kill or warn")
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.listKnown {
			return printKnown(cmd)
		}
		return workerStatusOf(workerExec(cmd, f, args, *onStep))
	}
	return cmd
}

func workerExec(cmd *cobra.Command, f *workerFlags, args []string, onStep string) error {
	if len(args) == 0 {
		return usagef("missing command; usage: %s", cmd.UseLine())
	}
	if onStep != "kill" && onStep != "warn" {
		return &hapax.ValueError{Field: "--on-clock-step", Value: onStep, Allowed: "kill or warn", Err: hapax.ErrInvalidArgument}
	}
	ids, vars, err := f.prepare(cmd)
	if err != nil {
		return err
	}
	// Before a worker ID is taken for a command that does not exist.
	path, err := exec.LookPath(args[0])
	if err != nil {
		return cannotRun(args[0], err)
	}
	// From here on: a signal that comes before the command runs must not leave a worker ID taken.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, handedOn...)
	held, err := holdUnlessTold(cmd.Context(), signals, func(ctx context.Context) (*holding, error) {
		return f.hold(ctx, ids, holder("exec", f.name, args[0]), hapax.RollbackContinue) // the supervisor looks after the clock
	})
	if err != nil {
		return err
	}
	tell := func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "hapax: "+text) }
	warnAlike(vars, f.among, held.ID(), tell)
	result := supervise.Run(held, supervise.Options{
		Path: path, Args: args, Env: environment(held.ID(), vars),
		Margin: f.margin(), Grace: f.grace, Survive: onStep == "warn",
		Signals: signals, Extended: held.extended, Clock: held.clock, Tell: tell,
		Watchdog: []string{os.Args[0], "worker", "watchdog"}, Stage: []string{os.Args[0], "worker", "begin", "--"},
	})
	held.end(result.Gone)
	return resultError(args[0], result)
}

// holdUnlessTold takes a worker ID, unless a signal comes before there is one.
func holdUnlessTold(ctx context.Context, signals <-chan os.Signal, hold func(context.Context) (*holding, error)) (*holding, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		held *holding
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		held, err := hold(ctx)
		answers <- answer{held, err}
	}()
	for {
		select {
		case sig := <-signals:
			if !endsCommands(sig) {
				continue
			}
			cancel()
			// It was taken while the signal came, and nobody has used it.
			if a := <-answers; a.err == nil {
				a.held.end(true)
			}
			return nil, interrupted(supervise.InterruptedError{Signal: sig})
		case a := <-answers:
			return a.held, a.err
		}
	}
}

// interrupted is the end by a signal before the command was started.
func interrupted(err error) error {
	if told, ok := errors.AsType[supervise.InterruptedError](err); ok {
		return &statusError{told.Status(), err}
	}
	return err
}

// environment returns this process's with the worker ID.
func environment(worker int64, vars []variable) []string {
	set := []string{workerVariable + "=" + strconv.FormatInt(worker, 10)}
	for _, v := range vars {
		set = append(set, v.of(worker))
	}
	env := os.Environ()
	for _, v := range set {
		name, _, _ := strings.Cut(v, "=")
		// Of a name that stands twice, programs differ in which one counts.
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, v)
	}
	return env
}

// cannotRun gives a command that cannot be started the exit code that shells use.
func cannotRun(name string, err error) error {
	status := exitCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		status = exitNoCommand
	}
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return &statusError{status, fmt.Errorf("cannot run %q: %w", name, err)}
}

// resultError returns what the exit code says of how the command ended.
func resultError(name string, r supervise.Result) error {
	switch r.Cause {
	case supervise.NotStarted:
		if _, ok := errors.AsType[*fs.PathError](r.Err); ok {
			return cannotRun(name, r.Err)
		}
		return interrupted(r.Err)
	case supervise.Lost:
		return &statusError{exitLost, fmt.Errorf("the command was stopped, since its worker ID was about to be lost: %w", r.Err)}
	case supervise.ClockSet:
		return &statusError{exitClockSet, fmt.Errorf("the command was killed: %w", r.Err)}
	case supervise.LeftBehind:
		// Where the command failed by itself, its own code says more.
		if r.Status == 0 {
			return &statusError{exitLeftBehind, fmt.Errorf("%q went on in the background, where its worker ID cannot be looked after; it was stopped: have it run in the foreground", name)}
		}
	case supervise.Exited:
	}
	if r.Status == 0 {
		return nil
	}
	return &statusError{status: r.Status}
}
