//go:build unix && !linux

package boltstore

import (
	"os"
	"syscall"
)

func identifyFile(file *os.File) (identity, error) {
	info, err := file.Stat()
	if err != nil {
		return identity{}, err
	}
	var id identity
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id.Inode = uint64(st.Ino)
	}
	return id, nil
}
