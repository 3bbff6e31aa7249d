//go:build !linux && !darwin

package fileid

import "os"

// Attribute returns a short text that was kept beside a file's data, empty if
// there is none; false where the system cannot keep one.
func Attribute(*os.File) (string, bool) { return "", false }

// SetAttribute keeps a text beside the file's data, where Attribute says that
// the system can.
func SetAttribute(*os.File, string) error { return nil }
