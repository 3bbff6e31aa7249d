//go:build unix && !linux

package supervise

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func (c *command) terminate() { _ = syscall.Kill(-c.pid, syscall.SIGTERM) }
func (c *command) kill()      { _ = syscall.Kill(-c.pid, syscall.SIGKILL) }

func shellStatus(p *os.ProcessState) int {
	if s, ok := p.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.ExitCode()
}
