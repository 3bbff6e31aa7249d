package cli

import (
	"time"

	"github.com/hapax-id/hapax"
)

// tagJSON is a tag as the server writes it and --json prints it. Numbers of its
// line are strings, as IDs are.
type tagJSON struct {
	Name    string     `json:"name"`
	Kind    hapax.Kind `json:"kind"`
	Start   hapax.ID   `json:"start,omitzero"`
	Step    int64      `json:"step,omitempty"`
	MinStep int64      `json:"min_step,omitempty"`
	MaxStep int64      `json:"max_step,omitempty"`
	Mark    hapax.ID   `json:"mark,omitzero"`
	Pool    string     `json:"pool,omitempty"`
	Deleted bool       `json:"deleted,omitempty"`
}

func newTagJSON(t hapax.Tag) tagJSON {
	return tagJSON{t.Name, t.Kind, hapax.ID(t.Start), t.Step, t.MinStep, t.MaxStep, hapax.ID(t.Mark), t.Pool, t.Deleted}
}

func (j tagJSON) tag() hapax.Tag {
	return hapax.Tag{
		Name: j.Name, Kind: j.Kind, Start: int64(j.Start), Step: j.Step, MinStep: j.MinStep, MaxStep: j.MaxStep,
		Mark: int64(j.Mark), Pool: j.Pool, Deleted: j.Deleted,
	}
}

// workerJSON is a worker as the server writes it; --json adds the pool and what
// the mark means.
type workerJSON struct {
	Pool    string    `json:"pool,omitempty"`
	Worker  int64     `json:"worker"`
	Mark    int64     `json:"mark"`           // in ticks
	Until   time.Time `json:"until,omitzero"` // the time of the mark
	Epoch   int64     `json:"epoch"`
	Holder  string    `json:"holder,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // while a lease runs or may run
}

func newWorkerJSON(layout hapax.Layout, w hapax.Worker) workerJSON {
	j := workerJSON{Pool: w.Pool, Worker: w.ID, Mark: w.Mark, Until: layout.TimeOf(w.Mark), Epoch: w.Epoch, Holder: w.Holder}
	if w.Expires.UnixMilli() > 0 {
		j.Expires = w.Expires.UTC()
	}
	return j
}

func (j workerJSON) worker(pool string) hapax.Worker {
	return hapax.Worker{Pool: pool, ID: j.Worker, Mark: j.Mark, Epoch: j.Epoch, Holder: j.Holder, Expires: j.Expires}
}
