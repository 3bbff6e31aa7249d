package client

import (
	"context"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
)

// What a server tells operators of itself.
type (
	// Status is how it stands with its store.
	Status = api.Status

	// Budget is for how long numbers could be issued without the store.
	Budget = api.Budget

	// Forecast is the end of something that cannot be refilled.
	Forecast = api.Forecast

	// Alarm is something that an operator should look at.
	Alarm = api.Alarm

	// ForeignStatus is how a foreign system's table stands.
	ForeignStatus = api.ForeignStatus

	// NodeStatus is how one node of a fleet stands.
	NodeStatus = api.NodeStatus

	// Fence is the reason why nobody is granted anything.
	Fence = api.Fence

	// Node is a process that the store knows.
	Node = api.Node
)

// Status asks a server how it stands with its store, and who else is there.
func (c *Client) Status(ctx context.Context) (Status, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetStatusResponse, error) {
		return s.admin.GetStatus(ctx, &hapaxv1.GetStatusRequest{})
	})
	if err != nil {
		return Status{}, err
	}
	return wire.ServerStatus(res), nil
}

// FleetStatus has a server ask the other living nodes of its store how they stand, and returns
// what each said, the server first.
func (c *Client) FleetStatus(ctx context.Context) ([]NodeStatus, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetFleetStatusResponse, error) {
		return s.admin.GetFleetStatus(ctx, &hapaxv1.GetFleetStatusRequest{})
	})
	if err != nil {
		return nil, err
	}
	return wire.FleetStatus(res), nil
}

// What operators state, and what that found and did.
type (
	// Statement is about processes that can know what was granted, and are missing.
	Statement = api.Statement

	// Adoption is about processes.
	Adoption = api.Adoption

	// ForeignAdoption is about a foreign system's table.
	ForeignAdoption = api.ForeignAdoption

	// Raised is a mark that was raised, or would be.
	Raised = api.Raised
)

// Adopt states for an operator that the store is to be used as it is now, and speaks
// for all missing processes. If nothing is wrong it changes nothing. ErrFenced if a
// process is still missing.
func (c *Client) Adopt(ctx context.Context, st Statement) (Adoption, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.AdoptResponse, error) {
		return s.admin.Adopt(ctx, &hapaxv1.AdoptRequest{Statement: wire.NewStatement(st)})
	})
	if err != nil {
		return Adoption{}, err
	}
	return wire.Adoption(res.GetAdoption()), nil
}

// SettleNode speaks for one process that is missing: the name of its row, or of its
// node. Where no fence stands it ends the row of one that does not run.
func (c *Client) SettleNode(ctx context.Context, node string, st Statement) (Adoption, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.SettleNodeResponse, error) {
		return s.admin.SettleNode(ctx, &hapaxv1.SettleNodeRequest{Node: node, Statement: wire.NewStatement(st)})
	})
	if err != nil {
		return Adoption{}, err
	}
	return wire.Adoption(res.GetAdoption()), nil
}

// AdoptForeign has the server use a row of a foreign system's table again that it refuses because
// the row went back; all such rows if the key is empty. A row is raised above all that the server
// was granted, and by margin for the numbers that the system's own nodes have issued. With dryRun
// it only returns what it would do.
func (c *Client) AdoptForeign(ctx context.Context, system, key string, margin int64, dryRun bool) (ForeignAdoption, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.AdoptForeignResponse, error) {
		return s.admin.AdoptForeign(ctx, &hapaxv1.AdoptForeignRequest{System: system, Key: key, Margin: margin, DryRun: dryRun})
	})
	if err != nil {
		return ForeignAdoption{}, err
	}
	return wire.ForeignAdoption(res), nil
}

// A PoolStatus is a worker pool as an operator sees it.
type PoolStatus = api.PoolStatus

// PoolStatuses returns the pools that are configured or were ever used, by name.
func (c *Client) PoolStatuses(ctx context.Context) ([]PoolStatus, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.ListPoolStatusesResponse, error) {
		return s.admin.ListPoolStatuses(ctx, &hapaxv1.ListPoolStatusesRequest{})
	})
	if err != nil {
		return nil, err
	}
	pools := make([]PoolStatus, len(res.GetPools()))
	for i, p := range res.GetPools() {
		pools[i] = wire.PoolStatus(p)
	}
	return pools, nil
}

// A WorkerStatus is a worker ID as an operator sees it.
type WorkerStatus = api.WorkerStatus

// WorkerStatuses returns the worker IDs of a pool that were ever used, by worker ID.
// ErrPoolNotFound if the pool is not configured and was never used.
func (c *Client) WorkerStatuses(ctx context.Context, pool string) ([]WorkerStatus, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.ListWorkerStatusesResponse, error) {
		return s.admin.ListWorkerStatuses(ctx, &hapaxv1.ListWorkerStatusesRequest{Pool: pool})
	})
	if err != nil {
		return nil, err
	}
	workers := make([]WorkerStatus, len(res.GetWorkers()))
	for i, w := range res.GetWorkers() {
		workers[i] = wire.WorkerStatus(w)
	}
	return workers, nil
}

// WorkerStatus returns one worker ID of a pool, which need not have been used.
// ErrInvalidArgument for one that the pool cannot have, ErrPoolNotFound as from
// WorkerStatuses.
func (c *Client) WorkerStatus(ctx context.Context, pool string, id int64) (WorkerStatus, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return WorkerStatus{}, err
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetWorkerStatusResponse, error) {
		return s.admin.GetWorkerStatus(ctx, &hapaxv1.GetWorkerStatusRequest{Pool: pool, Worker: id})
	})
	if err != nil {
		return WorkerStatus{}, err
	}
	return wire.WorkerStatus(res.GetWorker()), nil
}
