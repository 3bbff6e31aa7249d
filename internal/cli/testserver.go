package cli

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/internal/testserver"
)

func testserverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "testserver",
		Short: "Run a server on memory, for tests",
		Long: `Testserver runs a server that keeps its numbers in memory, so that programs can be
tested without a store: each start issues the same numbers again. With --script it fails as
the script says: it loses answers, refuses, delays, restarts, revokes a token, or gives few
numbers at once. docs/testing.md describes scripts.

It prints a line "server URL" for each server, "control URL" and "ready", and ends with
SIGTERM or SIGINT, or with --until-eof when its standard input ends.`,
		Example: `  hapax testserver
  hapax testserver --http 127.0.0.1:0 --script lost-answer.json --until-eof`,
		Args: arguments(0, 0),
	}
	address := cmd.Flags().String("http", "127.0.0.1:8080", "address on loopback; port 0 for a free one")
	file := cmd.Flags().String("script", "", "file with a script, in JSON")
	untilEOF := cmd.Flags().Bool("until-eof", false, "end when standard input does, with the program that started it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var script testserver.Script
		if *file != "" {
			f, err := openFile("--script", *file, "a file that can be read")
			if err != nil {
				return err
			}
			script, err = testserver.ParseScript(f)
			if err = cmp.Or(err, f.Close()); err != nil {
				return fmt.Errorf("%s: %w", *file, err)
			}
		}
		ctx, _, stop := untilSignal(cmd.Context(), 0, cmd.ErrOrStderr())
		defer stop()
		world, err := testserver.Start(ctx, script, *address, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
		if err != nil {
			return err
		}
		for _, url := range world.Servers {
			fmt.Fprintln(cmd.OutOrStdout(), "server", url)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "control %s\nready\n", world.Control)
		ended := make(chan struct{})
		// A test that is killed sends no signal; the end of its pipe comes all the same.
		if *untilEOF {
			go func() { // ends with the process
				_, _ = io.Copy(io.Discard, cmd.InOrStdin())
				close(ended)
			}()
		}
		select {
		case <-ctx.Done():
		case <-ended:
		}
		return world.Close()
	}
	return cmd
}
