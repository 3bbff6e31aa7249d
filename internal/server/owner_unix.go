//go:build unix

package server

import (
	"os"
	"syscall"
)

func isOwn(info os.FileInfo) bool { return ownerOf(info) == os.Geteuid() }

func isRoots(info os.FileInfo) bool { return ownerOf(info) == 0 }

// ownerOf returns the user that owns a file; -1 if that is not known.
func ownerOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
