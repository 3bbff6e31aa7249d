package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
)

func workerHoldCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hold {--file FILE | --http ADDR} [flags]",
		Short: "Keep a worker ID, for a program that reads a file or asks over HTTP",
		Long: `Hold takes a worker ID from the servers and writes it to a file, as lines of
NAME=VALUE: HAPAX_WORKER_ID; HAPAX_WORKER_UNTIL, the time by this host's clock from which
on it must not be used; HAPAX_WORKER_UNTIL_MS, the same in milliseconds since 1970; and
what --env or --for say. The file is replaced atomically each time that more is granted.

With --http it answers on loopback: GET / with {"worker":17,"until":…,"until_ms":…}, or with
--for in the form that the generator reads; GET /worker with the bare number; and 503 once the
worker ID must not be used any more. A program that asks with /?holder=NAME has the ID for itself
until then, or until DELETE /?holder=NAME, and --ahead longer; any other gets 409. Programs that give
no name count as one.

When no more time is granted, or the clock is set back, it removes the file, runs
--on-lost, and ends with 114 or 115, --grace before the time is over. On SIGTERM and
SIGINT it removes the file and gives the worker ID back, unless a program has it by its
name: end the program that uses it first.

Hold cannot stop a program that does not read the file again; exec can stop its command.
` + holdExitHelp,
		Example: `  hapax worker hold --pool shop --file /run/ids/worker --on-lost 'pkill -TERM -x shop'`,
		Args:    arguments(0, 0),
	}
	f := addWorkerFlags(cmd)
	file := cmd.Flags().String("file", "", "file to write; its directory must exist")
	address := cmd.Flags().String("http", "", "address on loopback to answer at")
	onLost := cmd.Flags().String("on-lost", "", "command to run when the worker ID is lost: words, without a shell")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.listKnown {
			return printKnown(cmd)
		}
		return workerStatusOf(workerHold(cmd, f, *file, *address, strings.Fields(*onLost)))
	}
	return cmd
}

func workerHold(cmd *cobra.Command, f *workerFlags, file, address string, onLost []string) error {
	if file == "" && address == "" {
		return &hapax.ValueError{Field: "--file", Value: "", Allowed: "the file to write, or an address with --http", Err: hapax.ErrInvalidArgument}
	}
	ids, vars, err := f.prepare(cmd)
	if err != nil {
		return err
	}
	if len(onLost) > 0 {
		// Otherwise a wrong name would show when the worker ID is lost.
		if _, err := exec.LookPath(onLost[0]); err != nil {
			return cannotRun(onLost[0], err)
		}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, ending...)
	held, err := holdUnlessTold(cmd.Context(), signals, func(ctx context.Context) (*holding, error) {
		return f.hold(ctx, ids, holder("hold", f.name, ""), hapax.RollbackRefuse)
	})
	if err != nil {
		return err
	}
	one := claim{ahead: f.ahead}
	if address != "" {
		stop, err := answerWorker(cmd.Context(), held, address, f.generator(), &one)
		if err != nil {
			held.end(true) // nobody was told
			return err
		}
		// It answers to the end: from when the ID is lost or given back, that it must not be used.
		defer stop()
	}
	err = keepFile(held, file, vars, signals)
	if err == nil {
		// A program that was told a time by its name goes on until then, whatever becomes of this process.
		held.end(!one.isTaken())
		return nil
	}
	defer held.end(false) // the program may still use it
	var ran error
	if len(onLost) > 0 {
		// It has what is left of the time granted: afterwards the worker ID may be another's.
		ctx, cancel := context.WithTimeout(context.Background(), max(held.Remaining(), time.Second))
		defer cancel()
		hook := exec.CommandContext(ctx, onLost[0], onLost[1:]...) //nolint:gosec // it is the user's own command
		hook.Stdout, hook.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
		if ran = hook.Run(); ran != nil {
			ran = fmt.Errorf("--on-lost: %w", ran)
		}
	}
	status := exitLost
	if errors.Is(err, hapax.ErrClockRollback) {
		status = exitClockSet
		one.awaitRefusal(signals)
	}
	return &statusError{status, errors.Join(fmt.Errorf("the worker ID was lost: %w", err), ran)}
}

// keepFile keeps the file up to date until a signal comes, and removes it then or when
// the worker ID is lost.
func keepFile(held *holding, file string, vars []variable, signals <-chan os.Signal) (err error) {
	defer func() {
		if file == "" {
			return
		}
		if removed := os.Remove(file); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}()
	for {
		if file == "" {
			// Whoever asks is told.
		} else if err := durable.Replace(durable.OS, file, func(f *os.File) ([]byte, error) {
			return fileText(held, vars), f.Chmod(0o644) // who reads it may be another user
		}); err != nil {
			return err
		}
		select {
		case <-signals:
			return nil
		case <-held.Lost():
			return held.Err()
		case <-held.extended:
		}
	}
}

func fileText(held *holding, vars []variable) []byte {
	var text bytes.Buffer
	id := held.ID()
	until, _ := held.lasts()
	fmt.Fprintf(&text, "%s=%s\n", workerVariable, strconv.FormatInt(id, 10))
	fmt.Fprintf(&text, "HAPAX_WORKER_UNTIL=%s\n", until.UTC().Format(untilForm))
	fmt.Fprintf(&text, "HAPAX_WORKER_UNTIL_MS=%d\n", until.UnixMilli())
	for _, v := range vars {
		fmt.Fprintln(&text, v.of(id))
	}
	return text.Bytes()
}
