package boltstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/batch"
)

// maxBatch bounds how many requests share a transaction.
const maxBatch = 1024

// A request is one change. It puts as its last step, so that a request that fails in
// judging leaves nothing behind in the transaction that it shares.
type request struct {
	ctx context.Context
	run func(*transaction) error
}

// writing returns the way to a transaction: all that was asked for while one was being written
// goes into the next.
func (s *Store) writing() *batch.Batch[request, error] {
	return batch.New(batch.Options[request, error]{
		Trip: s.commit, Most: maxBatch,
		Apart: true, // a disk that hangs heeds no context
		Left:  unavailable, Closed: errClosed(s.path),
	})
}

// write has f run in a transaction, and returns its result once that is durable.
// If the context ends before, the outcome is unknown.
func write[T any](ctx context.Context, s *Store, f func(*transaction) (T, error)) (T, error) {
	var result, zero T // the former belongs to the transaction until that has ended
	failed, err := s.writes.Do(ctx, request{ctx, func(tx *transaction) (err error) { result, err = f(tx); return err }})
	if err = cmp.Or(err, failed); err != nil {
		return zero, err
	}
	return result, nil
}

// commit runs requests in one transaction, and returns the outcome of each.
func (s *Store) commit(_ context.Context, all []request) ([]error, error) {
	errs := make([]error, len(all))
	// Before each transaction: from a file that was moved away nobody learns what was granted.
	err := s.checkPath()
	if failed := s.failed.Load(); failed != nil {
		err = *failed
	} else if err == nil {
		switch err = s.runAll(all, errs); {
		case err == nil:
		case recoverable(err):
			err = fmt.Errorf("%w: %s: %w: %w", hapax.ErrStoreUnavailable, s.path, syscall.ENOSPC, err)
			s.full.Store(&err)
		default:
			err = fmt.Errorf("%w; what is on disk is unknown, and nothing is granted until a restart", explain(s.path, err))
			s.failed.Store(&err)
		}
	}
	for i := range errs {
		if errs[i] = cmp.Or(errs[i], err); errs[i] != nil {
			errs[i] = explain(s.path, errs[i])
		}
	}
	return errs, nil
}

// runAll notes in errs which requests failed by themselves, and returns why the
// transaction as a whole did.
func (s *Store) runAll(all []request, errs []error) error {
	return guard(func() error {
		inner, err := s.db.Begin(true)
		if err != nil {
			return err
		}
		defer inner.Rollback() // does nothing after a commit
		tx, err := newTransaction(inner)
		if err != nil {
			return err
		}
		for i, r := range all {
			// Its caller has gone: what it asked for would only be a gap.
			if err := context.Cause(r.ctx); err != nil {
				errs[i] = unavailable(err)
			} else {
				errs[i] = r.run(tx)
			}
		}
		// Nothing to make durable where all requests were refused: that saves the sync.
		if !tx.changed {
			return nil
		}
		if err := tx.finish(); err != nil {
			return err
		}
		return inner.Commit()
	})
}

// recoverable reports whether a failed write left the file as it was. That is so
// when there was no room for it; after another error, such as a failed sync, a
// later success proves nothing about what is on disk. bbolt passes the cause of
// a failed resize on as text.
func recoverable(err error) bool {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, full) || strings.HasSuffix(err.Error(), full.Error()) {
			return true
		}
	}
	return false
}
