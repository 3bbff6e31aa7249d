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
	witness.AdoptRequest

	Margin    Margin
	Witnesses []string // files of witnesses whose nodes do not live
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
// replaced, copied or moved: it raises every mark above what the directory's
// witness, the given ones and the living nodes know, and lifts the fence. An
// embedded store that was copied or moved is raised by the margin first, and the
// node gets a new identity; the original must never be used again, which nothing
// can check.
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
		lines, err := witness.Read(path)
		if err != nil {
			return a, err
		}
		req.Lines = append(req.Lines, lines)
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
	store, err := o.open(ctx)
	if req.DryRun && (errors.Is(err, hapax.ErrStoreReplaced) || errors.Is(err, hapax.ErrStoreUnsafe)) {
		a.Differences = append(a.Differences, hapax.Message(err))
		return a, nil // likewise
	}
	if err != nil {
		return a, err
	}
	a.Adoption, err = witness.AdoptWith(ctx, store, w, req.AdoptRequest)
	return a, errors.Join(err, store.Close())
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
