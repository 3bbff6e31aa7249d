package supervise

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// terminate does nothing: there is no signal to ask with. The command is killed at the
// deadline.
func (c *command) terminate() {}
func (c *command) kill()      { _ = c.cmd.Process.Kill() }

func shellStatus(p *os.ProcessState) int { return p.ExitCode() }
