package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// errLooks is why a store that was opened with Options.Look grants nothing.
var errLooks = fmt.Errorf("%w: it was opened to be looked at only", hapax.ErrNotSupported)

// look opens the file at path as Open does, and changes nothing.
func look(ctx context.Context, path string, opts Options, identify identifier) (*Store, error) {
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return nil, &driver.WouldChangeError{What: driver.NewStore}
	}
	s, file, err := openFile(ctx, path, opts.LockWait, true)
	if err != nil {
		return nil, err
	}
	s.failed.Store(&errLooks)
	close(s.stopped) // there is no committer
	err = guard(func() error {
		if err := checkMeta(file, s.db.Info().PageSize); err != nil {
			return err
		}
		now, err := identify(file)
		if err != nil {
			return err
		}
		return s.db.View(func(tx *bbolt.Tx) error {
			head, err := readHeader(tx)
			if err == nil && head.ID == "" {
				return &driver.WouldChangeError{What: driver.NewStore}
			}
			if err == nil {
				err = verify(tx)
			}
			if err == nil && !opts.SkipIdentity {
				err = s.compare(file, head, now)
			}
			return err
		})
	})
	if err == nil {
		return s, nil
	}
	s.db.Close()
	if would, ok := errors.AsType[*driver.WouldChangeError](err); ok {
		return nil, would
	}
	return nil, explain(path, err)
}
