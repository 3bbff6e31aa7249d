// Package losing is a disk for tests that loses, when the power goes, what was
// not synced.
package losing

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hapax-id/hapax/internal/durable"
)

var _ durable.Disk = (*Disk)(nil)

// A Disk works on the system's own files and remembers what a power loss would
// take back. Its methods are safe for concurrent use.
type Disk struct {
	mu      sync.Mutex // guards everything below
	files   map[string]*file
	renames []rename // since their directory was synced, in order
}

// New returns a disk on which everything that is there is durable.
func New() *Disk { return &Disk{files: map[string]*file{}} }

// A rename that may be undone.
type rename struct {
	to     string
	before []byte // what the name led to; nil: nothing
}

// A file that was made on this disk.
type file struct {
	*os.File
	disk   *Disk
	synced bool // all that was written
}

func (f *file) Handle() *os.File { return f.File }

func (f *file) Write(data []byte) (int, error) {
	f.disk.mu.Lock()
	f.synced = false
	f.disk.mu.Unlock()
	return f.File.Write(data)
}

func (f *file) Sync() error {
	f.disk.mu.Lock()
	f.synced = true
	f.disk.mu.Unlock()
	return f.File.Sync()
}

// Create implements durable.Disk.
func (d *Disk) Create(path string) (durable.File, error) {
	f, err := durable.OS.Create(path)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	made := &file{File: f.Handle(), disk: d}
	d.files[path] = made
	return made, nil
}

// Rename implements durable.Disk.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	before, err := os.ReadFile(to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := durable.OS.Rename(from, to); err != nil {
		return err
	}
	d.renames = append(d.renames, rename{to, before})
	if f := d.files[from]; f != nil {
		d.files[to] = f
		delete(d.files, from)
	}
	return nil
}

// Remove implements durable.Disk.
func (d *Disk) Remove(path string) error { return durable.OS.Remove(path) }

// SyncDir implements durable.Disk.
func (d *Disk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := d.renames[:0]
	for _, r := range d.renames {
		if filepath.Dir(r.to) != dir {
			kept = append(kept, r)
		}
	}
	d.renames = kept
	return nil
}

// LoseNames is a power loss after which the renames are undone that were not
// synced.
func (d *Disk) LoseNames() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	// The last one first: several may have led to the same name.
	for _, r := range slices.Backward(d.renames) {
		err := os.Remove(r.to)
		if r.before != nil {
			err = os.WriteFile(r.to, r.before, 0o600)
		}
		if err != nil {
			return err
		}
	}
	d.renames = nil
	return nil
}

// LoseContents is a power loss after which all names are there, and the files
// are empty that were not synced.
func (d *Disk) LoseContents() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, f := range d.files {
		if !f.synced {
			if err := os.Truncate(path, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
