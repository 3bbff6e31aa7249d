// Command hapax issues unique numbers, on its own or as a server.
package main

import (
	"context"
	"os"

	"github.com/hapax-id/hapax/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
