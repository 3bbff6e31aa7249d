package vesta

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/mount/vesta/imports"
)

// importCommand is hapax import vesta.
func importCommand() *mount.Import {
	var src imports.Source
	return &mount.Import{
		Use:   "vesta FILE",
		Short: "Read Vesta's properties or Spring XML",
		Long: `Vesta reads a properties file or a Spring XML file of Vesta, and prints the block
"compat: vesta:" of a server that replaces it. FILE is - for standard input. What XML
imports is looked for beside it. Every setting is carried over, named in a comment, or
refused.`,
		Example: `  hapax import vesta spring/vesta-server-main.xml --properties vesta-server.properties
  hapax import vesta vesta.properties --legacy`,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&src.Properties, "properties", "", "properties file with the values of ${…} in FILE")
			flags.StringVar(&src.Bean, "bean", "", "id of the service in FILE, where it has several")
			flags.BoolVar(&src.NoRegistry, "no-registry", false, "leave out where the provider is registered, such as a multicast:// address, which is not known here")
			flags.BoolVar(&src.Legacy, "legacy", false, "the numbers are of the older generation, which has the machine above the time")
		},
		Read: func(_ context.Context, open mount.Files, args []string) (mount.Imported, error) {
			src.Open, src.Path = open, args[0]
			c, err := imports.Read(src)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", args[0], err)
			}
			return imported{c}, nil
		},
	}
}

type imported struct{ imports.Config }

// YAML implements mount.Imported.
func (i imported) YAML(string) string { return string(i.AppendYAML(nil)) }
