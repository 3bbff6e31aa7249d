//go:build unix && !linux

package fileid

import (
	"os"
	"syscall"
)

func ofFile(file *os.File) (Identity, error) {
	info, err := file.Stat()
	if err != nil {
		return Identity{}, err
	}
	var id Identity
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id.Inode = uint64(st.Ino)
	}
	return id, nil
}
