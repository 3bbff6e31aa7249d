package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/store/witness"
)

// A ForeignAdoption tells what AdoptForeign has found and changed.
type ForeignAdoption struct {
	Why     []string // why rows are refused
	Raised  []witness.Raised
	Skipped []string // why a row was left as it is: it is not valid, and nothing is granted from it
}

// AdoptForeign makes the tables of a foreign system usable again after
// it was set back: it raises every row above what this node's witness knows, and by the
// margin for what the foreign system's own nodes have issued. The node must be stopped.
// Where nothing is wrong it changes nothing.
func AdoptForeign(ctx context.Context, c Config, system string, margin int64, dryRun bool) (ForeignAdoption, error) {
	var a ForeignAdoption
	if err := c.hasTable(system); err != nil {
		return a, err
	}
	if _, err := os.Stat(c.Data); err != nil {
		return a, fmt.Errorf("%w: the data directory: %w", hapax.ErrStoreUnavailable, err)
	}
	w, err := c.foreignWitness(system)
	if errors.Is(err, hapax.ErrStoreLocked) {
		return a, fmt.Errorf("%w: a server runs in the data directory %s; stop it first", hapax.ErrStoreLocked, c.Data)
	}
	if err != nil {
		return a, err
	}
	a.Why = slices.Sorted(maps.Values(witness.NewMarks(w, nil).RefusedLines()))
	warn := func(code, message string) {
		if code == "bad_row" {
			a.Skipped = append(a.Skipped, message)
		}
	}
	a.Raised, err = c.adoptTable(ctx, system, w, margin, dryRun, warn)
	return a, errors.Join(err, w.Close())
}

// hasTable refuses a system without a table of its own.
func (c Config) hasTable(system string) error {
	if owner, ok := c.Mounts[system].(mount.Owner); ok && owner.HasTable() {
		return nil
	}
	if system == leafName && c.Compat.Leaf != nil && c.Compat.Leaf.segments() != native && c.Compat.Leaf.Table != "" {
		return nil
	}
	return &hapax.ValueError{Field: "--foreign", Value: system, Allowed: "leaf or tinyid, with its table or databases in the configuration: give that with --config or $HAPAX_CONFIG", Err: hapax.ErrInvalidArgument}
}

func (c Config) adoptTable(ctx context.Context, system string, w *witness.Witness, margin int64, dryRun bool, warn func(code, message string)) ([]witness.Raised, error) {
	var table mount.Table
	var err error
	if owner, ok := c.Mounts[system].(mount.Owner); ok {
		table, err = owner.OpenTable(ctx, mount.TableOptions{Timeout: c.StoreTimeout, Witness: w, Warn: warn})
	} else {
		table, err = c.Compat.Leaf.openTable(ctx, c, w, warn)
	}
	if err != nil {
		return nil, err
	}
	rows, err := table.Adopt(ctx, margin, dryRun)
	return rows, errors.Join(err, table.Close())
}

// adoptForeign is the command by which an operator decides about rows that are refused.
func adoptForeign(system string) string { return mount.AdoptCommand(system) }
