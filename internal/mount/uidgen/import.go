package uidgen

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/mount/uidgen/imports"
	"github.com/hapax-id/hapax/plan"
)

// An importing holds the arguments of hapax import uid-generator.
type importing struct {
	properties, bean, table, zone, least, most, database, column string

	wishes plan.Wishes
}

// importCommand is hapax import uid-generator.
func importCommand() *mount.Import {
	i := new(importing)
	return &mount.Import{
		Use:   "uid-generator FILE",
		Short: "Read uid-generator's Spring XML or properties, and plan a successor of its layout",
		Long: `Uid-generator reads the Spring XML of uid-generator, or a properties file, and prints
the block "compat: uidgen:" of a server that goes on in its place. FILE is - for
standard input. What XML imports is looked for beside it. Every setting is carried over,
named in a comment, or refused; a block that goes on with the old layout always has the
database of WORKER_NODE: from the files, or --table.

With --min and --max, the smallest and the largest number in use, or with --database
and --column to read them from, the block has a new layout, whose numbers lie outside
of those in use for ever; the proof is printed above it. Numbers below zero in the
column are left out, and counted. Switch the old generators off before you look up the
largest number.

A layout whose time is over cannot go on, and the often recommended successor with 30,
22 and 11 bits issues the same numbers again: both are refused, with the reason,
unless you give the numbers in use.`,
		Example: `  hapax import uid-generator cached-uid-spring.xml --properties mysql.properties
  hapax import uid-generator default-uid-spring.xml --min 6755399441055744 --max 9223372036854775807
  hapax import uid-generator default-uid-spring.xml --database mysql://root@10.0.0.3/shop --column orders.id`,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&i.properties, "properties", "", "properties file with the values of ${…} in FILE")
			flags.StringVar(&i.bean, "bean", "", "id of the generator in FILE, where it has several")
			flags.StringVar(&i.table, "table", "", "mysql:// URL of the database with WORKER_NODE, if not that of FILE")
			flags.StringVar(&i.zone, "zone", "Asia/Shanghai", "time zone of the machines on which uid-generator runs: they read epochStr in it")
			flags.StringVar(&i.least, "min", "", "the smallest number in use")
			flags.StringVar(&i.most, "max", "", "the largest number in use")
			flags.StringVar(&i.database, "database", "", "mysql:// URL of the database that holds the numbers in use")
			flags.StringVar(&i.column, "column", "", "TABLE.COLUMN of the numbers in use")
			flags.Float64Var(&i.wishes.Rate, "rate", plan.DefaultRate, "numbers a second at the peak, on all nodes together")
			flags.Int64Var(&i.wishes.Nodes, "nodes", plan.DefaultNodes, "nodes that issue at the same time")
			flags.Float64Var(&i.wishes.Years, "years", plan.DefaultYears, "how long a new layout has to last")
		},
		Positive: []string{"rate", "nodes", "years"},
		Read:     i.read,
	}
}

func (i *importing) read(ctx context.Context, open mount.Files, args []string) (mount.Imported, error) {
	i.wishes.Now = time.Now()
	used, err := plan.ParseUsed(i.least, i.most)
	if err != nil {
		return nil, err
	}
	if (i.database == "") != (i.column == "") || i.database != "" && used != nil {
		return nil, mount.Errorf(nil, "--database and --column belong together, and stand for --min and --max")
	}
	zone, err := loadZone(i.zone)
	if err != nil {
		return nil, err
	}
	c, err := imports.Read(imports.Source{Open: open, Path: args[0], Properties: i.properties, Table: i.table, Zone: zone, Bean: i.bean})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	negative := int64(0)
	if i.database != "" {
		var found plan.Span
		if found, negative, err = ColumnRange(ctx, i.database, i.column); err != nil {
			return nil, err
		}
		used = &found
	}
	p, err := imports.NewPlan(c, used, i.wishes)
	p.Negative = negative
	return imported{p, c}, err
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

type imported struct {
	plan   imports.Plan
	config imports.Config
}

// YAML implements mount.Imported.
func (i imported) YAML(string) string { return string(i.plan.AppendYAML(nil, i.config)) }
