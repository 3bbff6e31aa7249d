// Package server runs a server of hapax within a program that has strategies and
// plugins of its own. It does all that "hapax serve" does: the same flags, variables
// and file, the same protocols, tokens, limits and metrics.
//
//	func main() {
//		server.Main(func(r *strategy.Registry, store driver.Store) error {
//			return r.Use(strategy.Plugin{Name: "office-hours", Before: officeHours})
//		})
//	}
package server

import (
	"context"
	"os"

	"github.com/hapax-id/hapax/internal/cli"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

// A Setup registers strategies and plugins before the server starts, or its
// configuration is checked. It may keep the registry, to change plugins later.
//
// The store is that of the server, behind its witness. It answers once the server has
// started: a strategy uses it when it opens a tag, and afterwards.
type Setup = func(r *strategy.Registry, store driver.Store) error

// Run serves until the context ends or the process is told to stop. The arguments are
// those of "hapax serve", without these two words; the log goes to standard error.
func Run(ctx context.Context, args []string, setup Setup) error {
	return cli.Serve(ctx, args, streams(), setup)
}

// Main runs the program's arguments and exits as "hapax serve" does: with 0 when it
// was told to stop, and else with a line on standard error and 1, or 2 where arguments
// or configuration are wrong.
func Main(setup Setup) {
	os.Exit(cli.Exit(Run(context.Background(), os.Args[1:], setup), os.Stderr))
}

func streams() cli.Streams { return cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr} }
