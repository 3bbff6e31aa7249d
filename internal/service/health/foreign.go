package health

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
)

// AdoptKey stands for the key of a row in Options.Adopt.
const AdoptKey = "KEY"

// A refuser is a foreign table that refuses tags that went back, until an operator has
// decided, and grants the others.
type refuser interface {
	// Refused returns why tags are refused.
	Refused() map[string]error
}

// An adopter is a refuser to which an operator's word can be carried while it is used.
type adopter interface {
	refuser

	// System names the foreign system in commands.
	System() string

	// Adopt raises the row of a tag, or every row if that is empty, by a margin, and above
	// all that this node knows to be granted, and has it granted again.
	Adopt(ctx context.Context, tag string, margin int64, dryRun bool) (driver.Foreign, error)
}

// Foreign tells of the foreign systems that the server stands in for, by name.
func (m *Monitor) Foreign(ctx context.Context) (all []api.ForeignStatus) {
	for _, name := range slices.Sorted(maps.Keys(m.opts.Beside)) {
		st, refused := m.opts.Beside[name].standing(ctx)
		for _, tag := range slices.Sorted(maps.Keys(refused)) {
			if st.Code == "" {
				st.Code, st.Why = hapax.CodeOf(refused[tag]), plain(refused[tag])
			} else {
				st.Why += "; " + plain(refused[tag])
			}
		}
		all = append(all, api.ForeignStatus{Name: name, State: string(st.State), Code: st.Code, Why: st.Why, Command: st.Command})
	}
	return all
}

// AdoptForeign is an operator's word that a row of a foreign system's table, or every row
// if the tag is empty, is to be used as it is now, while the server runs. With dryRun it
// tells only what it would do.
func (m *Monitor) AdoptForeign(ctx context.Context, system, tag string, margin int64, dryRun bool) (api.ForeignAdoption, error) {
	var systems []string
	for _, other := range m.opts.Beside {
		table, ok := other.opts.Store.Store.(adopter)
		if !ok {
			continue
		}
		if table.System() == system {
			found, err := table.Adopt(ctx, tag, margin, dryRun)
			return ForeignAdoptionOf(found), err
		}
		systems = append(systems, table.System())
	}
	slices.Sort(systems)
	return api.ForeignAdoption{}, &hapax.ValueError{Field: "foreign", Value: system, Allowed: fmt.Sprintf("a system whose table the server uses: %s", strings.Join(systems, ", ")), Err: hapax.ErrInvalidArgument}
}

// adoptCommand tells by which command an operator decides about tags that are refused.
func (m *Monitor) adoptCommand(refused map[string]error) string {
	if len(refused) != 1 {
		return m.opts.Adopt + " for each of them"
	}
	for tag := range refused {
		return strings.ReplaceAll(m.opts.Adopt, AdoptKey, signals.Word(tag))
	}
	return ""
}
