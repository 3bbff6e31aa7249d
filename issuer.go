package hapax

import "context"

// Issuer issues numbers, each at most once and, as seen by any one caller,
// strictly increasing. All methods are safe for concurrent use.
//
// Where a layout has the worker above the time, as the vesta-legacy ones do, that
// holds as long as the worker ID stays the same: an issuer that lost its lease goes
// on with another one, whose numbers may be lower.
type Issuer interface {
	// Next issues one number. The context is consulted only when the call must
	// wait; when it ends first, the error is a *WaitError.
	Next(ctx context.Context) (ID, error)

	// NextN fills dst in ascending order, waiting as needed. dst[:n] is issued
	// even when err is not nil.
	NextN(ctx context.Context, dst []ID) (n int, err error)

	// Close stops issuing and hands back what the store can take back. It is
	// idempotent; later calls of the other methods return ErrClosed.
	Close(ctx context.Context) error
}

var (
	_ Issuer = (*Segment)(nil)
	_ Issuer = (*Snowflake)(nil)
)
