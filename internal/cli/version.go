package cli

import (
	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/internal/build"
)

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := build.Read()
		out := newOutput(cmd, *asJSON)
		if err := out.add(v, "hapax "+v.Version, v.Revision, v.Go, v.Platform); err != nil {
			return err
		}
		return out.flush()
	}
	return cmd
}
