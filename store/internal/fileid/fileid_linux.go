package fileid

import (
	"os"

	"golang.org/x/sys/unix"
)

func ofFile(file *os.File) (Identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return Identity{}, os.NewSyscallError("statx", err)
	}
	id := Identity{Inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}
