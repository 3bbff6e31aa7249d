package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
)

// withServer dials the server of a command and calls f.
func withServer(cmd *cobra.Command, f func(context.Context, *client.Client) error) {
	cmd.Long += serverHelp
	settings := addSettings(cmd, "data")
	server := cmd.Flags().String("server", "", "URL of the server to ask (or $"+serverEnv+")")
	credentials := addCredentials(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		address, named, err := settings.server(ctx, *server)
		if err != nil {
			return err
		}
		c, err := dial(ctx, address, credentials, named)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.explain(f(ctx, c.Client))
	}
}

// statusJSON is a server's status.
type statusJSON struct {
	State string     `json:"state"`
	Why   string     `json:"why,omitempty"`
	Fence *fenceJSON `json:"fence,omitempty"`
	Store string     `json:"store"`
	Nodes int        `json:"nodes"`
	Do    string     `json:"do,omitempty"`
}

type fenceJSON struct {
	Node string    `json:"node"`
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether a server issues, and what to do if not",
		Long: `Status asks a server how it stands with its store. Where the store went back,
was replaced or copied, it says who found it, when and why, and which command is the
way out. The exit code is 1 then.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	withServer(cmd, func(ctx context.Context, c *client.Client) error {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		j := statusJSON{State: "serving", Why: st.Why, Store: st.StoreID, Nodes: len(st.Nodes)}
		if st.State != "" {
			j.State, j.Do = st.State, "hapax adopt --dry-run"
		}
		out := newOutput(cmd, *asJSON, "STATE", "STORE", "NODES", "FOUND BY", "AT", "WHY", "DO")
		by, at := "", ""
		if f := st.Fence; f != nil {
			j.Fence = &fenceJSON{f.Name, f.At, f.Why}
			by, at = f.Name, f.At.UTC().Format(time.RFC3339)
		}
		if err := out.add(j, j.State, dash(j.Store), fmt.Sprint(j.Nodes), dash(by), dash(at), dash(j.Why), dash(j.Do)); err != nil {
			return err
		}
		if err := out.flush(); err != nil || st.State == "" {
			return err
		}
		return errNotServing
	})
	return cmd
}

// errNotServing ends status where the server does not issue.
var errNotServing = fmt.Errorf("%w: the server does not issue", hapax.ErrFenced)

// nodeJSON is a node that the store knows.
type nodeJSON struct {
	ID    string    `json:"id"`
	Name  string    `json:"name"`
	Since time.Time `json:"since"`
	At    time.Time `json:"heartbeat"`
}

func nodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes that share a store",
		Long: `Nodes lists the nodes that a shared store knows, with their last heartbeats, by
their own clocks. A node that was stopped in good order is not listed.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	withServer(cmd, func(ctx context.Context, c *client.Client) error {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		out := newOutput(cmd, *asJSON, "NODE", "NAME", "SINCE", "LAST HEARTBEAT")
		for _, n := range st.Nodes {
			err := out.add(nodeJSON{n.ID, n.Name, n.Since, n.At}, n.ID, n.Name, n.Since.UTC().Format(time.RFC3339), n.At.UTC().Format(time.RFC3339))
			if err != nil {
				return err
			}
		}
		return out.flush()
	})
	return cmd
}
