//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package vesta

import (
	"io"

	"github.com/hapax-id/hapax"
)

// lockFile fails: the standard library cannot lock files on this system.
func lockFile(string) (io.Closer, error) { return nil, hapax.ErrNotSupported }

// markFile is not called: there is no lock.
func markFile(string, string) {}
