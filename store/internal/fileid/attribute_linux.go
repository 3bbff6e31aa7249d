package fileid

import "golang.org/x/sys/unix"

const missing = unix.ENODATA
