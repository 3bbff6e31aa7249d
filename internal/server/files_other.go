//go:build !unix

package server

import "os/exec"

// maxFiles is not known here.
func maxFiles() (int, bool) { return 0, false }

// endTogether leaves a command as it is: it is ended, and what it started is not.
func endTogether(*exec.Cmd) {}

// failWhenTooLong does nothing: no signal tells of files that are too long.
func failWhenTooLong() {}

// mayWrite returns why a directory could not be written, as far as that shows beforehand.
func mayWrite(string) error { return nil }
