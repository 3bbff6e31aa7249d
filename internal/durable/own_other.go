//go:build !unix

package durable

import "os"

func own(*os.File) error { return nil }
