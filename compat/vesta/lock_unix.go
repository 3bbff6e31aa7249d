//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package vesta

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// lockFile takes the lock that the file at path stands for until it is closed or the
// process ends, or returns errInUse. Another user's file will do: it is opened for
// reading only.
func lockFile(path string) (io.Closer, error) {
	var f *os.File
	var err error
	for range 2 { // the second time, another process has created it
		// The directory may be everybody's: a link in it would have another file locked, or made.
		f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
		f, err = os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // other users lock it, too; it is empty
		if !errors.Is(err, os.ErrExist) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = errInUse
	default:
		err = fmt.Errorf("lock file %s: %w", path, err)
	}
	return nil, errors.Join(err, f.Close())
}

// markFile writes a word into a lock file that this process has locked. One of another
// user is left as it is: then nobody is known to have had it last.
func markFile(path, word string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	_, _ = f.WriteString(word + "\n") // a word that is cut off is nobody's
	_ = f.Close()
}
