//go:build unix

package durable

import (
	"os"
	"path/filepath"
	"syscall"
)

// own gives a file that root has just made to the owner of its directory: a service that runs as
// another user could not open it, after one command of root's.
func own(f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	dir, err := os.Stat(filepath.Dir(f.Name()))
	if err != nil {
		return err
	}
	if of, ok := dir.Sys().(*syscall.Stat_t); ok && of.Uid != 0 {
		// Where root may not, as on some network file systems, the file stays as it was made.
		_ = f.Chown(int(of.Uid), int(of.Gid))
	}
	return nil
}
