package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
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
	State   string     `json:"state"`
	Code    string     `json:"code,omitempty"`
	Why     string     `json:"why,omitempty"`
	Fence   *fenceJSON `json:"fence,omitempty"`
	Missing []nodeJSON `json:"missing,omitempty"`
	Store   string     `json:"store"`
	Nodes   int        `json:"nodes"`
	Do      string     `json:"do,omitempty"`
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
		Long: `Status asks a server how it stands with its store: joining, serving, fenced or
refusing, and why. Where the store went back or was replaced, it says who found it and
when, who must speak before the store can be healed, and which command is the way out.
The exit code is 1 unless the server serves.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	withServer(cmd, func(ctx context.Context, c *client.Client) error {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		j := statusJSON{State: st.State, Code: string(st.Code), Why: st.Why, Store: st.StoreID, Nodes: living(st.Nodes), Do: st.Command}
		out := newOutput(cmd, *asJSON, "STATE", "STORE", "NODES", "FOUND BY", "AT", "MISSING", "WHY", "DO")
		by, at := "", ""
		if f := st.Fence; f != nil {
			j.Fence = &fenceJSON{f.Name, f.At, f.Why}
			by, at = f.Name, f.At.UTC().Format(time.RFC3339)
		}
		var missing []string
		for _, n := range st.Missing {
			j.Missing = append(j.Missing, newNodeJSON(n))
			missing = append(missing, cmp.Or(n.Name, n.Row))
		}
		if err := out.add(j, j.State, dash(j.Store), strconv.Itoa(j.Nodes), dash(by), dash(at), dash(strings.Join(missing, ", ")), dash(j.Why), dash(j.Do)); err != nil {
			return err
		}
		if err := out.flush(); err != nil || st.State == "serving" {
			return err
		}
		return errNotServing
	})
	return cmd
}

// living counts the nodes that have neither left nor fallen silent.
func living(nodes []client.Node) int {
	n := 0
	for _, node := range nodes {
		if node.State != "left" && node.State != "silent" {
			n++
		}
	}
	return n
}

// errNotServing ends status where the server does not issue.
var errNotServing = fmt.Errorf("%w: the server does not issue", hapax.ErrFenced)

// nodeJSON is a node that the store knows.
type nodeJSON struct {
	Row     string `json:"row"`
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	State   string `json:"state"`
	Beats   int64  `json:"beats"`
	Grants  int64  `json:"grants"`
	SeenMS  int64  `json:"seen_ms_ago"`
	Self    bool   `json:"self"`
}

func newNodeJSON(n client.Node) nodeJSON {
	return nodeJSON{n.Row, n.Name, n.Address, n.State, n.Beats, n.Grants, n.Seen.Milliseconds(), n.Self}
}

func nodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes that share a store",
		Long: `Nodes lists the processes that have joined a shared store, by the name of the row
that each has there: as which one it joined, and a random text. State is serving or
joining; left or silent for one that has ended; missing for one that must say what it
used before a store that went back can be healed. Those that ended long ago are not
listed.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	withServer(cmd, func(ctx context.Context, c *client.Client) error {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		out := newOutput(cmd, *asJSON, "ROW", "NAME", "STATE", "BEATS", "GRANTS", "SEEN")
		for _, n := range st.Nodes {
			seen := "-"
			switch {
			case n.Self:
				seen = "this node"
			case n.Seen > 0:
				seen = n.Seen.Round(time.Second).String() + " ago"
			}
			if err := out.add(newNodeJSON(n), n.Row, dash(n.Name), n.State, strconv.FormatInt(n.Beats, 10), strconv.FormatInt(n.Grants, 10), seen); err != nil {
				return err
			}
		}
		return out.flush()
	})
	cmd.AddCommand(settleCommand())
	return cmd
}
