package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/boltstore"
)

// A Margin is how far Adopt raises the marks of an embedded store. It must exceed
// all that the original granted after the copy was made.
type Margin = boltstore.Margin

// An Adoption tells what Adopt has changed.
type Adoption struct {
	StoreID     string
	Differences []string // between the recorded file and machine and the present ones
	Raised      []Raised
}

// Raised is one mark that was raised.
type Raised = boltstore.Raised

// Adopt makes the data directory, and an embedded store in it, usable again
// after they were copied, moved to another machine or restored from a backup: it
// raises every mark of an embedded store by the margin, accepts the store as the
// one that this node works with, raises each tag and worker that this node knows
// to be further, and gives the node a new identity.
//
// The original must never be used again, which nothing can check. A shared
// store's marks stay, but for those that are behind what this node knows.
func Adopt(ctx context.Context, c Config, margin Margin) (Adoption, error) {
	if _, err := os.Stat(c.Data); err != nil {
		return Adoption{}, fmt.Errorf("%w: the data directory: %w", hapax.ErrStoreUnavailable, err)
	}
	witness, err := openWitness(c.Data)
	if err != nil {
		return Adoption{}, err
	}
	a, err := adopt(ctx, c, margin, witness)
	return a, errors.Join(err, witness.Close())
}

func adopt(ctx context.Context, c Config, margin Margin, witness *hapax.Witness) (Adoption, error) {
	var a Adoption
	beyond := int64(0)
	if path := boltPath(c.Store, c.Data); path != "" {
		beyond = margin.Numbers
		adopted, err := boltstore.Adopt(ctx, path, margin)
		if err != nil {
			return a, err
		}
		a.Differences, a.Raised = adopted.Differences, adopted.Raised
	}
	o := newOpener(c, slog.New(slog.DiscardHandler))
	o.adopt = true
	store, err := o.open(ctx)
	if err != nil {
		return a, err
	}
	a.StoreID, err = store.StoreID(ctx)
	if err == nil {
		err = raiseFloors(ctx, store, witness, beyond, &a)
	}
	if err == nil {
		err = witness.Adopt(a.StoreID)
	}
	if err == nil {
		err = os.Remove(filepath.Join(c.Data, instanceFile))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return a, errors.Join(err, store.Close())
}

// raiseFloors lifts the tags and workers that are behind what this node has used,
// and restores those that the store has lost. An embedded store was perhaps used
// without this node's witness, so its tags are lifted by the margin more.
func raiseFloors(ctx context.Context, store hapax.Store, witness *hapax.Witness, margin int64, a *Adoption) error {
	lines := witness.Lines()
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		var r Raised
		var err error
		if name, ok := strings.CutPrefix(line, hapax.TagLine("")); ok {
			r, err = raiseFloor(ctx, store, name, lines[line], margin)
		} else if pool, id, ok := cutWorkerLine(line); ok {
			r, err = raiseWorker(ctx, store, pool, id, lines[line])
		}
		if err != nil {
			return fmt.Errorf("line %q: %w", line, err)
		}
		if r.To > r.From {
			a.Raised = append(a.Raised, r)
		}
	}
	return nil
}

// raiseFloor returns what it did to the tag.
func raiseFloor(ctx context.Context, store hapax.Store, name string, mark, margin int64) (Raised, error) {
	floor := min(mark, hapax.MaxMark-margin) + margin
	tag, err := store.Tag(ctx, name)
	if errors.Is(err, hapax.ErrTagNotFound) {
		def, err := hapax.Tag{Name: name, Start: floor}.WithDefaults()
		if err == nil {
			_, err = store.CreateTag(ctx, def, hapax.CreateExplicit)
		}
		return Raised{Tag: name, To: floor}, err
	}
	if err != nil || tag.Deleted || tag.Mark >= mark {
		return Raised{}, err
	}
	_, err = store.UpdateTag(ctx, name, hapax.TagUpdate{Floor: &floor})
	return Raised{Tag: name, From: tag.Mark, To: floor}, err
}

// raiseWorker returns what it did to the worker, which nobody holds then. In a
// store that has no table of workers they catch up as time goes on.
func raiseWorker(ctx context.Context, store hapax.Store, pool string, id, mark int64) (Raised, error) {
	t, ok := store.(hapax.WorkerTable)
	if !ok {
		return Raised{}, nil
	}
	old, err := t.Worker(ctx, pool, id)
	if err != nil || old.Mark >= mark {
		return Raised{}, err
	}
	next := hapax.Worker{Pool: pool, ID: id, Mark: mark, Epoch: old.Epoch + 1, Expires: time.UnixMilli(0)}
	ok, err = t.SwapWorker(ctx, old, next)
	if err == nil && !ok {
		err = fmt.Errorf("%w: pool %q, worker %d was changed meanwhile; run adopt again", hapax.ErrLeaseLost, pool, id)
	}
	return Raised{Pool: pool, Worker: id, From: old.Mark, To: mark}, err
}

// cutWorkerLine returns what hapax.WorkerLine was given, and false for other lines.
func cutWorkerLine(line string) (pool string, id int64, ok bool) {
	i := strings.LastIndexByte(line, '/')
	id, err := strconv.ParseInt(line[i+1:], 10, 64)
	_, pool, _ = strings.Cut(line[:max(i, 0)], "/") // a pool may have slashes in its name
	return pool, id, err == nil && line == hapax.WorkerLine(pool, id)
}
