package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version describes the binary.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with local changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readVersion() version {
	v := version{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := readVersion()
		out := newOutput(cmd, *asJSON)
		if err := out.add(v, "hapax "+v.Version, v.Revision, v.Go, v.Platform); err != nil {
			return err
		}
		return out.flush()
	}
	return cmd
}
