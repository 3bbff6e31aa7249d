package client

import (
	"context"
	"time"

	"github.com/hapax-id/hapax/api/hapaxv1"
)

// A Plugin stands around the issuing of numbers on one server.
type Plugin struct {
	Name             string
	Order            int // smaller ones are called first
	On               bool
	Hooks            []string // those that it has: Before, After, Replace, OnError
	Strategies, Tags []string // that it serves; none stands for all
	Vetoes, Failures int64    // since the server started
}

// Plugins returns the plugins of a server, in the order in which they are called.
func (c *Client) Plugins(ctx context.Context) ([]Plugin, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.ListPluginsResponse, error) {
		return s.admin.ListPlugins(ctx, &hapaxv1.ListPluginsRequest{})
	})
	if err != nil {
		return nil, err
	}
	var all []Plugin
	for _, p := range res.GetPlugins() {
		all = append(all, pluginOf(p))
	}
	return all, nil
}

func pluginOf(m *hapaxv1.Plugin) Plugin {
	return Plugin{
		Name: m.GetName(), Order: int(m.GetOrder()), On: m.GetOn(), Hooks: m.GetHooks(),
		Strategies: m.GetStrategies(), Tags: m.GetTags(), Vetoes: m.GetVetoes(), Failures: m.GetFailures(),
	}
}

// SwitchPlugin switches a plugin of a server on or off, until that server stops. Where
// there are several servers, name one.
func (c *Client) SwitchPlugin(ctx context.Context, name string, on bool) (Plugin, error) {
	return c.setPlugin(ctx, &hapaxv1.SetPluginRequest{Name: name, On: &on})
}

// OrderPlugin changes the order of a plugin of a server, until that server stops.
func (c *Client) OrderPlugin(ctx context.Context, name string, order int32) (Plugin, error) {
	return c.setPlugin(ctx, &hapaxv1.SetPluginRequest{Name: name, Order: &order})
}

func (c *Client) setPlugin(ctx context.Context, req *hapaxv1.SetPluginRequest) (Plugin, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.SetPluginResponse, error) {
		return s.admin.SetPlugin(ctx, req)
	})
	return pluginOf(res.GetPlugin()), err
}

// Usage is what a plugin of a server has counted in windows of time.
type Usage struct {
	Plugin      string
	Tag, Caller string // empty where it is of all
	Window      time.Duration
	Current     int64 // numbers since the current window began
	Previous    int64 // numbers in the window before, where that is counted
	Limit       int64 // what a window may hold; 0 for no limit
}

// Usage returns what the plugins of a server have counted, of one tag or, for "", of
// everything.
func (c *Client) Usage(ctx context.Context, tag string) ([]Usage, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetUsageResponse, error) {
		return s.admin.GetUsage(ctx, &hapaxv1.GetUsageRequest{Tag: tag})
	})
	if err != nil {
		return nil, err
	}
	var all []Usage
	for _, u := range res.GetUsages() {
		all = append(all, Usage{u.GetPlugin(), u.GetTag(), u.GetCaller(), u.GetWindow().AsDuration(), u.GetCurrent(), u.GetPrevious(), u.GetLimit()})
	}
	return all, nil
}
