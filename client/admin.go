package client

import (
	"context"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
)

// A Status is how a server stands with its store.
type Status struct {
	State   string     // "joining", "serving", "fenced", "refusing", "leaving" or "left"
	Code    hapax.Code // of why it is not serving
	Why     string     // why it is not serving
	Command string     // what an operator may do; empty: nothing is needed
	Fence   *Fence     // nil where there is none
	Missing []Node     // who must speak before the fence can end, and has not
	Nodes   []Node     // that the store knows, by row
	StoreID string
}

// A Fence stands in the store while nobody is granted anything.
type Fence struct {
	ID, Name, Why string
	At            time.Time
}

// A Node is a process that the store knows, or that somebody knows who uses it.
type Node struct {
	Row     string // its name in the store: as which one it joined, and a random text
	Name    string // what operators know it by
	Address string
	State   string        // "serving", "joining", "left", "silent" or "missing"
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
	return Status{
		State: res.GetState(), Code: hapax.Code(res.GetCode()), Why: res.GetWhy(), Command: res.GetCommand(), Fence: fenceOf(res.GetFence()),
		Missing: nodesOf(res.GetMissing()), Nodes: nodesOf(res.GetNodes()), StoreID: res.GetStoreId(),
	}, nil
}

func fenceOf(m *hapaxv1.Fence) *Fence {
	if m == nil {
		return nil
	}
	return &Fence{m.GetId(), m.GetName(), m.GetWhy(), m.GetAt().AsTime()}
}

func nodesOf(list []*hapaxv1.Node) []Node {
	var nodes []Node
	for _, n := range list {
		nodes = append(nodes, Node{
			n.GetRow(), n.GetName(), n.GetAddress(), n.GetState(), n.GetBeats(), n.GetGrants(), time.Duration(n.GetSeenMs()) * time.Millisecond, n.GetSelf(),
		})
	}
	return nodes
}

// An AdoptRequest says what an operator states about a store that went back.
type AdoptRequest struct {
	DryRun    bool     // only say what would be done
	Node      string   // who is spoken for: the name of a row or of a node; empty: all who are missing
	Floor     int64    // above all that they can have used: what every segment tag is raised to at least
	Witnesses [][]byte // what witnesses say whose nodes do not run
}

// An Adoption is what was found and done.
type Adoption struct {
	StoreID  string
	Other    string   // the store that the server knows, where it is another one
	Fence    *Fence   // the fence that stood; nil: nothing was wrong
	Spoke    int64    // how many processes have said what they used
	Missing  []Node   // who is missing still
	Stated   []Node   // who was spoken for
	Raised   []Raised // marks that are raised, or would be
	Proposed int64    // a floor that would be accepted
}

// Raised is one mark that was raised: of a tag, or of a pool's worker.
type Raised struct {
	Tag, Pool string
	Worker    int64
	From, To  int64
}

// Adopt has a server take an operator's word for those who are missing, so that the
// store is healed and the fence ends. Where nothing is wrong it changes nothing.
func (c *Client) Adopt(ctx context.Context, req AdoptRequest) (Adoption, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.AdoptResponse, error) {
		return s.admin.Adopt(ctx, &hapaxv1.AdoptRequest{DryRun: req.DryRun, Node: req.Node, Floor: req.Floor, Witnesses: req.Witnesses})
	})
	if err != nil {
		return Adoption{}, err
	}
	a := Adoption{
		StoreID: res.GetStoreId(), Other: res.GetOther(), Fence: fenceOf(res.GetFence()), Spoke: res.GetSpoke(), Missing: nodesOf(res.GetMissing()),
		Stated: nodesOf(res.GetStated()), Proposed: res.GetProposed(),
	}
	for _, r := range res.GetRaised() {
		a.Raised = append(a.Raised, Raised{r.GetTag(), r.GetPool(), r.GetWorker(), r.GetFrom(), r.GetTo()})
	}
	return a, nil
}

// A PoolStatus is a worker pool as an operator sees it.
type PoolStatus struct {
	hapax.Pool      // with the layout that it is, or will be, frozen with
	Configured bool // in the server's configuration
	Frozen     bool // in the store, which never changes its layout
}

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
		pools[i] = PoolStatus{wire.Pool(p.GetPool()), p.GetConfigured(), p.GetFrozen()}
	}
	return pools, nil
}

// A WorkerStatus is a worker ID as an operator sees it.
type WorkerStatus struct {
	hapax.Worker
	State string       // "free", "held", "waiting", "retired" or "poisoned"
	Until time.Time    // the time of the mark, up to which time was granted
	Free  time.Time    // when others may have it; zero when free
	Parts hapax.Fields // of the worker ID, where the pool's split is configured
}

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
		workers[i] = workerStatus(w)
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
	return workerStatus(res.GetWorker()), nil
}

func workerStatus(m *hapaxv1.WorkerStatus) WorkerStatus {
	w := WorkerStatus{Worker: wire.Worker(m.GetWorker()), State: m.GetState(), Until: m.GetUntil().AsTime(), Parts: wire.Fields(m.GetParts())}
	if m.GetFree() != nil {
		w.Free = m.GetFree().AsTime()
	}
	return w
}
