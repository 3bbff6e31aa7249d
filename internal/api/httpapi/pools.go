package httpapi

import (
	"net/http"
	"strconv"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
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

func (a *restAPI) listWorkers(w http.ResponseWriter, r *http.Request) {
	workers, err := a.svc.WorkerStatuses(r.Context(), r.PathValue("pool"))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	list := struct {
		Workers []api.WorkerStatus `json:"workers"`
	}{workers}
	writeJSON(w, http.StatusOK, list)
}

func (a *restAPI) getWorker(w http.ResponseWriter, r *http.Request) {
	id, err := workerID(r)
	var worker api.WorkerStatus
	if err == nil {
		worker, err = a.svc.WorkerStatus(r.Context(), r.PathValue("pool"), id)
	}
	a.answerWorker(w, r, worker, err)
}

func (a *restAPI) retireWorker(w http.ResponseWriter, r *http.Request) {
	id, err := workerID(r)
	var worker api.WorkerStatus
	if err == nil {
		_, err = a.svc.RetireWorker(r.Context(), r.PathValue("pool"), id)
	}
	if err == nil {
		worker, err = a.svc.WorkerStatus(r.Context(), r.PathValue("pool"), id)
	}
	a.answerWorker(w, r, worker, err)
}

func (a *restAPI) answerWorker(w http.ResponseWriter, r *http.Request, worker api.WorkerStatus, err error) {
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, worker)
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
