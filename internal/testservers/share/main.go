// Share runs a command, such as "go test ./...", beside one server of each kind that
// its tests share. Without it, each package starts servers of its own.
//
//	go run ./internal/testservers/share go test ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"github.com/hapax-id/hapax/internal/testservers"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: share COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	os.Exit(run(context.Background(), os.Args[1], os.Args[2:]...))
}

// run returns the command's exit code. A server that does not start, or that the
// environment names already, is left to the tests.
func run(ctx context.Context, name string, args ...string) int {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, os.Environ()
	var mu sync.Mutex // guards cmd.Env
	var wg sync.WaitGroup
	for _, e := range testservers.Engines {
		wg.Go(func() {
			server, err := e.Start(ctx)
			if err != nil {
				fmt.Fprintln(os.Stderr, "share:", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			cmd.Env = append(cmd.Env, e.Variable()+"="+server.URL)
		})
	}
	wg.Wait()
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "share:", err)
		return 1
	}
	return 0
}
