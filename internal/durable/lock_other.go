//go:build !unix

package durable

import (
	"context"
	"fmt"
	"runtime"

	"github.com/hapax-id/hapax"
)

// Lock takes an exclusive lock on a file; no file can be locked here.
func Lock(context.Context, string) (unlock func() error, err error) {
	return nil, fmt.Errorf("%w: files cannot be locked on %s", hapax.ErrNotSupported, runtime.GOOS)
}
