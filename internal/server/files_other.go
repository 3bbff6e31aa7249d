//go:build !unix

package server

// maxFiles is not known here.
func maxFiles() (int, bool) { return 0, false }

// failWhenTooLong does nothing: no signal tells of files that are too long.
func failWhenTooLong() {}
