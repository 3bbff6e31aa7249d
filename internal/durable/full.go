package durable

import (
	"errors"
	"slices"
	"syscall"
)

// IsFull reports whether an error says that there is no room: on the disk, within the
// user's quota, or below the process's limit on the size of files.
func IsFull(err error) bool {
	return slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}, func(target error) bool { return errors.Is(err, target) })
}

// FullText tells clients that a store is full, and what helps.
const FullText = "the disk under the store is full: make room, and numbers are granted again by themselves"
