//go:build !unix

package filestore

import (
	"context"
	"fmt"
	"runtime"

	"github.com/hapax-id/hapax"
)

func lock(context.Context, string) (unlock func() error, err error) {
	return nil, fmt.Errorf("%w: files cannot be locked on %s", hapax.ErrNotSupported, runtime.GOOS)
}
