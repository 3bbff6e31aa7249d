//go:build !unix && !windows

package durable

import (
	"errors"
	"os"
)

func lock(*os.File) error { return errors.ErrUnsupported }
