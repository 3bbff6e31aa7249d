package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// A Setup registers the strategies and plugins of a program that runs a server. The
// store is the server's; it answers once tags are opened, and not during the call.
type Setup func(r *strategy.Registry, store driver.Store) error

// Strategies returns the registry of a server: the plugins of the configuration, and
// what c.Setup registers, over a store that may be given later.
func (c Config) Strategies(log *slog.Logger, store *LateStore) (*strategy.Registry, error) {
	r := strategy.NewRegistry(strategy.Options{Logger: log})
	if c.mounting == nil { // nothing is issued
		var err error
		if c.mounting, err = c.planMounts(); err != nil {
			return nil, err
		}
	}
	for name, s := range c.mounting.plan.Strategies {
		if err := r.Register(name, s); err != nil {
			return nil, err
		}
	}
	if c.Setup != nil {
		if err := c.Setup(r, store); err != nil {
			return nil, err
		}
	}
	if err := c.addPlugins(r); err != nil {
		return nil, err
	}
	return r, nil
}

// A LateStore is a store that is given when it is open. Before, it is closed.
type LateStore struct{ driver.Store }

// NewLateStore returns a LateStore without a store.
func NewLateStore() *LateStore {
	none := memstore.New()
	_ = none.Close() // it has nothing to lose
	return &LateStore{none}
}

// StoreTime implements driver.Clock for stores that do.
func (s *LateStore) StoreTime(ctx context.Context) (time.Time, error) {
	clock, ok := s.Store.(driver.Clock)
	if !ok {
		return time.Time{}, hapax.ErrNotSupported
	}
	return clock.StoreTime(ctx)
}
