package httpapi

import (
	"net/http"
	"strconv"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

func (a *restAPI) listPools(w http.ResponseWriter, r *http.Request) {
	pools, err := a.svc.PoolStatuses(r.Context())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	list := struct {
		Pools []api.PoolStatus `json:"pools"`
	}{pools}
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
