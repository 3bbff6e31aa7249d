package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A Margin is how far an Adopter raises the marks of an embedded store that was copied
// or moved. It must exceed all that the original granted after the copy was made.
type Margin = boltstore.Margin

// An Adoption tells what Adopt has found and changed.
type Adoption struct {
	api.Adoption

	Differences []string     // between where the store was and where it is now; what else is wrong is known once that is accepted
	Moved       []api.Raised // marks that were raised because it was copied or moved
}

// Marks returns all marks that are raised, or would be.
func (a Adoption) Marks() []api.Raised { return slices.Concat(a.Moved, a.Raised) }

// An Adopter carries out what an operator says about the store of a data directory
// whose server does not run: as a node of it, which waits for the operator's word.
type Adopter struct {
	config  Config
	margin  Margin
	witness *witness.Witness // nil: there is no node
	guard   *witness.Guarded // nil until it is used
}

// OpenAdopter opens a data directory. Where there is none, an embedded store is that of the node in
// the store's directory, or else nobody's. Close must be called.
func OpenAdopter(c Config, margin Margin) (*Adopter, error) {
	if path := boltPath(c.Store, c.Data); path != "" && !isThere(c.Data) && isThere(path) {
		dir := filepath.Dir(path)
		if !isThere(filepath.Join(dir, instanceFile)) {
			return &Adopter{config: c, margin: margin}, nil
		}
		c.Data = dir
	}
	if _, err := os.Stat(c.Data); err != nil {
		return nil, &hapax.ValueError{Field: "data", Value: c.Data, Allowed: fmt.Sprintf("the data directory of a node: %v", bare(err)), Err: hapax.ErrInvalidArgument}
	}
	if isVolatile(c.Store) {
		return nil, &hapax.ValueError{Field: "store", Value: c.Store, Allowed: "one that remembers something", Err: hapax.ErrInvalidArgument}
	}
	w, err := openWitness(c.Data, c.Witness)
	if err != nil {
		return nil, err
	}
	return &Adopter{config: c, margin: margin, witness: w}, nil
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Adopt is witness.Guarded.Adopt, or Settle where the statement is of one node. An
// embedded store that was copied or moved is raised by the margin first, and the node
// gets a new identity; the original must never be used again, which nothing can check.
func (a *Adopter) Adopt(ctx context.Context, st witness.Statement) (Adoption, error) {
	var found Adoption
	if path := boltPath(a.config.Store, a.config.Data); path != "" && a.guard == nil {
		moved, err := adoptFile(ctx, a.config, path, a.margin, st.DryRun)
		if err != nil {
			return found, err
		}
		found.StoreID, found.Differences, found.Moved = moved.StoreID, moved.Differences, health.RaisedOf(moved.Raised)
		if st.DryRun && len(found.Differences) > 0 {
			return found, nil // the store cannot be opened before
		}
	}
	if a.witness == nil {
		return found, nil
	}
	if a.guard == nil {
		o := newOpener(a.config, slog.New(slog.DiscardHandler))
		opts := o.guardOptions(nil)
		opts.Hold = true
		var err error
		if a.guard, err = o.guard(ctx, a.witness, opts); err != nil {
			return found, err
		}
	}
	declare := a.guard.Adopt
	if st.Row != "" {
		declare = a.guard.Settle
	}
	adoption, err := declare(ctx, st)
	found.Adoption = health.AdoptionOf(adoption)
	return found, err
}

// Close releases the directory.
func (a *Adopter) Close() error {
	var err error
	if a.guard != nil {
		err = a.guard.Close()
	}
	if a.witness != nil {
		err = errors.Join(err, a.witness.Close())
	}
	return err
}

// adoptFile adopts an embedded store that was copied or moved, and gives the node
// a new identity then.
func adoptFile(ctx context.Context, c Config, path string, margin Margin, dryRun bool) (boltstore.Adoption, error) {
	moved, err := boltstore.Inspect(ctx, path, margin)
	if err != nil || len(moved.Differences) == 0 || dryRun {
		return moved, err
	}
	if moved, err = boltstore.Adopt(ctx, path, margin); err != nil {
		return moved, err
	}
	// Under the identity of the original, which may be running, this node would take its worker IDs
	// for its own.
	err = os.Remove(filepath.Join(c.Data, instanceFile))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return moved, err
}
