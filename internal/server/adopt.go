package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A Margin is how far Adopt raises the marks of an embedded store that was copied
// or moved. It must exceed all that the original granted after the copy was made.
type Margin = boltstore.Margin

// An AdoptRequest says what to adopt.
type AdoptRequest struct {
	witness.Statement

	Margin    Margin
	Witnesses []string // files of witnesses whose nodes do not run
}

// An Adoption tells what Adopt has found and changed.
type Adoption struct {
	witness.Adoption

	Differences []string // between where the store was and where it is now; what else is wrong is known once that is accepted
	Moved       []Raised // marks that were raised because it was copied or moved
}

// Raised is one mark that was raised.
type Raised = boltstore.Raised

// Adopt makes the store of a data directory usable again after it was restored,
// replaced, copied or moved, by the rules that hold at a running server: the directory's
// witness and the given ones are heard, and the nodes that live; who is missing is spoken
// for by the request. An embedded store that was copied or moved is raised by the margin
// first, and the node gets a new identity; the original must never be used again, which
// nothing can check.
//
// Where nothing is wrong it changes nothing.
func Adopt(ctx context.Context, c Config, req AdoptRequest) (Adoption, error) {
	if _, err := os.Stat(c.Data); err != nil {
		return Adoption{}, fmt.Errorf("%w: the data directory: %w", hapax.ErrStoreUnavailable, err)
	}
	w, err := openWitness(c.Data, c.Witness)
	if err != nil {
		return Adoption{}, err
	}
	a, err := adopt(ctx, c, req, w)
	return a, errors.Join(err, w.Close())
}

func adopt(ctx context.Context, c Config, req AdoptRequest, w *witness.Witness) (Adoption, error) {
	var a Adoption
	for _, path := range req.Witnesses {
		said, err := witness.Read(path)
		if err != nil {
			return a, err
		}
		req.Witness = append(req.Witness, said)
	}
	if path := boltPath(c.Store, c.Data); path != "" {
		moved, err := adoptFile(ctx, c, path, req)
		if err != nil {
			return a, err
		}
		a.Differences, a.Moved = moved.Differences, moved.Raised
		if req.DryRun && len(a.Differences) > 0 {
			return a, nil // the store cannot be opened before
		}
	}
	o := newOpener(c, slog.New(slog.DiscardHandler))
	o.adopt = !req.DryRun
	opts := o.guardOptions(nil)
	opts.Manual = true // this process decides nothing without the operator
	var g *witness.Guarded
	var err error
	if o.isShared() {
		g, err = witness.GuardOpened(o.open, w, opts)
	} else {
		var store hapax.Store
		if store, err = o.open(ctx); err != nil {
			return a, err
		}
		g, err = witness.Guard(store, w, opts)
	}
	if err != nil {
		return a, err
	}
	declare := g.Adopt
	if req.Row != "" {
		declare = g.Settle
	}
	a.Adoption, err = declare(ctx, req.Statement)
	return a, errors.Join(err, g.Close())
}

// adoptFile adopts an embedded store that was copied or moved, and gives the node
// a new identity then.
func adoptFile(ctx context.Context, c Config, path string, req AdoptRequest) (boltstore.Adoption, error) {
	moved, err := boltstore.Inspect(ctx, path, req.Margin)
	if err != nil || len(moved.Differences) == 0 || req.DryRun {
		return moved, err
	}
	if moved, err = boltstore.Adopt(ctx, path, req.Margin); err != nil {
		return moved, err
	}
	err = os.Remove(filepath.Join(c.Data, instanceFile))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return moved, err
}
