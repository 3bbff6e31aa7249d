package mount

import (
	"context"
	"io"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ondemand"
)

// reopenAfter is how long a table that could not be opened is not tried again.
const reopenAfter = 300 * time.Millisecond

// NewLazy returns a handle that is opened when its database or tree first answers, and tried again
// until then.
func NewLazy[T io.Closer](open func(context.Context) (T, error)) *ondemand.Handle[T] {
	began := time.Now()
	return ondemand.New(ondemand.Options[T]{
		Open: open, Pause: reopenAfter, Clock: func() time.Duration { return time.Since(began) }, Ended: hapax.ErrClosed,
	})
}
