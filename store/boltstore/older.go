package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Buckets of the first version, which had pools and workers in buckets of their own.
var (
	bucketPoolsBefore   = []byte("pools")
	bucketWorkersBefore = []byte("workers")
)

// isOlder reports whether a file has the first version's buckets.
func isOlder(tx *bbolt.Tx) bool { return tx.Bucket(bucketWorkersBefore) != nil }

var _ driver.Migrated = (*Store)(nil)

// Migrated implements driver.Migrated.
func (s *Store) Migrated() string { return s.migrated }

// migrate moves what the first version left into the rows of this one, and says what
// that was; nothing where there is nothing of it.
func migrate(inner *bbolt.Tx) (what string, err error) {
	if !isOlder(inner) {
		return "", nil
	}
	what = fmt.Sprintf("a file of format %q became one of format %q: %d tags, %d pools and workers", formatBefore, format,
		inner.Bucket(bucketTags).Stats().KeyN, inner.Bucket(bucketPoolsBefore).Stats().KeyN+inner.Bucket(bucketWorkersBefore).Stats().KeyN)
	if _, err := inner.CreateBucketIfNotExists(bucketRows); err != nil {
		return "", err
	}
	tx, err := newTransaction(inner)
	if err != nil {
		return "", err
	}
	for _, move := range []func(*transaction) error{movePools, moveWorkers, moveTags} {
		if err := move(tx); err != nil {
			return "", err
		}
	}
	for _, bucket := range [][]byte{bucketPoolsBefore, bucketWorkersBefore} {
		if err := tx.DeleteBucket(bucket); err != nil {
			return "", err
		}
	}
	return what, tx.finish()
}

// putRow adds a row in place of a record of the first version.
func (tx *transaction) putRow(table, name string, value []byte) error {
	key := rowKey(table, name)
	return tx.replace(bucketRows, key, seal(bucketRows, key, value))
}

func movePools(tx *transaction) error {
	return tx.Bucket(bucketPoolsBefore).ForEach(func(key, value []byte) error {
		var pool struct {
			Layout string `json:"layout"`
		}
		if err := decode(bucketPoolsBefore, key, value, &pool); err != nil {
			return err
		}
		tx.total.count(value, -1)
		return tx.putRow(driver.RowOfPool(driver.Pool{Name: string(key), Layout: pool.Layout}))
	})
}

func moveWorkers(tx *transaction) error {
	return tx.Bucket(bucketWorkersBefore).ForEach(func(key, value []byte) error {
		var w struct {
			Mark   int64  `json:"mark"`
			Epoch  int64  `json:"epoch"` // the fencing token
			Holder string `json:"holder"`
		}
		if err := decode(bucketWorkersBefore, key, value, &w); err != nil {
			return err
		}
		n := len(key) - 9 // a zero byte and the ID follow the pool
		if n < 1 || key[n] != 0 {
			return fmt.Errorf("%w: worker %q has no pool", errDamaged, key)
		}
		tx.total.count(value, -1)
		return tx.putRow(driver.RowOfWorker(driver.Worker{
			Pool: string(key[:n]), ID: int64(binary.BigEndian.Uint64(key[n+1:])), Mark: w.Mark, Token: w.Epoch, Holder: w.Holder,
		}))
	})
}

// moveTags fills in what the first version did not know.
func moveTags(tx *transaction) error {
	records := map[string]tagRecord{}
	if err := tx.Bucket(bucketTags).ForEach(func(key, value []byte) error {
		var r tagRecord
		err := decode(bucketTags, key, value, &r)
		records[string(key)] = r
		return err
	}); err != nil {
		return err
	}
	for name, r := range records {
		if r.Kind == hapax.KindSegment && r.Delta == 0 {
			r.Delta = 1
			if err := tx.put(bucketTags, []byte(name), r); err != nil {
				return err
			}
		}
	}
	return nil
}

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
			if err == nil && isOlder(tx) {
				err = &driver.WouldChangeError{What: fmt.Sprintf("the file of format %q becomes one of format %q", head.Format, format)}
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
