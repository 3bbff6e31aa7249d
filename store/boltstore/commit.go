package boltstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"

	"github.com/hapax-id/hapax"
)

// maxBatch bounds how many requests share a transaction.
const maxBatch = 1024

// A request is one change. It puts as its last step, so that a request that fails in
// judging leaves nothing behind in the transaction that it shares.
type request struct {
	ctx  context.Context
	run  func(*transaction) error
	done func(error) // called once, when the outcome is durable
}

// write has the committer run f, and returns its result once that is durable.
// If the context ends before, the outcome is unknown.
func write[T any](ctx context.Context, s *Store, f func(*transaction) (T, error)) (T, error) {
	type answer struct {
		result T
		err    error
	}
	var zero T
	if err := context.Cause(ctx); err != nil {
		return zero, unavailable(err)
	}
	answered := make(chan answer, 1)
	var result T // belongs to the committer
	r := request{
		ctx:  ctx,
		run:  func(tx *transaction) (err error) { result, err = f(tx); return err },
		done: func(err error) { answered <- answer{result, err} },
	}
	select {
	case s.requests <- r:
	case <-ctx.Done():
		return zero, unavailable(context.Cause(ctx))
	case <-s.stopped:
		return zero, errClosed(s.path)
	}
	select {
	case a := <-answered:
		if a.err != nil {
			return zero, a.err
		}
		return a.result, nil
	case <-ctx.Done():
		return zero, unavailable(context.Cause(ctx))
	case <-s.stopped:
		return zero, errClosed(s.path)
	}
}

// commitAll is the committer. All that was asked for while one transaction was
// being written goes into the next.
func (s *Store) commitAll() {
	defer close(s.stopped)
	for {
		select {
		case <-s.stop:
			return
		case r := <-s.requests:
			runtime.Gosched() // those who were answered just now may ask again, and then share this transaction
			batch := []request{r}
			for more := true; more && len(batch) < maxBatch; {
				select {
				case r := <-s.requests:
					batch = append(batch, r)
				default:
					more = false
				}
			}
			s.commit(batch)
		}
	}
}

// commit runs a batch in one transaction and answers every request in it.
func (s *Store) commit(batch []request) {
	errs := make([]error, len(batch))
	err := s.checkPath()
	if failed := s.failed.Load(); failed != nil {
		err = *failed
	} else if err == nil {
		switch err = s.runAll(batch, errs); {
		case err == nil:
		case recoverable(err):
			err = fmt.Errorf("%w: %s: %w: %w", hapax.ErrStoreUnavailable, s.path, syscall.ENOSPC, err)
			s.full.Store(&err)
		default:
			err = fmt.Errorf("%w; what is on disk is unknown, and nothing is granted until a restart", explain(s.path, err))
			s.failed.Store(&err)
		}
	}
	for i, r := range batch {
		switch {
		case errs[i] != nil:
			r.done(explain(s.path, errs[i]))
		case err != nil:
			r.done(explain(s.path, err))
		default:
			r.done(nil)
		}
	}
}

// runAll notes in errs which requests failed by themselves, and returns why the
// transaction as a whole did.
func (s *Store) runAll(batch []request, errs []error) error {
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
		for i, r := range batch {
			if err := context.Cause(r.ctx); err != nil {
				errs[i] = unavailable(err)
			} else {
				errs[i] = r.run(tx)
			}
		}
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
