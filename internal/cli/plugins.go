package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
)

const pluginsHelp = `
A change applies at once to the server that you ask, until it stops; other servers,
and the next start, use their configuration. It needs a token with the scope admin for
everything, and is recorded in the server's audit log.`

func pluginsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugins",
		Short: "List, reorder, and switch on or off the plugins of a server",
		Long: `Plugins wrap the issuing of numbers: quotas, counters, and those that the server's
program brings along.
` + pluginsHelp,
	}
	group(cmd, pluginsListCommand(), pluginsSwitchCommand("on", true), pluginsSwitchCommand("off", false), pluginsOrderCommand())
	return cmd
}

var pluginHeader = []string{"PLUGIN", "ORDER", "STATE", "HOOKS", "STRATEGIES", "TAGS", "VETOES", "FAILURES"}

func addPlugin(out *output, p client.Plugin) error {
	state := "off"
	if p.On {
		state = "on"
	}
	orAll := func(names []string) string {
		if len(names) == 0 {
			return "all"
		}
		return strings.Join(names, ",")
	}
	return out.add(p, p.Name, strconv.Itoa(p.Order), state, dash(strings.Join(p.Hooks, ",")),
		orAll(p.Strategies), orAll(p.Tags), strconv.FormatInt(p.Vetoes, 10), strconv.FormatInt(p.Failures, 10))
}

func pluginsListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the plugins in the order in which they are called",
		Long: `List shows the hooks that each plugin has, which strategies and tags it serves, and how
many calls it has vetoed, and how many of its hooks have failed, since the server
started.`,
		Args: arguments(0, 0),
	}
	asJSON := jsonFlag(cmd)
	withServer(cmd, func(ctx context.Context, c *remote) error {
		all, err := c.Plugins(ctx)
		if err != nil {
			return err
		}
		out := newOutput(cmd, *asJSON, pluginHeader...)
		for _, p := range all {
			if err := addPlugin(out, p); err != nil {
				return err
			}
		}
		return out.flush()
	})
	return cmd
}

// changePlugin makes cmd change the plugin that its first argument names, and print
// it.
func changePlugin(cmd *cobra.Command, change func(ctx context.Context, c *client.Client, args []string) (client.Plugin, error)) *cobra.Command {
	asJSON := jsonFlag(cmd)
	withServer(cmd, func(ctx context.Context, c *remote) error {
		p, err := change(ctx, c.Client, cmd.Flags().Args())
		if err != nil {
			return err
		}
		out := newOutput(cmd, *asJSON, pluginHeader...)
		if err := addPlugin(out, p); err != nil {
			return err
		}
		return out.flush()
	})
	return cmd
}

func pluginsSwitchCommand(name string, on bool) *cobra.Command {
	return changePlugin(&cobra.Command{
		Use:   name + " PLUGIN",
		Short: "Switch a plugin " + name,
		Long:  "Switch a plugin " + name + ". One that replaces numbers cannot be switched while a tag that it serves is in use.\n" + pluginsHelp,
		Args:  arguments(1, 1),
	}, func(ctx context.Context, c *client.Client, args []string) (client.Plugin, error) {
		return c.SwitchPlugin(ctx, args[0], on)
	})
}

func pluginsOrderCommand() *cobra.Command {
	return changePlugin(&cobra.Command{
		Use:     "order PLUGIN ORDER",
		Short:   "Change the order of a plugin",
		Long:    "Order changes when a plugin is called: smaller ones are first, equal ones by name.\n" + pluginsHelp,
		Example: "  hapax plugins order limit 10\n  hapax plugins order limit -- -10",
		Args:    arguments(2, 2),
	}, func(ctx context.Context, c *client.Client, args []string) (client.Plugin, error) {
		order, err := strconv.ParseInt(args[1], 10, 32)
		if err != nil {
			return client.Plugin{}, &hapax.ValueError{Field: "order", Value: args[1], Allowed: "an integer of 32 bits", Err: hapax.ErrInvalidArgument}
		}
		return c.OrderPlugin(ctx, args[0], int32(order))
	})
}
