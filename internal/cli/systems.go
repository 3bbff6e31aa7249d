package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/server"
)

// systemCommands returns the commands of the foreign systems that have any.
func systemCommands() (all []*cobra.Command) {
	for _, s := range server.Systems() {
		if s.Commands == nil {
			continue
		}
		of := &cobra.Command{Use: s.Name, Short: s.Maintains}
		var below []*cobra.Command
		for _, c := range s.Commands() {
			below = append(below, commandOf(s.Name, c))
		}
		group(of, below...)
		all = append(all, of)
	}
	return all
}

// commandOf makes the command that a system describes.
func commandOf(system string, c *mount.Command) *cobra.Command {
	cmd := &cobra.Command{Use: c.Use, Short: c.Short, Long: c.Long, Example: c.Example, Args: arguments(c.Least, c.Most)}
	asJSON := jsonFlag(cmd)
	settings := addSettings(cmd, "compat")
	c.Flags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := newOutput(cmd, *asJSON, c.Header...)
		err := c.Run(cmd.Context(), mount.Called{
			Args: args,
			Settings: func() (mount.Settings, error) {
				config, err := settings.load()
				return config.Mounts[system], err
			},
			Print: out.add,
			Say:   func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "hapax:", text) },
		})
		return errors.Join(out.flush(), err)
	}
	return cmd
}
