package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
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
	Delta   int64      `json:"delta,omitempty"` // 0: 1
	Rest    int64      `json:"remainder,omitempty"`
	Pool    string     `json:"pool,omitempty"`
	Deleted bool       `json:"deleted,omitempty"`
	Code    string     `json:"code,omitempty"`
	Old     []string   `json:"old_codes,omitempty"`
}

func newTagJSON(t hapax.Tag) tagJSON {
	spec, old := service.CodeOf(t)
	j := tagJSON{t.Name, t.Kind, hapax.ID(t.Start), t.Step, t.MinStep, t.MaxStep, hapax.ID(t.Mark), 0, 0, t.Pool, t.Deleted, spec, old}
	if t.Delta > 1 {
		j.Delta, j.Rest = t.Delta, t.Remainder
	}
	return j
}

func (j tagJSON) tag() hapax.Tag {
	return hapax.Tag{
		Name: j.Name, Kind: j.Kind, Start: int64(j.Start), Step: j.Step, MinStep: j.MinStep, MaxStep: j.MaxStep,
		Mark: int64(j.Mark), Pool: j.Pool, Deleted: j.Deleted, Extra: service.ExtraOf(j.Code, j.Old), Delta: j.Delta, Remainder: j.Rest,
	}
}

// workerJSON is a worker ID as the server writes it; --json adds the pool.
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
	Parts   partsJSON           `json:"parts,omitempty"`
}

func newWorkerJSON(w service.WorkerStatus) workerJSON {
	j := workerJSON{w.Pool, w.ID, w.State, w.Mark, w.Until, w.Token, w.Holder, w.Expires.UTC(), w.Free.UTC(), partsJSON(w.Parts)}
	if w.Expires.UnixMilli() <= 0 {
		j.Expires = time.Time{}
	}
	return j
}

func (j workerJSON) status(pool string) service.WorkerStatus {
	return service.WorkerStatus{
		Worker: hapax.Worker{Pool: pool, ID: j.Worker, Mark: j.Mark, Token: j.Token, Holder: j.Holder, Expires: j.Expires},
		State:  j.State, Until: j.Until, Free: j.Free, Parts: hapax.Fields(j.Parts),
	}
}

// partsJSON are the parts of a worker ID as an object, whose order counts.
type partsJSON hapax.Fields

// MarshalJSON implements json.Marshaler.
func (p partsJSON) MarshalJSON() ([]byte, error) { return hapax.Fields(p).MarshalJSON() }

// UnmarshalJSON implements json.Unmarshaler.
func (p *partsJSON) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil { // the brace
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var value int64
		if err := d.Decode(&value); err != nil {
			return err
		}
		*p = append(*p, hapax.Field{Name: fmt.Sprint(name), Value: value})
	}
	return nil
}
