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
	State   string // empty while it is serving; else "refusing" or "fenced"
	Why     string // why it is not serving
	Fence   *Fence // nil where there is none
	Nodes   []Node // that the store knows, by identity
	StoreID string
}

// A Fence stands in the store while nobody is granted anything.
type Fence struct {
	ID, Name, Why string
	At            time.Time
}

// A Node is a node that the store knows.
type Node struct {
	ID, Name  string
	At, Since time.Time // of its last heartbeat, and when it joined; by its own clock
}

// Status asks a server how it stands with its store, and who else is there.
func (c *Client) Status(ctx context.Context) (Status, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetStatusResponse, error) {
		return s.admin.GetStatus(ctx, &hapaxv1.GetStatusRequest{})
	})
	if err != nil {
		return Status{}, err
	}
	st := Status{State: res.GetState(), Why: res.GetWhy(), Fence: fenceOf(res.GetFence()), StoreID: res.GetStoreId()}
	for _, n := range res.GetNodes() {
		st.Nodes = append(st.Nodes, Node{n.GetId(), n.GetName(), n.GetAt().AsTime(), n.GetSince().AsTime()})
	}
	return st, nil
}

func fenceOf(m *hapaxv1.Fence) *Fence {
	if m == nil {
		return nil
	}
	return &Fence{m.GetId(), m.GetName(), m.GetWhy(), m.GetAt().AsTime()}
}

// An AdoptRequest says how an operator decides about a store that went back.
type AdoptRequest struct {
	DryRun         bool             // only say what would be done
	Floor          int64            // what every segment tag is raised to at least
	WithoutMissing bool             // go on although nodes have not said what they used; needs Floor
	NoOthers       bool             // states that no node has used the store but those that are heard
	Lines          map[string]int64 // what witnesses say whose nodes do not live
}

// An Adoption is what was found and done.
type Adoption struct {
	StoreID  string
	Fence    *Fence   // the fence that stood; nil: nothing was wrong
	Spoke    []string // nodes that have said what they used, by name
	Missing  []string // nodes that the store knows and that have not
	Unheard  []string // further nodes that were seen in the store, or in the one that it replaces
	Replaced bool     // the store is another one than that which was used
	Raised   []Raised // marks that were raised, or would be
}

// Raised is one mark that was raised: of a tag, or of a pool's worker.
type Raised struct {
	Tag, Pool string
	Worker    int64
	From, To  int64
}

// Adopt has a server raise every mark of the store above what is known to be used,
// and lift the fence. Where nothing is wrong it changes nothing.
func (c *Client) Adopt(ctx context.Context, req AdoptRequest) (Adoption, error) {
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.AdoptResponse, error) {
		return s.admin.Adopt(ctx, &hapaxv1.AdoptRequest{
			DryRun: req.DryRun, Floor: req.Floor, WithoutMissing: req.WithoutMissing, NoOthers: req.NoOthers, Lines: req.Lines,
		})
	})
	if err != nil {
		return Adoption{}, err
	}
	a := Adoption{
		StoreID: res.GetStoreId(), Fence: fenceOf(res.GetFence()), Spoke: res.GetSpoke(), Missing: res.GetMissing(),
		Unheard: res.GetUnheard(), Replaced: res.GetReplaced(),
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
