package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
)

// A Margin is how far [Adopt] raises the marks. It must exceed all that the
// original granted after the copy was made.
type Margin struct {
	Numbers int64         // for every tag; 1 to MaxMark
	Time    time.Duration // for every worker, beyond its mark and beyond now; default 10 min
}

// An Adoption tells what [Adopt] has changed.
type Adoption struct {
	StoreID     string
	Differences []string        // between the recorded file and machine and the present ones
	Raised      []driver.Raised // in numbers or in ticks
}

// Adopt makes a copied store usable: it raises the mark of every tag and every
// worker and records the present file and machine as the store's. The store ID
// stays. The original must never be used again; nothing can check that.
//
// Every lease ends, so that whoever holds one from the original must acquire
// anew. A mark that the margin would raise beyond the end of its line is raised
// to the end: such a line has nothing left. The file must not be open.
func Adopt(ctx context.Context, path string, margin Margin) (Adoption, error) {
	return adopt(ctx, path, margin, identify, false)
}

// Inspect returns what [Adopt] would find and do, and changes nothing.
func Inspect(ctx context.Context, path string, margin Margin) (Adoption, error) {
	return adopt(ctx, path, margin, identify, true)
}

// errInspected rolls back what was done to see what would be.
var errInspected = errors.New("nothing is to be changed")

func adopt(ctx context.Context, path string, margin Margin, identify identifier, inspect bool) (Adoption, error) {
	if margin.Time == 0 {
		margin.Time = 10 * time.Minute
	}
	switch {
	case margin.Numbers < 1 || margin.Numbers > hapax.MaxMark:
		return Adoption{}, &hapax.ValueError{Field: "margin", Value: margin.Numbers, Allowed: fmt.Sprintf("1 to %d numbers", int64(hapax.MaxMark)), Err: hapax.ErrInvalidArgument}
	case margin.Time < 0:
		return Adoption{}, &hapax.ValueError{Field: "margin", Value: margin.Time, Allowed: "a positive duration", Err: hapax.ErrInvalidArgument}
	}
	// Opening would make a file where there is none.
	if _, err := os.Stat(path); err != nil {
		return Adoption{}, explain(path, err)
	}
	s, file, err := openFile(ctx, path, 0, false)
	if err != nil {
		return Adoption{}, err
	}
	defer s.db.Close()
	var a Adoption
	err = guard(func() error {
		now, err := identify(file)
		if err != nil {
			return err
		}
		if err := s.db.Update(func(tx *bbolt.Tx) error {
			a, err = raise(ctx, tx, file, margin, now)
			if err == nil && inspect {
				err = errInspected
			}
			return err
		}); err != nil {
			return err
		}
		// A second transaction renews the other meta page too, should it be damaged.
		return s.renew()
	})
	if errors.Is(err, errInspected) {
		return a, nil
	}
	if err == nil {
		err = durable.OS.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return Adoption{}, explain(path, err)
	}
	return a, nil
}

// raise raises every mark and records the identity.
func raise(ctx context.Context, inner *bbolt.Tx, file *os.File, margin Margin, now identity) (Adoption, error) {
	head, err := readHeader(inner)
	if err != nil {
		return Adoption{}, err
	}
	if head.ID == "" {
		return Adoption{}, fmt.Errorf("%w: it is empty, there is nothing to adopt", errDamaged)
	}
	if err := verify(inner); err != nil {
		return Adoption{}, err
	}
	tx, err := newTransaction(inner)
	if err != nil {
		return Adoption{}, err
	}
	rows := driver.NewBase(&driver.Calls{Service: file.Name(), Timeout: -1}, within{tx}, driver.BaseOptions{})
	raised, err := rows.RaiseAll(ctx, margin.Numbers, margin.Time)
	if err != nil {
		return Adoption{}, err
	}
	if err := tx.finish(); err != nil {
		return Adoption{}, err
	}
	a := Adoption{StoreID: head.ID, Differences: append(head.Identity.Compare(now), compareGeneration(file, head)...), Raised: raised}
	head.Identity = now
	return a, writeHeader(inner, head)
}
