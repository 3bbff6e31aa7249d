//go:build !unix && !windows

package durable

import (
	"errors"
	"os"
)

const noFollow = 0

func lock(*os.File) error { return errors.ErrUnsupported }
