package cli

import (
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// tagJSON is a tag as --json prints it. Numbers of its line are strings, as IDs are.
type tagJSON struct {
	Name    string     `json:"name"`
	Kind    hapax.Kind `json:"kind"`
	Start   hapax.ID   `json:"start,omitzero"`
	Step    int64      `json:"step,omitempty"`
	MinStep int64      `json:"min_step,omitempty"`
	MaxStep int64      `json:"max_step,omitempty"`
	Mark    hapax.ID   `json:"mark,omitzero"`
	Delta   int64      `json:"delta,omitempty"` // 0: 1
	Rest    int64      `json:"remainder,omitempty"`
	Pool    string     `json:"pool,omitempty"`
	Deleted bool       `json:"deleted,omitempty"`
	Code    string     `json:"code,omitempty"`
	Old     []string   `json:"old_codes,omitempty"`

	Strategy string      `json:"strategy,omitempty"`
	Usage    []usageJSON `json:"usage,omitempty"`
}

func newTagJSON(t hapax.Tag) tagJSON {
	spec, old := service.CodeOf(t)
	j := tagJSON{
		Name: t.Name, Kind: t.Kind, Start: hapax.ID(t.Start), Step: t.Step, MinStep: t.MinStep, MaxStep: t.MaxStep, Mark: hapax.ID(t.Mark),
		Pool: t.Pool, Deleted: t.Deleted, Code: spec, Old: old, Strategy: service.StrategyOf(t),
	}
	if t.Delta > 1 {
		j.Delta, j.Rest = t.Delta, t.Remainder
	}
	return j
}

// workerJSON is a worker ID as --json prints it.
type workerJSON struct {
	Pool    string              `json:"pool,omitempty"`
	Worker  int64               `json:"worker"`
	State   service.WorkerState `json:"state"`
	Mark    int64               `json:"mark"`  // in ticks
	Until   time.Time           `json:"until"` // the time of the mark
	Token   int64               `json:"token"`
	Holder  string              `json:"holder,omitempty"`
	Expires time.Time           `json:"expires,omitzero"`
	Free    time.Time           `json:"free,omitzero"`
	Parts   hapax.Fields        `json:"parts,omitempty"`
}

func newWorkerJSON(w service.WorkerStatus) workerJSON {
	j := workerJSON{w.Pool, w.ID, w.State, w.Mark, w.Until, w.Token, w.Holder, w.Expires.UTC(), w.Free.UTC(), w.Parts}
	if w.Expires.UnixMilli() <= 0 {
		j.Expires = time.Time{}
	}
	return j
}
