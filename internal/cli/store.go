package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/dump"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/store/driver"
)

func storeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Copy a store to another place, write it to a file, and make one of that",
		Long: `Store copy moves a fleet to another store, of the same engine or of another one. Store
dump writes every row of a store as JSON lines, and store load makes a store of them. Store
id tells stores apart.`,
	}
	group(cmd, storeCopyCommand(), storeDumpCommand(), storeIDCommand(), storeLoadCommand())
	return cmd
}

func storeIDCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "id",
		Short: "Print the ID of a store",
		Long: `Id prints the ID of a store. It never changes, and copies and restored backups have the
same one: a store with another ID has other numbers.
` + targetHelp,
		Args: arguments(0, 0),
	}
	where := addTarget(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return where.with(cmd, creates, func(ctx context.Context, t target) error {
			id, err := t.StoreID(ctx)
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		})
	}
	return cmd
}

func storeDumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Write every row of a store as JSON lines",
		Long: `Dump reads the store and changes nothing. It may be in use: what is granted meanwhile
may then be missing, as it is from any backup that is older than the store.

The last line counts the rows and has a checksum, so that a file that was cut off is
refused by hapax store load.`,
		Example: `  hapax store dump --store redis://localhost:6379/0 -o ids.dump`,
		Args:    arguments(0, 0),
	}
	settings := addSettings(cmd, "data", "store")
	file := cmd.Flags().StringP("output", "o", "", "file to write, which must not exist; without it the dump goes to standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		config, err := settings.load()
		if err != nil {
			return err
		}
		s, err := openPlain(cmd.Context(), config, server.Looking)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		out := cmd.OutOrStdout()
		if *file != "" {
			// No file is overwritten: it may be the only backup there is.
			f, err := os.OpenFile(*file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			sum, err := dump.Write(cmd.Context(), s, f)
			// An error of the disk that comes only now leaves no dump behind either.
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				return errors.Join(err, os.Remove(*file))
			}
			told(cmd.ErrOrStderr(), "written", sum)
			return nil
		}
		sum, err := dump.Write(cmd.Context(), s, out)
		if err == nil {
			told(cmd.ErrOrStderr(), "written", sum)
		}
		return err
	}
	return cmd
}

func told(to io.Writer, what string, sum dump.Summary) {
	fmt.Fprintf(to, "%d rows %s, %d of them tags; checksum %s\n", sum.Rows, what, sum.Tables[""], sum.Sum)
}

func storeLoadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "load FILE",
		Short: "Make a store of a dump",
		Long: `Load writes the rows of a dump to a store that is empty or does not exist. The file is
checked first, from its first line to its checksum. Nothing is granted until all rows are
there. A load that was broken off goes on when it is run again.

The store has the identity of the one that was dumped: it is a backup, restored. Stop what
uses the original. Nodes that keep their data directories find what the dump lacks, and
heal it before a number is granted; where nobody is left who knows of grants since the
dump, they may be repeated, as after any backup: see docs/operating.md.

With --as-new the store has a fresh identity, and the tags, pools and workers alone, for
tests and staging: its numbers repeat those that the original issues.`,
		Example: `  hapax store load --store postgres://hapax@localhost/ids ids.dump`,
		Args:    arguments(1, 1),
	}
	settings := addSettings(cmd, "data", "store")
	asNew := cmd.Flags().Bool("as-new", false, "make another store of it, whose numbers repeat those of the original")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		head, sum, err := dump.Check(f)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if head.Retired != nil && !*asNew {
			return fmt.Errorf("%s: %w: load a dump of that store, or give --as-new", args[0], head.Retired.Err())
		}
		// Read twice: nothing is written of a file that is not whole.
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		config, err := settings.load()
		if err != nil {
			return err
		}
		id, err := dump.Load(cmd.Context(), placeOf(config, server.Making), f, head, sum, *asNew)
		if err != nil {
			return err
		}
		told(cmd.ErrOrStderr(), "read", sum)
		if *asNew {
			fmt.Fprintf(cmd.ErrOrStderr(), "store %s is a new one: its numbers repeat those of the original, %s\n", id, head.Store)
		}
		return nil
	}
	return cmd
}

func storeCopyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "copy FROM TO",
		Short: "Move a fleet to another store",
		Long: `Copy makes a store in TO of all that is in the store FROM, with the same identity, and
retires FROM: from then on nothing is granted from it, for good. Each is the URL of a
store, or where that stands: env:NAME or file:PATH.

Nodes need not be stopped, but for the one of a bolt store, which a single process can have
open. Those on FROM refuse within a heartbeat, and say where the store went; what they hold
is issued until it is used up. Set store to TO and start them again. They go on above all
that was granted.

TO must not have a store. Nobody can use it until all rows are there and compared. A copy
that was broken off goes on when it is run again.

A store is copied to one place only. If a copy was broken off, and its place is gone,
--anew copies to another one. It is refused if the first copy was whole, which FROM remembers,
and if that copy is found at the URL which FROM keeps, without a password.`,
		Example: `  hapax store copy postgres://hapax@localhost/ids redis://localhost:6379/0
  hapax store copy bolt:/var/lib/hapax/hapax.db file:/etc/hapax/store-url`,
		Args: arguments(2, 2),
	}
	anew := cmd.Flags().Bool("anew", false, "the copy before was broken off, and its place is gone: copy to another one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var configs [2]server.Config
		for i, text := range args {
			var err error
			if configs[i], err = server.LoadStore(text, os.LookupEnv); err != nil {
				return fmt.Errorf("%s: %w", []string{"FROM", "TO"}[i], err)
			}
		}
		from, to := placeOf(configs[0], server.Existing), placeOf(configs[1], server.Making)
		if server.SameFile(configs[0], configs[1]) {
			return fmt.Errorf("%w: FROM and TO are one file, %s", hapax.ErrInvalidArgument, to.URL)
		}
		_, err := dump.Copy(cmd.Context(), from, to, dump.CopyOptions{
			Anew: *anew,
			Tell: func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), "hapax:", what) },
			At: func(url string) (dump.Place, error) {
				config, err := server.LoadStore(url, os.LookupEnv)
				return placeOf(config, server.Existing), err
			},
			Answers: server.Answers,
		})
		if err == nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "hapax: done: set store to %s on all nodes, and start them again\n", to.URL)
		}
		return err
	}
	return cmd
}

// placeOf is where the configured store is, or may be.
func placeOf(config server.Config, how server.How) dump.Place {
	return dump.Place{
		URL:  config.StoreURL(),
		Look: func(ctx context.Context) (dump.Store, error) { return openPlain(ctx, config, server.Looking) },
		Open: func(ctx context.Context) (dump.Store, error) {
			s, err := openPlain(ctx, config, how)
			if would, ok := errors.AsType[*driver.WouldChangeError](err); ok && would.What == driver.NewStore {
				err = fmt.Errorf("%w: there is no store in %s", hapax.ErrInvalidArgument, config.StoreURL())
			}
			return s, err
		},
	}
}

// openPlain opens the configured store.
func openPlain(ctx context.Context, config server.Config, how server.How) (dump.Store, error) {
	opened, err := server.OpenPlain(ctx, config, how, quiet)
	if err != nil {
		return nil, err
	}
	s, ok := opened.(dump.Store)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: %T cannot be copied", hapax.ErrNotSupported, opened), opened.Close())
	}
	return s, nil
}
