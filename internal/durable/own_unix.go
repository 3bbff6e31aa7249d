//go:build unix

package durable

import (
	"errors"
	"io/fs"
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
	user, group, err := owner(filepath.Dir(f.Name()))
	if err == nil && user != 0 {
		// Where root may not, as on some network file systems, the file stays as it was made.
		_ = f.Chown(user, group)
	}
	return err
}

// ownDir is own for a directory.
func ownDir(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	user, group, err := owner(filepath.Dir(path))
	if err == nil && user != 0 {
		_ = os.Lchown(path, user, group)
	}
	return err
}

func owner(path string) (user, group int, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	if of, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(of.Uid), int(of.Gid), nil
	}
	return 0, 0, nil
}

// Foreign returns the paths within a directory that are not its owner's; none for a directory of
// root's, who may open all.
func Foreign(dir string) (paths []string, err error) {
	user, _, err := owner(dir)
	if err != nil || user == 0 {
		return nil, err
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		// A directory that this user may not read has been named, or a volume has brought it along.
		case errors.Is(err, fs.ErrPermission) && path != dir, err == nil && e.IsDir() && e.Name() == "lost+found":
			return fs.SkipDir
		case err != nil || e.Type()&fs.ModeSymlink != 0:
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		if of, ok := info.Sys().(*syscall.Stat_t); ok && int(of.Uid) != user {
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}
