package watch

import (
	"sync/atomic"

	"github.com/hapax-id/hapax"
)

// A Reason is why something has not succeeded yet. Its zero value is that the answer is still
// on its way.
type Reason struct{ err atomic.Pointer[error] }

// Set notes how an attempt went, nil for well.
func (r *Reason) Set(err error) {
	if err == nil {
		r.err.Store(nil)
	} else {
		r.err.Store(&err)
	}
}

// Err returns the reason, which is never nil.
func (r *Reason) Err() error {
	if err := r.err.Load(); err != nil {
		return *err
	}
	return hapax.ErrRefillPending
}
