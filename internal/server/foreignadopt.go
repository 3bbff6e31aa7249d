package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

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
	owner, err := c.owner(system)
	if err != nil {
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
	table, err := owner.OpenTable(ctx, mount.TableOptions{Timeout: c.StoreTimeout, Witness: w, Warn: warn})
	if err == nil {
		a.Raised, err = table.Adopt(ctx, margin, dryRun)
		err = errors.Join(err, table.Close())
	}
	return a, errors.Join(err, w.Close())
}

// owner returns the settings of a system with tables of its own.
func (c Config) owner(system string) (mount.Owner, error) {
	if owner, ok := c.Mounts[system].(mount.Owner); ok && owner.HasTable() {
		return owner, nil
	}
	return nil, &hapax.ValueError{
		Field: "--foreign", Value: system, Err: hapax.ErrInvalidArgument,
		Allowed: strings.Join(Owners(), " or ") + ", with its table or databases in the configuration: give that with --config or $HAPAX_CONFIG",
	}
}

// Owners are the names of the systems with tables of their own.
func Owners() (names []string) {
	for _, s := range systems {
		if _, ok := s.New().(mount.Owner); ok {
			names = append(names, s.Name)
		}
	}
	return names
}
