package client

import (
	"context"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
)

// A Plugin stands around the issuing of numbers on one server.
type Plugin = api.Plugin

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
		all = append(all, wire.Plugin(p))
	}
	return all, nil
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
	return wire.Plugin(res.GetPlugin()), err
}

// Usage is what a plugin of a server has counted in windows of time.
type Usage = api.Usage

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
		all = append(all, wire.Usage(u))
	}
	return all, nil
}
