//go:build !unix

package durable

import "os"

func own(*os.File) error { return nil }

func ownDir(string) error { return nil }

// Foreign returns the paths within a directory that are not its owner's, where the system can tell.
func Foreign(string) ([]string, error) { return nil, nil }
