package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

At its start it removes a file that is left of a hold that was killed, and runs --on-lost.
FILE.lock, which stays, keeps the file from a second hold.

Hold cannot stop a program that does not read the file again; exec can stop its command.
A program that ends, and that is started again with the same worker ID, must not start before
--ahead has passed: its last numbers may lie as far ahead of the clock. Give each program a
hold of its own.
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
	tell := func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "hapax: "+text) }
	runOnLost := func(within time.Duration) error {
		if len(onLost) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), max(within, time.Second))
		defer cancel()
		hook := exec.CommandContext(ctx, onLost[0], onLost[1:]...) //nolint:gosec // it is the user's own command
		hook.Stdout, hook.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
		if err := hook.Run(); err != nil {
			return fmt.Errorf("--on-lost: %w", err)
		}
		return nil
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, ending...)
	if file != "" {
		lock, left, err := ownFile(file)
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }() // it ends with the process in any case
		if left {
			// Nobody extended that worker ID since, and the program beside it may not know.
			tell(fmt.Sprintf("removed %s, which a worker hold left that did not end by itself: its worker ID must not be used any more", file))
			if err := runOnLost(f.grace); err != nil {
				tell(err.Error()) // such as of pkill, where no program runs
			}
		}
	}
	held, err := holdUnlessTold(cmd.Context(), signals, func(ctx context.Context) (*holding, error) {
		return f.hold(ctx, ids, holder("hold", f.name, ""), hapax.RollbackRefuse)
	})
	if err != nil {
		return err
	}
	warnAlike(vars, f.among, held.ID(), tell)
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
	err = keepFile(held, file, vars, signals, tell)
	if err == nil {
		held.giveBack(&one)
		return nil
	}
	defer held.end(false) // the program may still use it
	// It has what is left of the time granted: afterwards the worker ID may be another's.
	ran := runOnLost(held.Remaining())
	status := exitLost
	if errors.Is(err, hapax.ErrClockRollback) {
		status = exitClockSet
		one.awaitRefusal(signals)
	}
	return &statusError{status, errors.Join(fmt.Errorf("the worker ID was lost: %w", err), ran)}
}

// ownFile makes a file this process's, as long as it holds the lock, and removes one that is left of
// a process that was killed.
func ownFile(file string) (lock io.Closer, left bool, err error) {
	lock, err = durable.TryLock(file + ".lock")
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		lock = io.NopCloser(nil)
	case errors.Is(err, durable.ErrLocked):
		return nil, false, &hapax.ValueError{Field: "--file", Value: file, Allowed: "a file that no other worker hold keeps", Err: hapax.ErrInvalidArgument}
	case err != nil:
		return nil, false, err
	}
	switch err = os.Remove(file); {
	case err == nil:
		return lock, true, nil
	case errors.Is(err, fs.ErrNotExist):
		return lock, false, nil
	}
	return nil, false, errors.Join(err, lock.Close())
}

// keepFile keeps the file up to date until a signal comes, and removes it then or when
// the worker ID is lost.
func keepFile(held *holding, file string, vars []variable, signals <-chan os.Signal, tell func(string)) (err error) {
	if file == "" { // whoever asks is told
		select {
		case <-signals:
			return nil
		case <-held.Lost():
			return held.Err()
		}
	}
	defer func() {
		if removed := os.Remove(file); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}()
	var again <-chan time.Time
	for isWritten := false; ; isWritten = true {
		err := durable.Replace(durable.OS, file, func(f *os.File) ([]byte, error) {
			return fileText(held, vars), f.Chmod(0o644) // who reads it may be another user
		})
		switch {
		case err == nil:
			again = nil
		case !isWritten:
			return err
		default:
			// What the file says stays true, and its program has that time, in which a disk that is full may have
			// room again.
			if again == nil {
				tell(fmt.Sprintf("%s keeps the time that was granted before, and is tried again: %v", file, err))
			}
			again = time.After(writeAgain)
		}
		select {
		case <-signals:
			return nil
		case <-held.Lost():
			return held.Err()
		case <-held.extended:
		case <-again:
		}
	}
}

// writeAgain is how long after a failure the file is written anew.
const writeAgain = time.Second

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
