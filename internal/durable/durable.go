// Package durable replaces files so that a power loss at any moment leaves the
// old one or the new one, whole, and the new one once Replace has returned.
//
//	create path.tmp -> write -> sync it -> rename it to path -> sync the directory
//
// A rename that is not synced may be undone; a file that is not synced may be
// empty though its name is there. What a sync does is the system's affair: on
// macOS it makes the disk write its cache, on Windows the rename is written
// through and directories cannot be synced.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// A Disk is what Replace needs of a file system. Tests put one in its place that
// loses what was not synced.
type Disk interface {
	// Create makes a new file that only its owner can read. It is an error if
	// there is one of that name.
	Create(path string) (File, error)

	// Rename gives a file another name, and replaces the one that had it.
	Rename(from, to string) error

	// Remove removes a file.
	Remove(path string) error

	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

// A File is a file that is written.
type File interface {
	Write(data []byte) (int, error)
	Sync() error
	Close() error
	Handle() *os.File // the file as the system knows it
}

// OS is the system's own disk.
var OS Disk = system{}

// Replace makes the file at path hold what content returns, which is given the
// new file before it is written. Its mode is 0600, and its owner that of the directory where root
// replaces it. It leaves no other file behind
// but, after an error or a crash, path.tmp, which the next call removes. Calls
// for the same path must not overlap.
func Replace(disk Disk, path string, content func(*os.File) ([]byte, error)) error {
	temp := path + ".tmp"
	if err := disk.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := disk.Create(temp)
	if err != nil {
		return err
	}
	data, err := content(f.Handle())
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	// Before the rename: Windows renames no file that is open.
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := disk.Rename(temp, path); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(path))
}

type system struct{}

type file struct{ *os.File }

func (f file) Handle() *os.File { return f.File }

func (system) Create(path string) (File, error) {
	f, err := create(path, os.O_WRONLY)
	if err != nil {
		return nil, err
	}
	return file{f}, nil
}

// create makes a new file, for the owner of its directory where root does.
func create(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := own(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenFile is os.OpenFile for a file that only its owner can read. One that root makes is for the
// owner of its directory.
func OpenFile(path string, flag int) (*os.File, error) {
	if flag&os.O_CREATE != 0 {
		f, err := create(path, flag)
		if !errors.Is(err, fs.ErrExist) || flag&os.O_EXCL != 0 {
			return f, err
		}
	}
	return os.OpenFile(path, flag, 0o600)
}

// MkdirAll is os.MkdirAll for directories that only their owner can use. Those that root makes are for
// the owner of the directory that they are in.
func MkdirAll(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := MkdirAll(parent); err != nil {
			return err
		}
	}
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) { // by another process, or it is none
		return os.MkdirAll(path, 0o700)
	}
	if err != nil {
		return err
	}
	return ownDir(path)
}

func (system) Rename(from, to string) error { return rename(from, to) }
func (system) Remove(path string) error     { return os.Remove(path) }
func (system) SyncDir(dir string) error     { return syncDir(dir) }
