package rpcapi

import (
	"context"
	"fmt"
	"math"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/service"
)

// A plugged store is a service, which has plugins.
type plugged interface {
	Plugins() []service.PluginStatus
	SetPlugin(ctx context.Context, name string, on *bool, order *int) (service.PluginStatus, error)
	Usage(tag string) []service.PluginUsage
}

func (s *adminServer) plugged() (plugged, error) {
	if p, ok := s.store.(plugged); ok {
		return p, nil
	}
	return nil, fmt.Errorf("%w: there are no plugins here", hapax.ErrNotSupported)
}

// ListPlugins implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListPlugins(context.Context, *hapaxv1.ListPluginsRequest) (*hapaxv1.ListPluginsResponse, error) {
	p, err := s.plugged()
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.ListPluginsResponse{}
	for _, st := range p.Plugins() {
		res.Plugins = append(res.Plugins, newPlugin(st))
	}
	return res, nil
}

// SetPlugin implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) SetPlugin(ctx context.Context, req *hapaxv1.SetPluginRequest) (*hapaxv1.SetPluginResponse, error) {
	p, err := s.plugged()
	if err != nil {
		return nil, err
	}
	var order *int
	if req.Order != nil {
		order = new(int(req.GetOrder()))
	}
	st, err := p.SetPlugin(ctx, req.GetName(), req.On, order)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.SetPluginResponse{Plugin: newPlugin(st)}, nil
}

func newPlugin(st service.PluginStatus) *hapaxv1.Plugin {
	return &hapaxv1.Plugin{
		Name: st.Name, Order: int32(min(max(st.Order, math.MinInt32), math.MaxInt32)), On: st.On, Hooks: st.Hooks,
		Strategies: st.Strategies, Tags: st.Tags, Vetoes: st.Vetoes, Failures: st.Failures,
	}
}

// GetUsage implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) GetUsage(_ context.Context, req *hapaxv1.GetUsageRequest) (*hapaxv1.GetUsageResponse, error) {
	p, err := s.plugged()
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.GetUsageResponse{}
	for _, u := range p.Usage(req.GetTag()) {
		m := &hapaxv1.Usage{Plugin: u.Plugin, Tag: u.Tag, Caller: u.Caller, Window: durationpb.New(u.Window), Current: u.Current, Previous: u.Previous}
		if u.Limit > 0 {
			m.Limit = new(u.Limit)
		}
		res.Usages = append(res.Usages, m)
	}
	return res, nil
}
