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
	"strings"

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
// one that this node works with, raises the floor of each tag that this node
// knows to be further, and gives the node a new identity.
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
	if path := boltPath(c.Store, c.Data); path != "" {
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
		err = raiseFloors(ctx, store, witness, &a)
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

// raiseFloors lifts the tags that are behind what this node has used, and
// restores those that the store has lost.
func raiseFloors(ctx context.Context, store hapax.Store, witness *hapax.Witness, a *Adoption) error {
	lines := witness.Lines()
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		name, ok := strings.CutPrefix(line, hapax.TagLine(""))
		if !ok {
			continue
		}
		from, err := raiseFloor(ctx, store, name, lines[line])
		if err != nil {
			return fmt.Errorf("tag %q: %w", name, err)
		}
		if from < lines[line] {
			a.Raised = append(a.Raised, Raised{Tag: name, From: from, To: lines[line]})
		}
	}
	return nil
}

// raiseFloor returns the tag's mark as it was.
func raiseFloor(ctx context.Context, store hapax.Store, name string, mark int64) (int64, error) {
	tag, err := store.Tag(ctx, name)
	if errors.Is(err, hapax.ErrTagNotFound) {
		def, err := hapax.Tag{Name: name, Start: mark}.WithDefaults()
		if err == nil {
			_, err = store.CreateTag(ctx, def, hapax.CreateExplicit)
		}
		return 0, err
	}
	if err != nil || tag.Deleted || tag.Mark >= mark {
		return max(tag.Mark, mark), err
	}
	_, err = store.UpdateTag(ctx, name, hapax.TagUpdate{Floor: &mark})
	return tag.Mark, err
}
