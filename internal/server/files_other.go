//go:build !unix

package server

// maxFiles is not known here.
func maxFiles() (int, bool) { return 0, false }

// failWhenTooLong does nothing: no signal tells of files that are too long.
func failWhenTooLong() {}

// mayWrite returns why a directory could not be written, as far as that shows beforehand.
func mayWrite(string) error { return nil }
