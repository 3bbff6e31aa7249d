package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// ErrLocked means that another process holds a lock.
var ErrLocked = errors.New("it is locked by another process")

// TryLock takes an exclusive lock on a file, which it creates if need be, until it
// is closed. Where the system can tell, a link in its place is not followed. The system
// releases the lock when the process dies; the file stays. ErrLocked;
// errors.ErrUnsupported where files cannot be locked.
func TryLock(path string) (io.Closer, error) {
	// Only a file that is made here gets another owner: one that is there may be another name of root's own.
	f, err := create(path, os.O_RDWR)
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock file %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Lock is TryLock, but waits for the holder of the lock until the context ends.
func Lock(ctx context.Context, path string) (io.Closer, error) {
	// A lock that blocks cannot be given up, so this asks again and again.
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		l, err := TryLock(path)
		if !errors.Is(err, ErrLocked) {
			return l, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
