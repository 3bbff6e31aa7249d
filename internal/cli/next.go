package cli

import (
	"bufio"
	"context"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
)

func nextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "next TAG",
		Short: "Issue numbers",
		Long: `Next issues numbers of a tag and prints them, one a line, in ascending order. An
unknown tag is created as a segment tag, which counts from 1; the tag "snowflake"
issues numbers that hold time and worker. An unknown tag is refused if servers may
define it in a configuration that this command was not given.

On a store it takes as many numbers as it prints, not a whole segment.` + "\n" + targetHelp,
		Example: `  hapax next orders
  hapax next orders -n 100 --server http://127.0.0.1:9000
  hapax next invoices --code -n 3
  hapax next snowflake --store bolt:/var/lib/hapax/hapax.db`,
		Args: arguments(1, 1),
	}
	asCode := cmd.Flags().Bool("code", false, "print the codes that show the numbers; the tag must have one")
	n := cmd.Flags().Int64P("number", "n", 1, "how many numbers to issue (1 to 1000000)")
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	completeFirst(cmd, where, tagNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := hapax.ValidateName("tag", args[0]); err != nil {
			return err
		}
		if *n < 1 || *n > maxNext {
			return &hapax.ValueError{Field: "-n", Value: *n, Allowed: "1 to 1000000", Err: hapax.ErrInvalidArgument}
		}
		return where.with(cmd, issues(args[0]), func(ctx context.Context, t target) error {
			if *asCode {
				issued, err := t.Codes(ctx, args[0], int(*n))
				if printErr := printCodes(cmd, issued, *asJSON); printErr != nil {
					return printErr
				}
				return err
			}
			ids, err := t.Next(ctx, args[0], int(*n))
			if printErr := printIDs(cmd, ids, *asJSON); printErr != nil {
				return printErr
			}
			return err
		})
	}
	return cmd
}

// printIDs prints numbers, which are issued whether or not an error came after
// them.
func printIDs(cmd *cobra.Command, ids []hapax.ID, asJSON bool) error {
	if asJSON {
		if len(ids) == 0 {
			return nil
		}
		out := newOutput(cmd, true)
		return out.add(struct {
			IDs []hapax.ID `json:"ids"`
		}{ids})
	}
	w := bufio.NewWriter(cmd.OutOrStdout())
	var line []byte
	for _, id := range ids {
		line = append(id.Append(line[:0]), '\n')
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return w.Flush()
}
