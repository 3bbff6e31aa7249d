package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/driver"
)

// A Status is how a server stands with its store.
type Status struct {
	State   string     // "joining", "serving", "fenced", "refusing", "leaving" or "left"
	Code    hapax.Code // the reason why it is granted no numbers; empty while it serves
	Why     string     // likewise
	Command string     // what an operator may do; empty: nothing is needed
	Fence   *Fence     // nil where there is none
	Missing []Node     // who must speak before the fence can end, and has not
	Nodes   []Node     // that the store knows, by row
	StoreID string
	Foreign []ForeignStatus // the tables and trees of foreign systems, by name

	Budget    *Budget    // the tag or pool that could be issued from for the shortest time without the store; nil where no time is the limit
	Forecasts []Forecast // what ends within a year at the present rate, the nearest end first
	Alarms    []Alarm    // those that are up
	See       string     // the runbook's entry on why something is not issued
}

// A Budget is how long a tag or pool could be issued from if the store answered nothing
// any more.
type Budget struct {
	Kind, Name string // "tag" or "pool", and its name
	Lasts      time.Duration
}

// A Forecast tells when something that cannot be refilled ends at the present rate.
type Forecast struct {
	What       string // "line", "reader", "layout", "workers" or "starts"
	Kind, Name string // "tag" or "pool", and its name
	Ends       time.Time
}

// An Alarm is something that an operator should look at.
type Alarm struct {
	Name, About, Detail string
	Since               time.Time
	See                 string // where the runbook tells of it
}

// A ForeignStatus is how the table or the tree of a foreign system stands with a server.
type ForeignStatus struct {
	Name    string
	State   string     // "serving", or "refusing" while rows are refused
	Code    hapax.Code // of why nothing, or nothing of some rows, is granted; empty: everything is
	Why     string     // likewise
	Command string     // what an operator may do; empty: nothing is needed
}

// A Fence stands in the store while nobody is granted anything.
type Fence struct {
	ID, Name, Why string
	At            time.Time
}

// A Node is a process that the store knows.
type Node struct {
	Row     string // as which one it joined, and a random text
	Name    string // what operators know it by
	Address string
	State   string        // "serving", "joining", "fenced" while a fence stands, "left", "silent", or "missing": it must speak before the fence can end
	Beats   int64         // how often it has written to the store
	Grants  int64         // how often it has asked for numbers, as far as is known
	Seen    time.Duration // how long ago the server saw its heartbeat advance; 0: it did not
	Self    bool          // it is the server that answers
}

// Status asks a server how it stands with its store, and who else is there.
func (c *Client) Status(ctx context.Context) (Status, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetStatusResponse, error) {
		return s.admin.GetStatus(ctx, &hapaxv1.GetStatusRequest{})
	})
	if err != nil {
		return Status{}, err
	}
	st := Status{
		State: res.GetState(), Code: hapax.Code(res.GetCode()), Why: res.GetWhy(), Command: res.GetCommand(), Fence: fenceOf(res.GetFence()),
		Missing: nodesOf(res.GetMissing()), Nodes: nodesOf(res.GetNodes()), StoreID: res.GetStoreId(), See: res.GetSee(),
	}
	if b := res.GetOutageBudget(); b != nil {
		st.Budget = &Budget{b.GetKind(), b.GetName(), time.Duration(b.GetSeconds() * float64(time.Second))}
	}
	for _, f := range res.GetForecasts() {
		st.Forecasts = append(st.Forecasts, Forecast{f.GetWhat(), f.GetKind(), f.GetName(), f.GetEnds().AsTime()})
	}
	for _, a := range res.GetAlarms() {
		st.Alarms = append(st.Alarms, Alarm{a.GetName(), a.GetAbout(), a.GetDetail(), a.GetSince().AsTime(), a.GetSee()})
	}
	for _, f := range res.GetForeign() {
		st.Foreign = append(st.Foreign, ForeignStatus{f.GetName(), f.GetState(), hapax.Code(f.GetCode()), f.GetWhy(), f.GetCommand()})
	}
	return st, nil
}

func fenceOf(m *hapaxv1.Fence) *Fence {
	if m == nil {
		return nil
	}
	return &Fence{m.GetId(), m.GetName(), m.GetWhy(), m.GetAt().AsTime()}
}

func nodesOf(all []*hapaxv1.Node) []Node {
	var nodes []Node
	for _, m := range all {
		nodes = append(nodes, Node{
			Row: m.GetRow(), Name: m.GetName(), Address: m.GetAddress(), State: m.GetState(), Beats: m.GetBeats(), Grants: m.GetGrants(),
			Seen: m.GetSeen().AsDuration(), Self: m.GetSelf(),
		})
	}
	return nodes
}

// A Statement is what an operator says about processes that can know what was granted,
// and are missing while a fence stands.
type Statement struct {
	DryRun  bool          // only say what would be done; accepts exactly what would be accepted
	Floor   int64         // above all that they can have used; not accepted below a mark that is known
	Ahead   time.Duration // how far past now the timelines of worker IDs are raised, with a floor; 0: as far as a grant reaches
	Witness [][]byte      // what witness files say whose nodes do not run
}

func (st Statement) message() *hapaxv1.Statement {
	return &hapaxv1.Statement{DryRun: st.DryRun, Floor: st.Floor, Ahead: durationpb.New(st.Ahead), Witness: st.Witness}
}

// An Adoption is what a statement found and did.
type Adoption struct {
	StoreID  string
	Other    string          // the store that the node knows, where it is another one
	Fence    *Fence          // the fence that stood; nil: nothing was wrong
	Spoke    int             // how many processes have said what they used
	Missing  []Node          // nodes that are still missing
	Stated   []Node          // nodes whose use was stated for them
	Raised   []driver.Raised // marks that are raised, or would be
	Proposed int64           // the lowest floor that is proposed
}

// Adopt is an operator's word that the store, as it is now, is to be used; it speaks
// for all who are missing. Where nothing is wrong it changes nothing. ErrFenced where
// somebody is missing still.
func (c *Client) Adopt(ctx context.Context, st Statement) (Adoption, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.AdoptResponse, error) {
		return s.admin.Adopt(ctx, &hapaxv1.AdoptRequest{Statement: st.message()})
	})
	if err != nil {
		return Adoption{}, err
	}
	return adoptionOf(res.GetAdoption()), nil
}

// SettleNode speaks for one process that is missing: the name of its row, or of its
// node. Where no fence stands it ends the row of one that does not run.
func (c *Client) SettleNode(ctx context.Context, node string, st Statement) (Adoption, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.SettleNodeResponse, error) {
		return s.admin.SettleNode(ctx, &hapaxv1.SettleNodeRequest{Node: node, Statement: st.message()})
	})
	if err != nil {
		return Adoption{}, err
	}
	return adoptionOf(res.GetAdoption()), nil
}

// AdoptForeign has a row of a foreign system's table, or all rows if the key is empty, used
// again that the server refuses because it went back: it is raised above all that the server
// was granted, and by margin for the numbers that the system's own nodes have issued. With dryRun it
// tells only what it would do.
func (c *Client) AdoptForeign(ctx context.Context, system, key string, margin int64, dryRun bool) (driver.Foreign, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.AdoptForeignResponse, error) {
		return s.admin.AdoptForeign(ctx, &hapaxv1.AdoptForeignRequest{System: system, Key: key, Margin: margin, DryRun: dryRun})
	})
	if err != nil {
		return driver.Foreign{}, err
	}
	return driver.Foreign{Why: res.GetWhy(), Skipped: res.GetSkipped(), Raised: raisedOf(res.GetRaised())}, nil
}

func raisedOf(all []*hapaxv1.RaisedMark) (raised []driver.Raised) {
	for _, r := range all {
		raised = append(raised, driver.Raised{Tag: r.GetTag(), Pool: r.GetPool(), Worker: r.GetWorker(), From: r.GetFrom(), To: r.GetTo()})
	}
	return raised
}

func adoptionOf(m *hapaxv1.Adoption) Adoption {
	a := Adoption{
		StoreID: m.GetStoreId(), Other: m.GetOther(), Fence: fenceOf(m.GetFence()), Spoke: int(m.GetSpoke()),
		Missing: nodesOf(m.GetMissing()), Stated: nodesOf(m.GetStated()), Proposed: m.GetProposedFloor(),
	}
	a.Raised = raisedOf(m.GetRaised())
	return a
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
