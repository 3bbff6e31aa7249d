package mount

import (
	"context"

	"github.com/spf13/pflag"
)

// A Command is a command of a system, below hapax NAME, for a feature that no other system has.
type Command struct {
	Use, Short, Long, Example string
	Least, Most               int      // how many arguments
	Header                    []string // of the table that it prints

	// Flags adds the command's own.
	Flags func(flags *pflag.FlagSet)

	Run func(ctx context.Context, c Called) error
}

// Called is a call of a Command.
type Called struct {
	Args []string

	// Settings returns the system's settings in the configuration; nil for none.
	Settings func() (Settings, error)

	// Print prints one result: value with --json, or the cells as a row.
	Print func(value any, cells ...string) error

	// Say prints a message beside the results.
	Say func(text string)
}
