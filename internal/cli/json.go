package cli

import (
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
