//go:build !unix

package server

// maxFiles is not known here.
func maxFiles() (int, bool) { return 0, false }
