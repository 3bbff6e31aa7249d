//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package witness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/hapax-id/hapax"
)

// lockFile takes the lock that the file at path stands for until it is closed
// or the process ends, or returns hapax.ErrStoreLocked. The file itself stays.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		cause := hapax.ErrStoreUnavailable
		if errors.Is(err, syscall.EWOULDBLOCK) {
			cause = hapax.ErrStoreLocked
		}
		return nil, errors.Join(fmt.Errorf("%w: lock file %s: %w", cause, path, err), f.Close())
	}
	return f, nil
}
