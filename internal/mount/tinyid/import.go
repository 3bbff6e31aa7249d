package tinyid

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/compat/tinyid/routes"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
)

// importCommand is hapax import tinyid.
func importCommand() *mount.Import {
	var urls []string
	return &mount.Import{
		Use:   "tinyid [FILE]",
		Short: "Read TinyID's properties, and move its tables to native tags",
		Long: `Tinyid reads the application.properties of TinyID's server, or --database instead, once
for each, and prints the block "compat: tinyid:" of a server that serves from the same
databases. FILE is - for standard input.
`,
		More: `
A biz_type of one database keeps its delta and remainder; one of several becomes a tag
that issues every number, above the marks of all. Segments that clients hold lie below
the marks, so that clients need not be stopped. What --native prints has the hashes of
the tokens in tiny_id_token, so that clients go on with theirs.
`,
		Example: `  hapax import tinyid application.properties --write-password /etc/hapax/tinyid.passwords > hapax.yaml
  hapax import tinyid application.properties --dry-run --data /var/lib/hapax
  hapax import tinyid --database mysql://tinyid@10.0.0.3/db1 --database mysql://tinyid@10.0.0.4/db2 --apply`,
		FileOptional: true, PasswordEnv: PasswordEnv, Closes: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringArrayVar(&urls, "database", nil, "mysql:// URL of a database with tiny_id_info and tiny_id_token")
		},
		Read: func(_ context.Context, open mount.Files, args []string) (mount.Imported, error) {
			c, err := readConfig(open, args, urls)
			for i := range c.Passwords {
				if c.Passwords[i] == "" {
					c.Passwords[i] = tinyid.Secret(os.Getenv(PasswordEnv))
				}
			}
			return imported{c}, err
		},
	}
}

// readConfig reads a file, or flags.
func readConfig(open mount.Files, args, urls []string) (tinyid.Config, error) {
	var c tinyid.Config
	if (len(args) == 1) == (len(urls) > 0) {
		return c, mount.Errorf(nil, "give FILE, or --database instead")
	}
	for _, at := range urls {
		if err := c.AddDatabase(at); err != nil {
			return c, err
		}
	}
	if len(args) == 0 {
		return c, nil
	}
	in, err := open(args[0])
	if err != nil {
		return c, err
	}
	defer in.Close()
	if c, err = tinyid.ReadProperties(in); err != nil {
		return c, fmt.Errorf("%s: %w", args[0], err)
	}
	if len(c.Databases) == 0 {
		return c, fmt.Errorf("%w: %s is a client's: it names servers (%v) and no databases; the client goes on as it is, with the address of hapax in tinyid.server", hapax.ErrInvalidArgument, args[0], c.Servers)
	}
	return c, routes.CheckContextPath("server.context-path", c.ContextPath)
}

type imported struct{ tinyid.Config }

// Passwords implements mount.Movable.
func (i imported) Passwords() string { return i.PasswordLines() }

// NativeYAML implements mount.Movable, with the tokens in the databases.
func (i imported) NativeYAML(ctx context.Context) (string, error) {
	store, err := tinyid.Open(ctx, i.URLs(), tinyid.Options{})
	if err != nil {
		return "", err
	}
	text, err := i.Config.NativeYAML(ctx, store)
	return text, errors.Join(err, store.Close())
}

// Move implements mount.Movable, for the tables of all databases.
func (i imported) Move(ctx context.Context, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	store, err := tinyid.Open(ctx, i.URLs(), tinyid.Options{})
	if err != nil {
		return all, err
	}
	defer store.Close()
	if o.Undo {
		if all.Tags, err = tinyid.PlanReopen(ctx, store, to); err != nil || !o.Apply {
			return all, err
		}
		progress, end := o.Bar("opening")
		defer end()
		return all, tinyid.Reopen(ctx, store, to, all.Tags, progress)
	}
	opts := tinyid.MoveOptions{
		Margin: o.Margin, Watch: o.Watch, IgnoreLiving: o.IgnoreLiving,
		Note: func(text string) { all.Notes = append(all.Notes, text) },
	}
	var end func()
	opts.Progress, end = o.Bar("comparing")
	all.Tags, err = tinyid.PlanMoves(ctx, store, to, opts)
	end()
	if err != nil || !o.Apply {
		return all, err
	}
	opts.Progress, end = o.Bar("moving")
	defer end()
	return all, tinyid.ApplyMoves(ctx, store, to, all.Tags, opts)
}
