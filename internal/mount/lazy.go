package mount

import (
	"context"
	"io"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ondemand"
)

// reopenAfter is the pause after a table could not be opened.
const reopenAfter = 300 * time.Millisecond

// NewLazy returns a handle that its first use opens. After a failure later uses try again, reopenAfter
// apart, until the database or tree answers.
func NewLazy[T io.Closer](open func(context.Context) (T, error)) *ondemand.Handle[T] {
	began := time.Now()
	return ondemand.New(ondemand.Options[T]{
		Open: open, Pause: reopenAfter, Clock: func() time.Duration { return time.Since(began) }, Ended: hapax.ErrClosed,
	})
}
