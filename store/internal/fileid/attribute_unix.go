//go:build linux || darwin

package fileid

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// attribute is the name of the extended attribute.
const attribute = "user.hapax.generation"

// Attribute returns a short text that was kept beside a file's data, empty if
// there is none; false where the system cannot keep one.
func Attribute(file *os.File) (string, bool) {
	var buf [256]byte
	n, err := unix.Fgetxattr(int(file.Fd()), attribute, buf[:])
	switch {
	case err == nil:
		return string(buf[:n]), true
	case errors.Is(err, missing):
		return "", true
	}
	return "", false
}

// SetAttribute keeps a text beside the file's data, durably, where Attribute
// says that the system can. A system that cannot after all is no error.
func SetAttribute(file *os.File, text string) error {
	err := unix.Fsetxattr(int(file.Fd()), attribute, []byte(text), 0)
	// What stands beside the file stays as it was, and the file agrees with that, too: see boltstore's renew.
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("fsetxattr", err)
	}
	return file.Sync()
}
