package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/server"
)

func importCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Print the configuration that takes over from another system",
	}
	var all []*cobra.Command
	for _, i := range server.Imports() {
		all = append(all, importOf(i))
	}
	group(cmd, all...)
	return cmd
}

// importOf makes the command that a system describes.
func importOf(i *mount.Import) *cobra.Command {
	cmd := &cobra.Command{Use: i.Use, Short: i.Short, Long: i.Long, Example: i.Example, Args: arguments(1, 1)}
	switch {
	case i.FileOptional:
		cmd.Args = arguments(0, 1)
	case i.Most > 0:
		cmd.Args = arguments(1, i.Most)
	}
	i.Flags(cmd.Flags())
	var move *moveFlags // nil: there is nothing to move
	if i.PasswordEnv != "" {
		closing := ""
		if i.Closes {
			closing = closesHelp
		}
		cmd.Long += fmt.Sprintf(moveHelp, closing, i.PasswordEnv) + i.More + targetHelp
		move = addMove(cmd, i)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := noZeros(cmd.Flags(), i.Positive...); err != nil {
			return err
		}
		if move != nil {
			if err := move.check(); err != nil {
				return err
			}
		}
		read, err := i.Read(cmd.Context(), func(path string) (io.ReadCloser, error) { return openImport(cmd, path) }, args)
		if err != nil {
			return missingIsUsage(err)
		}
		if m, ok := read.(mount.Movable); ok {
			return move.run(cmd, args, m)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), read.YAML(""))
		return err
	}
	return cmd
}

// run prints the block of configuration, or moves.
func (f *moveFlags) run(cmd *cobra.Command, args []string, m mount.Movable) error {
	if v, ok := m.(mount.Verifiable); ok && f.verify {
		return f.with(cmd, func(ctx context.Context, t target) error { return f.compare(ctx, cmd, v, t) })
	}
	if f.dryRun || f.apply || f.undo {
		return f.with(cmd, func(ctx context.Context, t target) error { return f.move(ctx, cmd, args, m, t) })
	}
	var text string
	var err error
	if f.native {
		text, err = m.NativeYAML(cmd.Context())
	} else {
		var file string
		file, err = f.passwordFile(m.Passwords())
		text = m.YAML(file)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(cmd.OutOrStdout(), text)
	return err
}

// openImport opens a file, or standard input for -.
func openImport(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	if ext := strings.ToLower(filepath.Ext(path)); ext == ".yml" || ext == ".yaml" {
		return nil, &hapax.ValueError{Field: "FILE", Value: path, Allowed: "properties or XML: write YAML as lines of KEY=VALUE", Err: hapax.ErrInvalidArgument}
	}
	return openFile("FILE", path, "a file that can be read, or - for standard input")
}

// openFile opens a file that the command line names.
func openFile(field, path, allowed string) (*os.File, error) {
	f, err := os.Open(path)
	if err == nil {
		info, statErr := f.Stat()
		if statErr == nil && !info.IsDir() {
			return f, nil
		}
		err = cmp.Or(statErr, error(syscall.EISDIR))
		_ = f.Close() // nothing was read
	}
	return nil, mount.Unreadable(field, path, allowed, err)
}
