package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/springxml"
	uidgenimports "github.com/hapax-id/hapax/compat/uidgen/imports"
	uidgenserve "github.com/hapax-id/hapax/compat/uidgen/serve"
	vestaimports "github.com/hapax-id/hapax/compat/vesta/imports"
	"github.com/hapax-id/hapax/plan"
)

func importCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Print the configuration that takes over from another system",
	}
	group(cmd, importLeafCommand(), importTinyIDCommand(), importVestaCommand(), importUIDGeneratorCommand())
	return cmd
}

// propertiesFlag adds the flag for what placeholders stand for.
func propertiesFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("properties", "", "properties file with the values of ${…} in FILE")
}

func importVestaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vesta FILE",
		Short: "Read Vesta's properties or Spring XML",
		Long: `Vesta reads a properties file or a Spring XML file of Vesta, and prints the block
"compat: vesta:" of a server that replaces it. FILE is - for standard input.`,
		Example: `  hapax import vesta spring/vesta-server-main.xml --properties vesta-server.properties
  hapax import vesta vesta.properties --legacy`,
		Args: arguments(1, 1),
	}
	properties := propertiesFlag(cmd)
	legacy := cmd.Flags().Bool("legacy", false, "the numbers are of the older generation, which has the machine above the time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		data, given, err := importFiles(cmd, args[0], *properties)
		if err != nil {
			return err
		}
		c, err := vestaimports.Read(data, given, *legacy)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		_, err = cmd.OutOrStdout().Write(c.AppendYAML(nil))
		return err
	}
	return cmd
}

func importUIDGeneratorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uid-generator FILE",
		Short: "Read uid-generator's Spring XML or properties, and plan a successor of its layout",
		Long: `Uid-generator reads the Spring XML of uid-generator, or a properties file, and prints
the block "compat: uidgen:" of a server that goes on in its place. FILE is - for
standard input.

With --min and --max, the smallest and the largest number in use, or with --database
and --column to read them from, the block has a new layout, whose numbers lie outside
of those in use for ever; the proof is printed above it. Switch the old generators off
before you look up the largest number.

A layout whose time is over cannot go on, and the often recommended successor with 30,
22 and 11 bits issues the same numbers again: both are refused, with the reason,
unless you give the numbers in use.`,
		Example: `  hapax import uid-generator cached-uid-spring.xml --properties mysql.properties
  hapax import uid-generator default-uid-spring.xml --min 6755399441055744 --max 9223372036854775807
  hapax import uid-generator default-uid-spring.xml --database mysql://root@10.0.0.3/shop --column orders.id`,
		Args: arguments(1, 1),
	}
	flags := cmd.Flags()
	properties := propertiesFlag(cmd)
	zone := flags.String("zone", "Asia/Shanghai", "time zone of the machines on which uid-generator runs: they read epochStr in it")
	least := flags.String("min", "", "the smallest number in use")
	most := flags.String("max", "", "the largest number in use")
	database := flags.String("database", "", "mysql:// URL of the database that holds the numbers in use")
	column := flags.String("column", "", "TABLE.COLUMN of the numbers in use")
	var w plan.Wishes
	flags.Float64Var(&w.Rate, "rate", plan.DefaultRate, "numbers a second at the peak, on all nodes together")
	flags.Int64Var(&w.Nodes, "nodes", plan.DefaultNodes, "nodes that issue at the same time")
	flags.Float64Var(&w.Years, "years", plan.DefaultYears, "how long a new layout has to last")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := noZeros(flags, "rate", "nodes", "years"); err != nil {
			return err
		}
		w.Now = time.Now()
		used, err := parseUsed(*least, *most)
		if err != nil {
			return err
		}
		if (*database == "") != (*column == "") || *database != "" && used != nil {
			return usagef("--database and --column belong together, and stand for --min and --max")
		}
		place, err := loadZone(*zone)
		if err != nil {
			return err
		}
		data, given, err := importFiles(cmd, args[0], *properties)
		if err != nil {
			return err
		}
		c, err := uidgenimports.Read(data, given, place)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if *database != "" {
			if used, err = readUsed(cmd.Context(), *database, *column); err != nil {
				return err
			}
		}
		p, err := uidgenimports.NewPlan(c, used, w)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(p.AppendYAML(nil, c))
		return err
	}
	return cmd
}

// loadZone knows China's zone where the machine knows no zones.
func loadZone(name string) (*time.Location, error) {
	if name == "Asia/Shanghai" {
		return nil, nil
	}
	place, err := time.LoadLocation(name)
	if err != nil {
		return nil, &hapax.ValueError{Field: "--zone", Value: name, Allowed: "a time zone, such as Asia/Shanghai or UTC", Err: hapax.ErrInvalidArgument}
	}
	return place, nil
}

// readUsed reads the smallest and the largest number of a column.
func readUsed(ctx context.Context, database, column string) (*plan.Span, error) {
	lo, hi, err := uidgenserve.ColumnRange(ctx, database, column)
	if err != nil {
		return nil, err
	}
	return &plan.Span{Min: lo, Max: hi}, nil
}

// importFiles reads a file, and the properties that its placeholders stand for.
func importFiles(cmd *cobra.Command, path, properties string) (data []byte, given map[string]string, err error) {
	if properties != "" {
		text, err := readImport(cmd, properties)
		if err != nil {
			return nil, nil, err
		}
		f, err := springxml.Parse(text, nil)
		if err == nil && f.Properties == nil {
			err = errors.New("it is XML, and no properties file")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", properties, err)
		}
		given = f.Properties
	}
	data, err = readImport(cmd, path)
	return data, given, err
}

// openImport opens a file, or standard input for -.
func openImport(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, missingIsUsage(err)
	}
	return f, nil
}

func readImport(cmd *cobra.Command, path string) ([]byte, error) {
	in, err := openImport(cmd, path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, springxml.MaxBytes+1)) // Parse refuses the longer ones
}
