// Command hapax issues unique numbers, on its own or as a server.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // the zones of codes, where the system has none: on Windows, in a container from scratch

	"github.com/hapax-id/hapax/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
