package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// healthTimeout bounds a look at a server: whoever supervises it asks again soon.
const healthTimeout = 5 * time.Second

// maxHealth is how many bytes of an answer are read.
const maxHealth = 1 << 20

func healthCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Tell by the exit code whether a server is ready",
		Long: `Health asks a server whether it can issue numbers, as load balancers do with /readyz.
The exit code is 0 if it can, and 1 if it cannot or does not answer within five seconds.
With --alive it asks only whether the process answers (/healthz). It needs no token, and
no shell or curl, so that containers can be supervised with it.` + serverHelp,
		Example: `  hapax health
  hapax health --alive --server http://127.0.0.1:8080`,
		Args: arguments(0, 0),
	}
	settings := addSettings(cmd, "data")
	server := cmd.Flags().String("server", "", "URL of the server to ask (or $"+serverEnv+")")
	alive := cmd.Flags().Bool("alive", false, "ask only whether the process answers")
	credentials := addCredentials(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
		defer cancel()
		address, _, err := settings.server(ctx, *server)
		if err != nil {
			return err
		}
		path := "/readyz"
		if *alive {
			path = "/healthz"
		}
		return askHealth(ctx, address+path, credentials)
	}
	return cmd
}

// askHealth returns an error unless the URL answers with 200. No token is shown: the
// answer's status is for everybody.
func askHealth(ctx context.Context, url string, c *credentials) error {
	config, err := c.tls()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return usagef("invalid --server: %v; want a URL such as http://127.0.0.1:8080", err)
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true} // no proxy: it is this server that is asked
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", url, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxHealth))
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", url, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, res.Status, text)
	}
	return nil
}
