package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/internal/service/auth"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make API tokens",
	}
	group(cmd, tokenNewCommand())
	return cmd
}

func tokenNewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a token, and its entry for the configuration",
		Long: `New prints a random token, which goes to the program that uses it and cannot
be shown again, and its hash, which goes to the configuration of every server:

  tokens:
    billing:
      hash: sha256:...
      scopes: [issue]     # or lease, admin, metrics, read
      tags: [invoices, orders*]

A server with tokens answers no request without one. Programs send it as
"Authorization: Bearer TOKEN" over HTTP and gRPC, and as the password of AUTH over
the Redis protocol; the hapax commands take it from $` + tokenEnv + ` or --token-file.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		made := struct {
			Token string `json:"token"`
			Hash  string `json:"hash"`
		}{Token: auth.NewToken()}
		made.Hash = auth.HashToken(made.Token)
		if *asJSON {
			out := newOutput(cmd, true)
			if err := out.add(made); err != nil {
				return err
			}
			return out.flush()
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "token: %s\nhash: %s\n", made.Token, made.Hash)
		return err
	}
	return cmd
}
