package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

type poolJSON struct {
	Name       string      `json:"name"`
	Layout     string      `json:"layout"` // the name, or else the spec
	Configured bool        `json:"configured"`
	Frozen     bool        `json:"frozen"`                // in the store
	Issuer     *issuerJSON `json:"issuer,omitempty"`      // if the pool is in use on this node
	StartsLeft *int64      `json:"starts_left,omitempty"` // if each start uses up a worker ID
}

type issuerJSON struct {
	Worker           int64   `json:"worker"`
	Issued           int64   `json:"issued"`
	RemainingSeconds float64 `json:"grant_remaining_seconds"`
}

func (a *restAPI) listPools(w http.ResponseWriter, r *http.Request) {
	pools, err := a.svc.PoolStatuses(r.Context())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	list := struct {
		Pools []poolJSON `json:"pools"`
	}{Pools: make([]poolJSON, len(pools))}
	for i, p := range pools {
		j := poolJSON{Name: p.Name, Layout: p.Layout, Configured: p.Configured, Frozen: p.Frozen}
		if l, err := hapax.ParseLayout(p.Layout); err == nil {
			j.Layout = service.LayoutName(l)
		}
		if st := p.Issuer; st != nil {
			j.Issuer = &issuerJSON{st.Worker, st.Issued, st.Remaining.Seconds()}
		}
		if p.Counted {
			j.StartsLeft = &p.StartsLeft
		}
		list.Pools[i] = j
	}
	writeJSON(w, http.StatusOK, list)
}

// workerJSON is a worker ID as clients see it.
type workerJSON struct {
	Worker  int64               `json:"worker"`
	State   service.WorkerState `json:"state"`
	Mark    int64               `json:"mark"`  // in ticks
	Until   time.Time           `json:"until"` // the time of the mark
	Token   int64               `json:"token"` // 0: never used
	Holder  string              `json:"holder,omitempty"`
	Expires *time.Time          `json:"expires,omitempty"` // while a lease runs or may run
	Free    *time.Time          `json:"free,omitempty"`    // when others may have it, if not now
	Parts   hapax.Fields        `json:"parts,omitempty"`   // by the split of the pool
	Retired bool                `json:"retired,omitempty"`
}

func newWorkerJSON(v service.WorkerStatus) workerJSON {
	j := workerJSON{
		Worker: v.ID, State: v.State, Mark: v.Mark, Until: v.Until, Token: v.Token, Holder: v.Holder, Parts: v.Parts, Retired: v.Retired(),
	}
	if v.Expires.UnixMilli() > 0 {
		j.Expires = new(v.Expires.UTC())
	}
	if !v.Free.IsZero() {
		j.Free = new(v.Free.UTC())
	}
	return j
}

func (a *restAPI) listWorkers(w http.ResponseWriter, r *http.Request) {
	workers, err := a.svc.WorkerStatuses(r.Context(), r.PathValue("pool"))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	list := struct {
		Workers []workerJSON `json:"workers"`
	}{Workers: make([]workerJSON, len(workers))}
	for i, v := range workers {
		list.Workers[i] = newWorkerJSON(v)
	}
	writeJSON(w, http.StatusOK, list)
}

func (a *restAPI) getWorker(w http.ResponseWriter, r *http.Request) {
	id, err := workerID(r)
	var worker service.WorkerStatus
	if err == nil {
		worker, err = a.svc.WorkerStatus(r.Context(), r.PathValue("pool"), id)
	}
	a.answerWorker(w, r, worker, err)
}

func (a *restAPI) retireWorker(w http.ResponseWriter, r *http.Request) {
	id, err := workerID(r)
	var worker service.WorkerStatus
	if err == nil {
		_, err = a.svc.RetireWorker(r.Context(), r.PathValue("pool"), id)
	}
	if err == nil {
		worker, err = a.svc.WorkerStatus(r.Context(), r.PathValue("pool"), id)
	}
	a.answerWorker(w, r, worker, err)
}

func (a *restAPI) answerWorker(w http.ResponseWriter, r *http.Request, worker service.WorkerStatus, err error) {
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, newWorkerJSON(worker))
}

// workerID reads the worker ID in the path.
func workerID(r *http.Request) (int64, error) {
	text := r.PathValue("worker")
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 0 {
		return 0, &hapax.ValueError{Field: hapax.FieldWorker, Value: text, Allowed: "a worker ID, which is 0 or more", Err: hapax.ErrInvalidArgument}
	}
	return id, nil
}
