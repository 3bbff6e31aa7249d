package sqlstore

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// A class tells what an error of the server or the network means.
type class int

const (
	unknown    class = iota // it may have been carried out, or trying again is of no use
	undone                  // certainly not carried out, and worth another try
	exists                  // a row with this key, or a table, exists already
	noTable                 // a table does not exist
	noColumn                // a column does not exist
	noVariable              // a variable of the server does not exist
	readOnly                // the server does not accept writes
	forbidden               // the account is not allowed to do this
	switched                // the session is not the one that the connection had before
)

// errSwitched is the error of a session that another connection has set up.
var errSwitched = errors.New("another connection uses this session, too")

// A connectError is a failure to make a connection or to check it: nothing of
// the call was sent on it.
type connectError struct{ err error }

func (e *connectError) Error() string { return "connect: " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// do runs f on a connection within the call's time limit, and again as long as
// it certainly had no effect.
func (s *Store) do(ctx context.Context, op string, f func(ctx context.Context, c *sql.Conn) error) error {
	return s.retry(ctx, op, func(ctx context.Context) error { return s.on(ctx, f) })
}

// retry runs f within the call's time limit, and again as long as it certainly
// had no effect.
func (s *Store) retry(ctx context.Context, op string, f func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var last error // of the attempt before
	for failures := 1; ; failures++ {
		err := limited.Err()
		if err == nil {
			err = f(limited)
		}
		if err == nil {
			return nil
		}
		if last != nil && errors.Is(err, context.DeadlineExceeded) {
			err = last // it says more than that the time is over
		}
		last = err
		if s.class(err) != undone || !pause(limited, hapax.Backoff(failures)) {
			return s.fail(ctx, op, err)
		}
	}
}

// once runs f within the call's time limit.
func (s *Store) once(ctx context.Context, op string, f func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	if err := f(limited); err != nil {
		return s.fail(ctx, op, err)
	}
	return nil
}

// pause waits for d, and reports whether the context allowed it.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Store) class(err error) class {
	// The store's own word, such as that it is another one, is no failure of the connection.
	if carriesSentinel(err) {
		return unknown
	}
	c := s.dialect.classify(err)
	_, connecting := errors.AsType[*connectError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	// Another attempt makes no certificate trusted, and a server that has answered would say the same.
	if connecting && c == unknown && !untrusted && !s.dialect.answered(err) {
		return undone
	}
	return c
}

func carriesSentinel(err error) bool {
	_, ok := errors.AsType[*hapax.Error](err)
	return ok
}

// fail turns what went wrong into an error with a sentinel. The error of the
// caller's own context stays visible; the store's time limit does not look like
// it.
func (s *Store) fail(ctx context.Context, op string, err error) error {
	op = string(s.dialect.name) + ": " + op
	cause := context.Cause(ctx)
	switch {
	case carriesSentinel(err):
		return err
	case s.closed.Load():
		return fmt.Errorf("%w: the %s store: %s: %w", hapax.ErrClosed, s.dialect.name, op, err)
	case cause != nil && (errors.Is(err, cause) || errors.Is(err, ctx.Err())):
		return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, op, cause)
	case cause != nil:
		return fmt.Errorf("%w: %s: %w: %w", hapax.ErrStoreUnavailable, op, cause, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s: no answer within %v: %v", hapax.ErrStoreUnavailable, op, s.opts.Timeout, err)
	}
	switch s.dialect.classify(err) {
	case readOnly:
		return fmt.Errorf("%w: %s: the server is read-only; use the primary: %w", hapax.ErrStoreUnsafe, op, err)
	case noTable:
		return fmt.Errorf("%w: %s: a table is gone: %w", hapax.ErrStoreReplaced, op, err)
	case switched:
		return fmt.Errorf("%w: %s: a pooler in front of the server changes the session between statements, as PgBouncer does with pool_mode = transaction; use pool_mode = session, or connect to the server itself: %w", hapax.ErrStoreUnsafe, op, err)
	case forbidden:
		return fmt.Errorf("%w: %s: the account lacks a right, see sqlstore.New: %w", hapax.ErrStoreUnavailable, op, err)
	}
	return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, op, err)
}
