//go:build !linux

package testservers

import (
	"errors"
	"syscall"
)

// The harness relies on /proc and on signals tied to a parent's death, so that
// a killed test leaves nothing behind.
const supported = false

const (
	syscallStop = syscall.SIGKILL
	syscallCont = syscall.SIGKILL
)

var errUnsupported = errors.New("test servers run on Linux only")

func processAttr(string) (*syscall.SysProcAttr, error) { return nil, errUnsupported }
func alone(string) (func(), error)                     { return nil, errUnsupported }
func own(dir, account string) error                    { return errUnsupported }
func freeBytes(dir string) uint64                      { return 0 }
func signal(pid int, sig syscall.Signal) error         { return errUnsupported }
func tree(root int) []int                              { return []int{root} }
func alive(pid int) bool                               { return false }
func stopped(pid int) bool                             { return true }
