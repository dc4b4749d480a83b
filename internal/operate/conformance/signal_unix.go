//go:build unix

package conformance

import (
	"os/exec"
	"syscall"
)

const sigKill, sigStop, sigCont = syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCONT

// ownGroup has signals reach all that a command starts. Where the system can do that, it ends with this process, also when that is killed.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endsWithUs(cmd.SysProcAttr)
}

func signal(cmd *exec.Cmd, s syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, s) }
