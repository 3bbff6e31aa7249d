//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package witness

import (
	"fmt"
	"io"
	"os"

	"github.com/hapax-id/hapax"
)

// lockFile creates the lock file and keeps it open. The standard library cannot
// lock files on this system, so that nothing keeps a second process out.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	return f, nil
}
